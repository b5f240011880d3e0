"""Wrong variants of posterior families."""

from tests.mutants.variant import variants_of

_v = variants_of("posteriors/")

VARIANTS = [
    _v(
        "mean-field-variance-for-std",
        "_normal.py",
        "0.5 * normal.variance.log()])",
        "normal.variance.log()])",
        "the variance where the standard deviation belongs",
    ),
    _v(
        "mean-field-conditional-variance",
        "_normal.py",
        "scale = torch.diag(normal.scale) if normal.is_diagonal else normal.scale",
        "scale = torch.diag(normal.variance.sqrt())",
        "the marginal variances alone of a full covariance",
    ),
    _v(
        "full-rank-columns-for-rows",
        "_normal.py",
        "unit = scale / diagonal[:, None]",
        "unit = scale / diagonal",
        "columns divided where rows are multiplied",
    ),
    _v(
        "draws-without-path-gradient",
        "_normal.py",
        "theta = normal.transform(eps)",
        "theta = normal.transform(eps).detach()",
        "detached draws",
    ),
    _v(
        "low-rank-loadings-unscaled",
        "_low_rank.py",
        "NormalForm(mean, scale, scale[:, None] * loadings.reshape(size, -1))",
        "NormalForm(mean, scale, loadings.reshape(size, -1))",
        "loadings that are not in units of the own deviations",
    ),
    _v(
        "factor-analysis-eigenvalues",
        "_factor_analysis.py",
        "np.sqrt(np.maximum(values - 1, 0))",
        "np.sqrt(np.maximum(values, 0))",
        "the own variance is not taken from the eigenvalues",
    ),
    _v(
        "gamma-rate-for-scale",
        "_product.py",
        "generator) - log_rate",
        "generator) + log_rate",
        "a scale for a rate",
    ),
    _v(
        "product-order-of-blocks",
        "_product.py",
        "draws], 1)[:, order]",
        "draws], 1)",
        "draws in the order of the parts, not of theta",
    ),
    _v(
        "real-part-covariance-for-root",
        "_product.py",
        "roots = [torch.linalg.cholesky(f.covariance()) for",
        "roots = [f.covariance() for",
        "covariances where Cholesky factors belong",
    ),
    _v(
        "near-moves",
        "_normal.py",
        "return self.at(self._params_of(normal).to(self.params.device))",
        "self.params = self._params_of(normal)\n        return self",
        "what is asked for a posterior nearby goes there itself",
    ),
    _v(
        "product-at-its-own-parameters",
        "_product.py",
        "pairs = zip(self._bound(params), draw.parts, strict=True)",
        "pairs = zip(self._bound(), draw.parts, strict=True)",
        "log q of draws at the product's own parameters, whatever is given",
    ),
    _v(
        "ensemble-sum-for-mean",
        "_ensemble.py",
        "return torch.logsumexp(logs, 0) - math.log(len(members))",
        "return torch.logsumexp(logs, 0)",
        "the sum of the members' densities",
    ),
    _v(
        "ensemble-mean-of-logs",
        "_ensemble.py",
        "return torch.logsumexp(logs, 0) - math.log(len(members))",
        "return logs.mean(0)",
        "the mean of the members' log densities",
    ),
    _v(
        "ensemble-draws-not-in-place",
        "_ensemble.py",
        "order = torch.argsort(torch.argsort(component, stable=True))",
        "order = torch.arange(n_draws, device=component.device)",
        "draws in the order of the members, not of `component`",
    ),
    _v(
        "ensemble-first-members-more-often",
        "_ensemble.py",
        "return torch.argsort(keys, 1).reshape(-1)[:n_draws]",
        "return torch.arange(keys.numel(), device=keys.device)[:n_draws] % n_members",
        "a number of draws that is no multiple of the members favors the first",
    ),
]
