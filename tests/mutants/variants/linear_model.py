"""Wrong variants of linear models."""

from tests.mutants.variant import variants_of

_v = variants_of("linear_model/")

VARIANTS = [
    _v(
        "count-mean-at-posterior-mean",
        "_count_predictions.py",
        "rate = torch.exp(mean + 0.5 * std.square())",
        "rate = torch.exp(mean)",
        "the rate at the posterior mean",
    ),
    _v(
        "count-std-without-noise",
        "_count_predictions.py",
        "deviation = (rate + rate.square() * torch.expm1(std.square())).sqrt()",
        "deviation = (rate.square() * torch.expm1(std.square())).sqrt()",
        "the Poisson noise left out of the deviation",
    ),
    _v(
        "count-null-model-unweighted",
        "_count_predictions.py",
        "null = unit * (weight @ y) / (weight @ unit)",
        "null = unit * y.sum() / unit.sum()",
        "the null model without weights",
    ),
    _v(
        "exposure-without-log",
        "_poisson.py",
        "return np.log(exposure)",
        "return exposure",
        "the exposure as an offset, not its logarithm",
    ),
    _v(
        "intercept-moved-the-wrong-way",
        "_regression.py",
        "np.append(-self._offset, 1.0)",
        "np.append(self._offset, 1.0)",
        "the intercept moved by + offset' coef",
    ),
    _v(
        "regression-variance-units",
        "_regression.py",
        "return mean * scale + self._y_mean, variance * scale**2",
        "return mean * scale + self._y_mean, variance * scale",
        "the variance in units of y instead of y squared",
    ),
    _v(
        "expected-noise-variance",
        "_regression.py",
        "float(rate / (shape - 1)) if float(shape) > 1",
        "float(rate / shape) if float(shape) > 1",
        "the inverse of the mean precision for the mean variance",
    ),
    _v(
        "precision-units",
        "_regression.py",
        "value = (shape / rate).numpy() / self._y_scale**2",
        "value = (shape / rate).numpy() * self._y_scale**2",
        "precisions in the inverse units",
    ),
    _v(
        "linear-std-without-noise",
        "_linear.py",
        "total = (variance + self._noise_variance()).sqrt()",
        "total = variance.sqrt()",
        "predictive deviations without the noise",
    ),
    _v(
        "linear-draws-without-noise",
        "_linear.py",
        "noise = self._noise_draws(theta) * randn",
        "noise = 0.5 * self._noise_draws(theta) * randn",
        "half of the noise in the draws of y",
    ),
    _v(
        "logistic-std-for-variance",
        "_logistic.py",
        "small = log_expect_sigmoid(-mean.abs(), variance.sqrt())",
        "small = log_expect_sigmoid(-mean.abs(), variance)",
        "the variance where the standard deviation belongs",
    ),
    _v(
        "coefficient-variance-for-std",
        "_base.py",
        "torch.stack([normal.mean, normal.variance.sqrt()])",
        "torch.stack([normal.mean, normal.variance])",
        "variances of coefficients for their deviations",
    ),
    _v(
        "bounds-of-columns-averaged",
        "_columns.py",
        "float(sum(o.lower_bound_ for o in outputs))",
        "float(np.mean([o.lower_bound_ for o in outputs]))",
        "the mean over targets for the sum",
    ),
]
