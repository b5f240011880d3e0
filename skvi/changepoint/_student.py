"""Student's t distribution: the prediction if mean and variance are unknown."""

import math

import numpy as np
from scipy.special import betaln, gammaln

__all__ = ["log_gamma_ratio", "log_power_integral", "log_student"]

# From here on five terms of the asymptotic series are exact to rounding.
LARGE = 32.0


def log_gamma_ratio(shape: np.ndarray) -> np.ndarray:
    """Return log Gamma(shape + 1/2) - log Gamma(shape), without cancellation."""
    a = np.maximum(shape, LARGE)
    x = 1 / (a * a)
    series = 1 / 8 - x * (1 / 192 - x * (1 / 640 - x * (17 / 14336)))
    found = 0.5 * np.log(a) - series / a
    small = shape < LARGE
    if small.any():
        s = shape[small]
        found[small] = gammaln(s + 0.5) - gammaln(s)
    return found


def log_student(
    error: np.ndarray, shape: np.ndarray, rate: np.ndarray, leverage: np.ndarray
) -> np.ndarray:
    """Log density at a given distance from the mean.

    The mean is normal with variance ``leverage`` times that of the noise, and the
    variance of the noise is inverse gamma; all arrays broadcast.
    """
    width = 2 * rate * (1 + leverage)
    return (
        log_gamma_ratio(shape)
        - 0.5 * np.log(math.pi * width)
        - (shape + 0.5) * np.log1p(error * error / width)
    )


def log_power_integral(
    power: float, shape: np.ndarray, rate: np.ndarray, leverage: np.ndarray
) -> np.ndarray:
    """Log of the integral of the density to a power, at least 1."""
    width = 2 * rate * (1 + leverage)
    at_mode = log_gamma_ratio(shape) - 0.5 * np.log(math.pi * width)
    return (
        power * at_mode + 0.5 * np.log(width) + betaln(0.5, power * (shape + 0.5) - 0.5)
    )
