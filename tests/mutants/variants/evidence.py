"""Wrong variants of the evidence."""

from tests.mutants.variant import variants_of

_v = variants_of("evidence/")

VARIANTS = [
    _v(
        "log-mean-exp-count",
        "_estimates.py",
        "return torch.logsumexp(log_weights, dim) - math.log(log_weights.shape[dim])",
        "return torch.logsumexp(log_weights, dim)",
        "the log of a sum for that of a mean",
    ),
    _v(
        "reverse-bound-sign",
        "_estimates.py",
        "values = -log_mean_exp(-blocks, 1).mean(1)",
        "values = log_mean_exp(blocks, 1).mean(1)",
        "log mean exp of the reverse weights, not of their inverses",
    ),
    _v(
        "finite-sample-penalty-below",
        "_estimates.py",
        "return float(lower) - penalty / n_blocks,",
        "return float(lower) + penalty / n_blocks,",
        "sign of the penalty of the lower bound",
    ),
    _v(
        "finite-sample-penalty-above",
        "_estimates.py",
        "float(upper) + penalty / len(reverse)",
        "float(upper) - penalty / len(reverse)",
        "sign of the penalty of the upper bound",
    ),
    _v(
        "bridge-error-one-side",
        "_estimates.py",
        "variance = variance + b.var() / b.mean() ** 2 / n_effective",
        "variance = variance + 0 * b.var()",
        "the error of one side left out",
    ),
    _v(
        "jackknife-factor",
        "_estimates.py",
        "error = math.sqrt(n_blocks - 1) * float",
        "error = float",
        "the spread of leave-one-out values as the error",
    ),
    _v(
        "conjugate-evidence-fit-sign",
        "_conjugate.py",
        "value = -0.5 * (np.log1p(ratio).sum(1) + pull @ (z * z))",
        "value = -0.5 * (np.log1p(ratio).sum(1) - pull @ (z * z))",
        "sign of the squared solution",
    ),
    _v(
        "conjugate-evidence-intercept-prior",
        "_conjugate.py",
        "return 0.5 * (np.log(prior / total) -",
        "return 0.5 * (np.log(1 / total) -",
        "the intercept's prior without its normalizer",
    ),
    _v(
        "conjugate-evidence-jacobian",
        "_conjugate.py",
        "- alpha * data.residual) + form.constant",
        "- alpha * data.residual)",
        "the Jacobian of the standardised target left out",
    ),
    _v(
        "quadrature-panel-radius",
        "_conjugate.py",
        "np.diff(borders)[:, 0] / 2",
        "np.diff(borders)[:, 0]",
        "panels twice as wide as they are",
    ),
    _v(
        "elbo-error-of-a-draw",
        "_fit_checks.py",
        "error = float(log_weights.std()) / n_draws**0.5",
        "error = float(log_weights.std())",
        "the deviation of one draw for the error of the mean",
    ),
    _v(
        "interval-lower-end",
        "_result.py",
        "low = self.lower - n_se * self.lower_se",
        "low = self.lower + n_se * self.lower_se",
        "the lower end moved inwards by its errors",
    ),
    _v(
        "sum-of-tables-errors",
        "_named.py",
        "standard_error=math.hypot(*(row.standard_error for row in rows))",
        "standard_error=math.fsum(row.standard_error for row in rows)",
        "errors of independent sums added without squares",
    ),
    _v(
        "upper-weights-not-inverted",
        "_weights.py",
        '"upper": _summary(reverse, -1,',
        '"upper": _summary(reverse, 1,',
        "the upper side's weights not inverted",
    ),
    _v(
        "histogram-counts",
        "_weights.py",
        "density=counts / max(len(values), 1) / np.diff(edges)",
        "density=counts / max(len(values), 1)",
        "counts for densities",
    ),
    _v(
        "draws-for-precision",
        "_sides.py",
        "variance / error_of(precision) ** 2",
        "variance / error_of(precision)",
        "errors fall with the draws, not with their root",
    ),
    _v(
        "bridge-of-another-density",
        "_importance.py",
        "bridge=reverse_weights(proposal.log_prob(theta))",
        "bridge=reverse_weights(above.log_prob(theta))",
        "reverse weights of another density than the proposal's",
    ),
]
