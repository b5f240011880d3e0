"""Units of a series: location, scale and noise of its burn-in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from skvi.changepoint._scores import N_KNOTS, NormalScore, moments
from skvi.changepoint.base import BurnIn

__all__ = [
    "LEAST_ROWS",
    "Scaling",
    "clock_of",
    "first_change",
    "first_observed",
    "measure",
    "scale_of",
]

# Fewer rows say too little of ties, or of the dispersion of counts.
LEAST_ROWS = 20
# Smallest noise, in units of the scale: rounded or constant series have none.
LEAST_NOISE = 1e-3
# Values that differ by no more of their size are equal.
ROUNDING = 1e-15


@dataclass(frozen=True)
class Scaling:
    """Location and scale of every series, (n_series,), and the burn-in for models.

    If there are `scores`, one for each series or None, models see those. The `clock` is
    the time of the first row and the typical step, if X has times.
    """

    location: np.ndarray
    scale: np.ndarray
    burn_in: BurnIn
    scores: Sequence[NormalScore | None] = ()
    clock: tuple[float, float] | None = None

    def score(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows, (n, n_series), as models see them, and the logarithms of slopes."""
        found, slopes = units.copy(), np.zeros(units.shape)
        for j, score in enumerate(self.scores):
            if score is not None:
                found[:, j], slopes[:, j] = score(units[:, j])
        return found, slopes

    def unscored(
        self, mean: np.ndarray, std: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Moments of rows, (n, n_series), before they were scored."""
        return moments(self.scores, mean, std)

    @property
    def n_knots(self) -> int:
        """Number of free knots of the scores."""
        return (N_KNOTS - 2) * sum(score is not None for score in self.scores)


def measure(
    columns: Sequence[np.ndarray],
    given: tuple[np.ndarray, np.ndarray] | None,
    n_features: int,
    scores: bool = False,
) -> Scaling:
    """Measure the first rows of every series, with NaN where missing.

    Location and scale may be given. With `scores` models see normal scores of those
    series whose density gains by them.
    """
    columns = [column[np.isfinite(column)] for column in columns]
    if given is not None:
        location, scale = given
    else:
        location = np.array([np.median(c) if len(c) else 0.0 for c in columns])
        scale = np.array([scale_of(column) for column in columns])
    units = [(c - a) / b for c, a, b in zip(columns, location, scale, strict=True)]
    found = [normal_score(column) if scores else None for column in units]
    if scores:
        units = [
            c if score is None else score(c)[0]
            for c, score in zip(units, found, strict=True)
        ]
    noise = np.array([_noise(column) for column in units])
    mean = np.array([column.mean() if len(column) else 0.0 for column in units])
    dispersion = np.array([dispersion_of(column) for column in units])
    burn_in = BurnIn(len(columns), n_features, noise, mean, dispersion)
    return Scaling(location, scale, burn_in, found)


def normal_score(column: np.ndarray) -> NormalScore | None:
    """Normal score of a series that has a higher density by it, knots paid for."""
    score = NormalScore.of(column)
    if score is None:
        return None
    z, slopes = score(column)
    log_density = slopes.sum() - 0.5 * (z @ z + len(z) * np.log(2 * np.pi))
    normal = -0.5 * len(z) * (np.log(2 * np.pi * column.var()) + 1)
    return score if log_density - (N_KNOTS - 2) > normal else None


def scale_of(column: np.ndarray) -> float:
    """A robust scale, sensitive to levels but not to single outliers; 1 if constant."""
    column = column[np.isfinite(column)]
    if not len(column):
        return 1.0
    low, middle, high = np.quantile(column, [0.05, 0.5, 0.95])
    for width in ((high - low) / (2 * ndtri(0.95)), np.std(column - middle)):
        if width > ROUNDING * abs(middle) and np.isfinite(width):
            return float(width)
    return 1.0


def clock_of(times: np.ndarray | None) -> tuple[float, float] | None:
    """First time, and the median step from one to the next; None if there is none."""
    steps = np.diff(times) if times is not None else np.zeros(0)
    if not (steps > 0).any():
        return None
    return float(times[0]), float(np.median(steps[steps > 0]))


def first_observed(column: np.ndarray, default: float) -> float:
    """First value that is not missing."""
    column = column[np.isfinite(column)]
    return float(column[0]) if len(column) else default


def first_change(column: np.ndarray, level: float) -> int:
    """First row whose value is not that of the rows before it; the length if none.

    The value before the first row is the level, NaN if there is none.
    """
    if np.isnan(level):
        level = first_observed(column, 0.0)
    differs = np.abs(column - level) > ROUNDING * abs(level)
    return int(differs.argmax()) if differs.any() else len(column)


def _noise(column: np.ndarray) -> float:
    """Noise from differences of neighbors, which changes of the level hardly affect."""
    steps = np.diff(column)
    if not len(steps):
        return 1.0
    noise = np.median(np.abs(steps)) / ndtri(0.75) / np.sqrt(2)
    if noise == 0:  # more than half of the rows repeat the one before
        noise = np.sqrt(np.mean(np.clip(steps, -1, 1) ** 2) / 2)
    return float(np.clip(noise, LEAST_NOISE, 1.0)) if noise > 0 else 1.0


def dispersion_of(column: np.ndarray) -> float:
    """Dispersion d of counts, from pairs of neighbors; 0 if they may be Poisson.

    The squared difference of two with mean m has the mean 2 m + 2 d m^2, their product
    m^2. The largest differences are left out, as changes: 92 % of the variance of
    Poisson counts is left.
    """
    if len(column) < LEAST_ROWS or (column < 0).any() or (column % 1).any():
        return 0.0
    a, b = column[1:], column[:-1]
    kept = np.argsort(np.abs(a - b))[: int(0.99 * len(a))]
    a, b = a[kept], b[kept]
    square, total = ((a - b) ** 2).sum() / 0.92, (a + b).sum()
    # The ratio of n Poisson counts has a standard error of about sqrt(3 / n).
    if square <= total * (1 + 3 * np.sqrt(3 / len(column))):
        return 0.0
    return float((square - total) / (2 * max(a @ b, 1.0)))
