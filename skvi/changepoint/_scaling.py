"""Units of a series: location, scale and noise of its burn-in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from skvi.changepoint.base import BurnIn

__all__ = ["Scaling", "first_change", "first_observed", "measure", "scale_of"]

# Smallest noise, in units of the scale: rounded or constant series have none.
LEAST_NOISE = 1e-3
# Values that differ by no more of their size are equal.
ROUNDING = 1e-15


@dataclass(frozen=True)
class Scaling:
    """Location and scale of every series, (n_series,), and the burn-in for models."""

    location: np.ndarray
    scale: np.ndarray
    burn_in: BurnIn


def measure(
    columns: Sequence[np.ndarray],
    given: tuple[np.ndarray, np.ndarray] | None,
    n_features: int,
) -> Scaling:
    """Measure the first rows of every series, with NaN where missing.

    Location and scale may be given.
    """
    columns = [column[np.isfinite(column)] for column in columns]
    if given is not None:
        location, scale = given
    else:
        location = np.array([np.median(c) if len(c) else 0.0 for c in columns])
        scale = np.array([scale_of(column) for column in columns])
    units = [(c - a) / b for c, a, b in zip(columns, location, scale, strict=True)]
    noise = np.array([_noise(column) for column in units])
    mean = np.array([column.mean() if len(column) else 0.0 for column in units])
    return Scaling(location, scale, BurnIn(len(columns), n_features, noise, mean))


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
