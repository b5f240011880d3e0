"""Wrong variants of metrics."""

from tests.mutants.variant import variants_of

_v = variants_of("metrics/")

VARIANTS = [
    _v(
        "crps-of-a-normal",
        "_scores.py",
        "return _absolute(y - mean, std) - std / math.sqrt(math.pi)",
        "return _absolute(y - mean, std) - std / math.sqrt(2 * math.pi)",
        "1 / sqrt(2 pi) for 1 / sqrt(pi)",
    ),
    _v(
        "crps-pairs-with-themselves",
        "_scores.py",
        "score -= (w**2 * std).sum(1) / math.sqrt(",
        "score -= 0 * (w**2 * std).sum(1) / math.sqrt(",
        "pairs of a component with itself left out",
    ),
    _v(
        "crps-pairs-of-a-mixture",
        "_scores.py",
        "np.hypot(s[:, one], s[:, other])",
        "s[:, one] + s[:, other]",
        "deviations added where variances are",
    ),
    _v(
        "absolute-value-of-a-normal",
        "_scores.py",
        "+ 2 * std * density",
        "+ std * density",
        "the density without its factor 2",
    ),
    _v(
        "sample-crps-unfair",
        "_scores.py",
        "(deviations * ranks).sum(-1) / (size * (size - 1))",
        "(deviations * ranks).sum(-1) / (size * size)",
        "S^2 for S (S - 1): favors narrow forecasts",
    ),
    _v(
        "interval-score-price",
        "_scores.py",
        "return high - low + 2 / (1 - coverage) * missed",
        "return high - low + 1 / (1 - coverage) * missed",
        "half the price of a miss",
    ),
    _v(
        "weighted-score-unweighted",
        "_base.py",
        "np.average(rows[used], weights=weight[used])",
        "np.average(rows[used])",
        "sample weights choose rows only",
    ),
    _v(
        "coverage-open-interval",
        "_scorers.py",
        "return ((low <= y) & (y <= high)).astype(np.float64)",
        "return ((low < y) & (y < high)).astype(np.float64)",
        "counts at the ends of the interval are missed",
    ),
]
