"""Wrong variants of neural networks."""

from tests.mutants.variant import variants_of

_v = variants_of("neural_network/")

VARIANTS = [
    _v(
        "network-std-without-noise",
        "_regressor.py",
        "std = (f.var(0) + self.noise_scale_**2).sqrt()",
        "std = f.var(0).sqrt()",
        "predictive deviations without the noise",
    ),
    _v(
        "network-noise-variance",
        "_regressor.py",
        "std = (f.var(0) + self.noise_scale_**2).sqrt()",
        "std = f.std(0) + self.noise_scale_",
        "deviations added where variances are",
    ),
    _v(
        "network-noise-not-in-units",
        "_regressor.py",
        "return GaussianLikelihood(float(self.noise_scale) / self._y_scale)",
        "return GaussianLikelihood(float(self.noise_scale))",
        "a given noise that is not divided by the unit of y",
    ),
    _v(
        "network-density-of-a-sum",
        "_regressor.py",
        "return torch.logsumexp(values, 0) - math.log(len(f))",
        "return values.mean(0)",
        "the mean of log densities",
    ),
    _v(
        "network-same-noise-in-rows",
        "_regressor.py",
        "randn(generator, n_samples, len(X)).numpy()",
        "randn(generator, n_samples, 1).numpy().repeat(len(X), 1)",
        "the same noise in every row",
    ),
    _v(
        "classifier-softmax-of-mean",
        "_classifier.py",
        "return torch.logsumexp(self._log_mean(f), 0) - math.log(len(f))",
        "return self._log_mean(f.mean(0, keepdim=True))[0]",
        "the softmax of the mean output",
    ),
    _v(
        "classifier-columns-exchanged",
        "_classifier.py",
        "torch.cat([logsigmoid(-f), logsigmoid(f)], 2)",
        "torch.cat([logsigmoid(f), logsigmoid(-f)], 2)",
        "classes in the other order",
    ),
    _v(
        "noise-set-after-the-fit",
        "_regressor.py",
        "self.noise_scale_**2",
        '(self.noise_scale_ * (self.noise_scale == "learn") or self.noise_scale) ** 2',
        "the noise that was set after the fit",
    ),
    _v(
        "equal-rows-as-neighbors",
        "_flatness.py",
        "_, first = np.unique(X, axis=0, return_index=True)",
        "first = np.arange(len(X))",
        "equal rows are neighbors of each other",
    ),
    _v(
        "explained-about-another-mean",
        "_flatness.py",
        "np.average(y, weights=weight)",
        "y.mean()",
        "the mean without weights",
    ),
    _v(
        "frequencies-unweighted",
        "_flatness.py",
        "np.bincount(codes, weight, minlength=log_proba.shape[1])",
        "np.bincount(codes, minlength=log_proba.shape[1])",
        "class frequencies without weights",
    ),
    _v(
        "share-of-the-residuals",
        "_flatness.py",
        "total = float(np.var(y))",
        "total = float(np.var(residual))",
        "a share of what is left, not of the target",
    ),
    _v(
        "chance-of-few-rows",
        "_flatness.py",
        "n_rows = rows_per_row * weight.sum() ** 2 / (weight @ weight)",
        "n_rows = weight.sum() ** 2 / (weight @ weight)",
        "chance explains as much of many rows as of those looked at",
    ),
    _v(
        "missed-with-the-mean",
        "_flatness.py",
        "centred = residual - residual.mean()",
        "centred = residual",
        "an offset that all rows share counts as signal of neighbors",
    ),
    _v(
        "missed-by-few-errors",
        "_flatness.py",
        "MISSED_ERRORS / n_rows**0.5",
        "MISSED_ERRORS / n_rows",
        "a variance for the standard error of a covariance",
    ),
]
