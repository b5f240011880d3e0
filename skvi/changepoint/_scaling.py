"""Units of a series: location, scale and noise of its burn-in."""

from dataclasses import dataclass

import numpy as np

from skvi.changepoint._rows import BurnIn

__all__ = ["Scaling", "measure"]

# Quantiles of a normal distribution at this number of standard deviations.
TAIL, WIDTH = 0.05, 3.2897072539029435
MAD = 1.4826022185056018
# Smallest noise, in units of the scale: rounded or constant series have none.
LEAST_NOISE = 1e-3


@dataclass(frozen=True)
class Scaling:
    """Location and scale of every series, (n_series,), and the burn-in for models."""

    location: np.ndarray
    scale: np.ndarray
    burn_in: BurnIn


def measure(
    rows: np.ndarray,
    given: tuple[np.ndarray, np.ndarray] | None,
    support: str,
    n_features: int,
) -> Scaling:
    """Measure the first rows of a series, (n, n_series), with NaN where missing.

    Parameters
    ----------
    rows : ndarray of shape (n, n_series)
    given : (location, scale) or None
        Given by the user, if not to be estimated.
    support : str
        Counts and binary data keep their units.
    n_features : int
    """
    n_series = rows.shape[1]
    if given is not None:
        location, scale = given
    elif support != "real":
        location, scale = np.zeros(n_series), np.ones(n_series)
    else:
        location, scale = np.transpose([_location_and_scale(c) for c in rows.T])
    units = (rows - location) / scale
    noise = np.array([_noise(column) for column in units.T])
    mean = np.array([_mean(column) for column in units.T])
    return Scaling(location, scale, BurnIn(n_series, n_features, noise, mean))


def _location_and_scale(column: np.ndarray) -> tuple[float, float]:
    """Median and a robust scale, sensitive to levels but not to single outliers."""
    column = column[np.isfinite(column)]
    if not len(column):
        return 0.0, 1.0
    low, middle, high = np.quantile(column, [TAIL, 0.5, 1 - TAIL])
    for width in ((high - low) / WIDTH, np.std(column), abs(middle)):
        if width > 1e-12 * abs(middle) and np.isfinite(width):
            return float(middle), float(width)
    return float(middle), 1.0


def _noise(column: np.ndarray) -> float:
    """Noise from differences of neighbors, which changes of the level hardly affect."""
    steps = np.diff(column[np.isfinite(column)])
    if not len(steps):
        return 1.0
    noise = MAD * np.median(np.abs(steps)) / np.sqrt(2)
    if noise == 0:  # more than half of the rows repeat the one before
        noise = np.sqrt(np.mean(np.clip(steps, -1, 1) ** 2) / 2)
    return float(np.clip(noise, LEAST_NOISE, 1.0)) if noise > 0 else 1.0


def _mean(column: np.ndarray) -> float:
    column = column[np.isfinite(column)]
    return float(column.mean()) if len(column) else 0.0
