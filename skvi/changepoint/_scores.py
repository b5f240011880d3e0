"""Normal scores: a monotone function of each series after which its noise is normal.

Under normal noise the few large values of skewed or heavy-tailed noise look like short
segments of their own, and the many small ones like segments with less noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import CubicHermiteSpline
from scipy.special import ndtr, ndtri

__all__ = ["N_KNOTS", "NormalScore", "moments"]

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
    """Mean and standard deviation, (R, n_series), of values with normal scores."""
    nodes = ndtri((np.arange(N_NODES) + 0.5) / N_NODES)
    mean, std = mean.copy(), std.copy()
    for j, score in enumerate(scores):
        if score is not None:
            x = score.inverse(mean[:, j, None] + std[:, j, None] * nodes)
            mean[:, j], std[:, j] = x.mean(1), x.std(1)
    return mean, std
