"""Wrong variants of targets."""

from tests.mutants.variant import variants_of

_v = variants_of("targets/")

VARIANTS = [
    _v(
        "minibatch-not-scaled",
        "_rows.py",
        "return total * (len(self.rows) / losses.shape[1])",
        "return total",
        "the loss of a minibatch without n / |B|",
    ),
    _v(
        "expected-loss-variance-derivative",
        "_expected_loss.py",
        "by_variance = 0.5 * like_rows(gradient, second) * second",
        "by_variance = like_rows(gradient, second) * second",
        "Price's theorem without its half",
    ),
    _v(
        "free-energy-without-inverse-alpha",
        "_free_energy.py",
        "return torch.exp(terms - total), -total / self.alpha",
        "return torch.exp(terms - total), -total",
        "the factor 1/alpha forgotten",
    ),
    _v(
        "free-energy-sum-for-mean",
        "_free_energy.py",
        "return -log_mean_exp(-self.alpha * losses, 0) / self.alpha",
        "return -torch.logsumexp(-self.alpha * losses, 0) / self.alpha",
        "the log of a sum over draws for that of a mean",
    ),
    _v(
        "free-energy-curvature",
        "_free_energy.py",
        "second = second + self.alpha * first.square()",
        "second = second + first.square()",
        "alpha left out of twice the derivative in the variance",
    ),
    _v(
        "log-joint-without-constant",
        "_supervised.py",
        "log_prior = self.prior.log_prob(theta) + self.constant",
        "log_prior = self.prior.log_prob(theta)",
        "the Jacobian of a standardised target left out",
    ),
    _v(
        "log-joint-slope-weight",
        "_supervised.py",
        "slope = slope * like_rows(part.weight, slope[0])",
        "slope = slope * like_rows(part.weight.square(), slope[0])",
        "squared sample weights in the gradient",
    ),
    _v(
        "hyper-part-not-detached",
        "_supervised.py",
        "for_theta = frozen.prior.log_prob(theta) + self.constant",
        "for_theta = self.prior.log_prob(theta) + self.constant",
        "the gradient of the prior's scale counts twice",
    ),
    _v(
        "tail-precision-without-data-weights",
        "_supervised.py",
        "gram = self.predictor.gram(self.X, curvature * weight)",
        "gram = self.predictor.gram(self.X, weight)",
        "curvature 1 for that of the likelihood",
    ),
    _v(
        "least-squares-intercept",
        "_least_squares.py",
        "total = total + self.n * (intercept - self.mean).square()",
        "total = total + (intercept - self.mean).square()",
        "the intercept's error counts once instead of n times",
    ),
    _v(
        "least-squares-unweighted-residual",
        "_least_squares.py",
        "residual = float(weight @ rest.square())",
        "residual = float(rest.square().sum())",
        "sample weights left out of the residual",
    ),
    _v(
        "noise-precision-for-scale",
        "_hierarchical.py",
        "bind(-0.5 * log_precision[None])",
        "bind(-log_precision[None])",
        "the variance of the noise for its scale",
    ),
    _v(
        "least-squares-density-normalizer",
        "_hierarchical.py",
        "fit = self.data.n * (log_precision - LOG_2PI)",
        "fit = self.data.n * log_precision",
        "the density without (2 pi)^(-n / 2)",
    ),
    _v(
        "hierarchy-draws-of-coefficients",
        "_precisions.py",
        "theta[:, where] = torch.exp(-0.5 * t) * coef",
        "theta[:, where] = torch.exp(-t) * coef",
        "the variance for the standard deviation",
    ),
    _v(
        "hierarchy-jacobian",
        "_precisions.py",
        "total = total + 0.5 * (t - LOG_2PI - squares).sum(1)",
        "total = total - 0.5 * (LOG_2PI + squares).sum(1)",
        "the coefficients' density without its log precision",
    ),
    _v(
        "whitened-slope-transposed",
        "_whitened.py",
        "return gradient * scale if self.normal.is_diagonal else gradient @ scale",
        "return gradient * scale if self.normal.is_diagonal else gradient @ scale.T",
        "the scale for its transpose",
    ),
    _v(
        "terms-of-one-chunk",
        "_expected_loss.py",
        "all_rows[chunk] = value",
        "all_rows[: len(value)] = value",
        "every chunk in the place of the first",
    ),
    _v(
        "points-in-the-path-of-theta",
        "_supervised.py",
        "f = shift(frozen.predictor.forward(theta, part.X), part)",
        "f = shift(self.predictor.forward(theta, part.X), part)",
        "the gradient of deterministic weights counts twice",
    ),
]
