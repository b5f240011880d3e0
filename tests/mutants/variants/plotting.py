"""Wrong variants of plotting."""

from tests.mutants.variant import variants_of

_v = variants_of("plotting/")

VARIANTS = [
    _v(
        "legend-of-no-estimate",
        "_evidence_bounds.py",
        '"estimate" if np.isfinite(x).any() else "_no estimate"',
        '"estimate"',
        "a legend for an estimate that nothing shows",
    ),
    _v(
        "prior-at-another-precision",
        "_posterior.py",
        "width = unit * math.sqrt(rate[one] / shape[one])",
        "width = unit * math.sqrt(shape[one] / rate[one])",
        "the precision for the variance",
    ),
    _v(
        "loss-curve-of-two-decimals",
        "_loss_curve.py",
        "math.ceil(1 - math.log10(change))",
        "2",
        "a first and a last value that look the same",
    ),
    _v(
        "prior-with-a-flat-top",
        "_posterior.py",
        "np.minimum(scale * before, 2.0)",
        "np.minimum(scale * before, HEIGHT)",
        "a pole of the prior that looks like a plateau",
    ),
    _v(
        "prior-in-the-next-row",
        "_posterior.py",
        "row + 0.1, row - TOP",
        "row + 0.1, row - 2 * TOP",
        "a pole of the prior that enters the next row",
    ),
    _v(
        "posterior-display-prior-units",
        "_posterior.py",
        "return built.log_prob(theta[:, None]).exp().numpy() / unit",
        "return built.log_prob(theta[:, None]).exp().numpy()",
        "the prior's density in the units of the fit",
    ),
    _v(
        "differences-of-bars",
        "_evidence_bounds.py",
        "lower, upper = _finite(lower - self._origin), _finite(upper - self._origin)",
        "lower, upper = _finite(lower), _finite(upper)",
        "bars that stay where they are beside differences",
    ),
    _v(
        "search-display-threshold",
        "_evidence_search.py",
        "where = np.nanmax(low) - self.min_difference",
        "where = np.nanmax(low)",
        "the line at the best lower end",
    ),
    _v(
        "loss-curve-from-zero",
        "_loss_curve.py",
        "ax.plot(1 + np.arange(len(values)), values,",
        "ax.plot(np.arange(len(values)), values,",
        "iterations counted from 0",
    ),
    _v(
        "training-band-of-one-error",
        "_training.py",
        "ends = values - N_SE * error, values + N_SE * error",
        "ends = values - error, values + error",
        "bands of one standard error for two",
    ),
    _v(
        "weights-display-pareto-tail",
        "_weights.py",
        "upper = 1 - (found.ranks - 0.5) / n_tail",
        "upper = (found.ranks - 0.5) / n_tail",
        "the quantile function of the tail from the wrong end",
    ),
    _v(
        "unreliable-bounds-printed",
        "_bounds_text.py",
        "low, _, high = bounds.stated()",
        "low, high = bounds.lower, bounds.upper",
        "the text beside the picture shows bounds that mean nothing",
    ),
    _v(
        "unreliable-bounds-drawn",
        "_evidence_bounds.py",
        "    if bounds.reliable:\n        return bounds.lower, bounds.upper\n",
        "    if True:\n        return bounds.lower, bounds.upper\n",
        "a bar between bounds that mean nothing",
    ),
    _v(
        "evidence-display-right-ends",
        "_evidence_bounds.py",
        "range(len(lower)), upper - lower, left=lower,",
        "range(len(lower)), upper, left=lower,",
        "the upper bound for the length of the bar",
    ),
    _v(
        "units-shown-as-learned",
        "_bounds_text.py",
        "[name for name in bounds.plug_in if name not in FROM_TARGET]",
        "list(bounds.plug_in)",
        "units of y are said to be learned",
    ),
]
