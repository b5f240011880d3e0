"""Student's t distribution: the prediction if mean and variance are unknown."""

import math

import numpy as np
from scipy.special import betaln, gammaln

__all__ = ["GammaRatios", "log_gamma_ratio", "log_power_integral", "log_student"]

# From here on five terms of the asymptotic series are exact to rounding.
LARGE = 32.0
LONGEST_TABLE = 2**15


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


class GammaRatios:
    """Table of `log_gamma_ratio` - log(2 pi) / 2 for shapes first, first + step, ...

    These are the normalizing constants of Student's t; `first` has shape (n_models,).
    """

    def __init__(self, first: np.ndarray, step: float) -> None:
        self.first, self.step = first[:, None], step
        self.table = np.zeros((len(first), 0))

    def __call__(self, model: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Look up models, (K,), after the given steps, (R, ..., K), increasing in R."""
        top = int(count[-1].max()) + 1
        if top > self.table.shape[1]:
            size = min(max(top, 2 * self.table.shape[1], 128), LONGEST_TABLE)
            self.table = constant(self.first + self.step * np.arange(size))
        size = self.table.shape[1]
        place = count.astype(np.intp)
        if top > size:
            np.minimum(place, size - 1, out=place)
        if len(self.table) > 1:
            place += model * size
        found = self.table.ravel()[place]
        if top > size:
            far = count >= size
            first = np.broadcast_to(self.first[model, 0], far.shape)
            found[far] = constant(first[far] + self.step * count[far])
        return found


def constant(shape: np.ndarray) -> np.ndarray:
    """Log of the normalizing constant, without the scale."""
    return log_gamma_ratio(shape) - 0.5 * math.log(2 * math.pi)


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
