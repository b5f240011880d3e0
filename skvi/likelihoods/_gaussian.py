"""Continuous targets with normal noise."""

import math
from numbers import Real

import torch

from skvi.likelihoods.base import Expectations, Likelihood
from skvi.utils._random import randn
from skvi.utils._validation import Interval

__all__ = ["GaussianLikelihood"]


class GaussianLikelihood(Likelihood):
    """y = f + noise, with normal noise.

    Parameters
    ----------
    noise_scale : float, default=1.0
        Standard deviation of the noise, in units of y.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> GaussianLikelihood(2.0).log_prob(torch.zeros(1, 1, 1), torch.zeros(1))
    tensor([[-1.6121]])
    """

    _parameter_constraints: dict = {
        "noise_scale": [Interval(Real, 0, None, closed="neither")]
    }

    def __init__(self, noise_scale: float = 1.0) -> None:
        self.noise_scale = noise_scale

    @property
    def length_scale(self) -> float:
        """The scale of the noise."""
        return float(self.noise_scale)

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density, (S, n)."""
        z = (y - f[..., 0]) / self.noise_scale
        return -0.5 * z.square() - math.log(self.noise_scale * math.sqrt(2 * math.pi))

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Return (1 - c)/2 log(2 pi s^2) - log(c)/2 for every row, (S, n)."""
        log_norm = math.log(2 * math.pi * self.noise_scale**2)
        return torch.full_like(f[..., 0], 0.5 * (1 - c) * log_norm - 0.5 * math.log(c))

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Return f itself, (S, n)."""
        return f[..., 0]

    def log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Residual over the noise variance, (S, n)."""
        return (y - f[..., 0]) / self.noise_scale**2

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n)."""
        f = f[..., 0]
        return f + self.noise_scale * randn(generator, *f.shape).to(f.dtype)

    def expected_log_prob(
        self, mean: torch.Tensor, std: torch.Tensor, y: torch.Tensor, refine: int = 1
    ) -> Expectations:
        """Closed form; see `Likelihood.expected_log_prob`."""
        precision = self.noise_scale**-2
        value = self.log_prob(mean[None, :, None], y)[0]
        first = (y - mean) * precision
        second = torch.full_like(mean, -precision)
        return value - 0.5 * precision * std.square(), first, second

    def expected_power(
        self,
        mean: torch.Tensor,
        std: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        """Closed form; see `Likelihood.expected_power`."""
        variance = self.noise_scale**2 + c * std.square()
        log_norm = 0.5 * math.log(self.noise_scale**2) - 0.5 * variance.log()
        log_norm = log_norm - 0.5 * c * math.log(2 * math.pi * self.noise_scale**2)
        z = y - mean
        value = torch.exp(log_norm - 0.5 * c * z.square() / variance)
        first = value * c * z / variance
        second = value * (c / variance) * (c * z.square() / variance - 1)
        return value, first, second

    def expected_power_integral(
        self, mean: torch.Tensor, std: torch.Tensor, c: float, refine: int = 1
    ) -> Expectations:
        """A constant: the integral does not depend on f."""
        value = torch.exp(self.log_power_integral(mean[None, :, None], c))[0]
        return value, torch.zeros_like(mean), torch.zeros_like(mean)
