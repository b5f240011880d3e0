"""Units of a series: location, scale, noise and normal scores of its burn-in.

A normal score is a monotone function after which the noise is normal. Under normal
noise the few large values of skewed or heavy-tailed noise look like short segments of
their own, and the many small ones like segments with less noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import CubicHermiteSpline
from scipy.special import ndtr, ndtri

from skvi.changepoint.base import BurnIn

# Fewer rows say too little of ties, or of the dispersion of counts.
LEAST_ROWS = 20
# Smallest noise, in units of the scale: rounded or constant series have none.
LEAST_NOISE = 1e-3
# Values that differ by no more of their size are equal.
ROUNDING = 1e-15
# Quantiles that the function passes through: two, a location and a scale, were free.
N_KNOTS = 7
# Points between two knots, at which the inverse is exact.
N_BETWEEN = 50
# Predictive quantiles whose moments are those of a prediction: the tails of the inverse
# are exponential, and the moments of a t distribution there infinite.
N_NODES = 100


@dataclass(frozen=True)
class NormalScore:
    """A cubic between quantiles of a series, (n_knots,), and a logarithm beyond them.

    `slopes` are those at the knots.
    """

    quantiles: np.ndarray
    scores: np.ndarray
    slopes: np.ndarray

    @classmethod
    def of(cls, column: np.ndarray) -> "NormalScore | None":
        """Measure observed values; None if too many are equal, or too few."""
        n = len(column)
        top = ndtri(1 - 1.5 / max(n, N_KNOTS))
        scores = np.linspace(-top, top, N_KNOTS)
        quantiles = np.quantile(column, ndtr(scores), method="hazen") if n else scores
        gaps = np.diff(quantiles)
        if n < 5 * N_KNOTS or gaps.min() <= 1e-6 * gaps.max():
            return None
        secant = np.diff(scores) / gaps
        between = 2 / (1 / secant[1:] + 1 / secant[:-1])  # no overshoot
        return cls(quantiles, scores, np.array([secant[0], *between, secant[-1]]))

    def __call__(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores of values of any shape, and the logarithms of the slope there."""
        q, spline = self.quantiles, CubicHermiteSpline(*self._knots)
        inside = np.clip(x, q[0], q[-1])
        is_low = x < q[0]
        width = np.where(is_low, q[1] - q[0], q[-1] - q[-2])
        excess = np.log1p(np.abs(x - inside) / width)
        rise = np.where(is_low, -self.slopes[0], self.slopes[-1]) * width
        slope = spline(inside, nu=1)
        return spline(inside) + rise * excess, np.log(slope) - excess

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """Values of scores, of any shape."""
        q, s = self.quantiles, self.slopes
        fine = np.interp(
            np.arange((len(q) - 1) * N_BETWEEN + 1) / N_BETWEEN, np.arange(len(q)), q
        )
        x = np.interp(z, CubicHermiteSpline(*self._knots)(fine), fine)
        for end, width, sign in ((0, q[1] - q[0], -1), (-1, q[-1] - q[-2], 1)):
            beyond = np.maximum(sign * (z - self.scores[end]), 0.0)
            x = x + sign * width * np.expm1(beyond / (s[end] * width))
        return x

    @property
    def _knots(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.quantiles, self.scores, self.slopes


def moments(
    scores: Sequence[NormalScore | None], mean: np.ndarray, std: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, (n, n_series), of values with normal scores.

    Infinite ones stay as they are.
    """
    nodes = ndtri((np.arange(N_NODES) + 0.5) / N_NODES)
    mean, std = mean.copy(), std.copy()
    for j, score in enumerate(scores):
        if score is None:
            continue
        finite = np.flatnonzero(np.isfinite(std[:, j]))
        # In parts: nodes of all rows of a long series would fill the memory.
        for i in np.array_split(finite, 1 + len(finite) // N_NODES):
            x = score.inverse(mean[i, j, None] + std[i, j, None] * nodes)
            mean[i, j], std[i, j] = x.mean(1), x.std(1)
    return mean, std


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
    # A given scale may be that of anything.
    own = [1.0 if given is None else scale_of(column) for column in units]
    pairs = zip(units, own, strict=True)
    noise = np.array([unit * _noise(column / unit) for column, unit in pairs])
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
    """Noise from differences of neighbors, which changes of the level hardly affect.

    The column is in units of its scale.
    """
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
