"""Robust location and scale of weighted data."""

import numpy as np

# Standard deviation per median distance of a normal distribution.
PER_DISTANCE = 1.4826


def weighted_median(values: np.ndarray, w: np.ndarray) -> float:
    """Smallest value with half of the weight at or below it."""
    order = np.argsort(values)
    below = np.cumsum(w[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def median_distance(values: np.ndarray, w: np.ndarray, center: float) -> float:
    """1.4826 times the median distance from the center: a standard deviation."""
    return PER_DISTANCE * weighted_median(np.abs(values - center), w)
