"""Student's t distribution: the prediction where mean and variance are unknown."""

import math

import numpy as np
from scipy.special import betaln, gammaln

__all__ = ["log_power_integral", "log_student"]


def log_student(
    error: np.ndarray, shape: np.ndarray, rate: np.ndarray, spread: np.ndarray
) -> np.ndarray:
    """Log density at some distance from the mean.

    The mean is normal with variance ``spread`` times that of the noise, and the
    variance of the noise is inverse gamma; all arrays are of one shape.
    """
    width = 2 * rate * (1 + spread)
    return (
        gammaln(shape + 0.5)
        - gammaln(shape)
        - 0.5 * np.log(math.pi * width)
        - (shape + 0.5) * np.log1p(error * error / width)
    )


def log_power_integral(
    power: float, shape: np.ndarray, rate: np.ndarray, spread: np.ndarray
) -> np.ndarray:
    """Log of the integral of the density to a power, at least 1."""
    width = 2 * rate * (1 + spread)
    at_mode = gammaln(shape + 0.5) - gammaln(shape) - 0.5 * np.log(math.pi * width)
    return (
        power * at_mode + 0.5 * np.log(width) + betaln(0.5, power * (shape + 0.5) - 0.5)
    )
