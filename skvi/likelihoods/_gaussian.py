"""Continuous targets with normal noise."""

import math

import torch

from skvi.likelihoods._noise import NoiseLikelihood
from skvi.likelihoods.base import Expectations
from skvi.utils._device import CPU
from skvi.utils._log_space import LOG_2PI
from skvi.utils._row_sums import RowSums

__all__ = ["GaussianLikelihood"]

HALF_LOG_2PI = 0.5 * LOG_2PI
# As tensors: numbers in products with small tensors take longer than the products.
MINUS_HALF, MINUS_TWO = torch.tensor([-0.5, -2.0], dtype=torch.float64, device=CPU)
LEVEL = torch.tensor(HALF_LOG_2PI + 0.5, dtype=torch.float64, device=CPU)


class GaussianLikelihood(NoiseLikelihood):
    """y = f + noise, with normal noise.

    Parameters
    ----------
    noise_scale : float or "learn", default=1.0
        Standard deviation of the noise, in units of y. "learn" has the fit find
        the value with the largest ELBO (type-II maximum likelihood where q is exact).

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> GaussianLikelihood(2.0).log_prob(torch.zeros(1, 1, 1), torch.zeros(1))
    tensor([[-1.6121]])
    """

    def __init__(self, noise_scale: float | str = 1.0) -> None:
        self.noise_scale = noise_scale

    @property
    def tail_curvature(self) -> float:  # type: ignore[override]
        """Precision of the noise."""
        return float(self._scale) ** -2

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density, (S, n)."""
        z = (y - f[..., 0]) / self._scale
        return -0.5 * z.square() - self._scale.log() - HALF_LOG_2PI

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Return (1 - c)/2 log(2 pi s^2) - log(c)/2 for every row, (S, n)."""
        log_norm = HALF_LOG_2PI + self._scale.log()
        return torch.zeros_like(f[..., 0]) + (1 - c) * log_norm - 0.5 * math.log(c)

    def log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Residual over the noise variance, (S, n)."""
        return (y - f[..., 0]) / self._scale**2

    has_log_loss_sums = True

    def log_loss_sums(
        self,
        hyper: torch.Tensor,
        f: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
    ) -> RowSums:
        """Closed form; see `Likelihood.log_loss_sums`."""
        log_scale = hyper
        if not self.learnt:
            log_scale = f.new_full((len(f), 1), math.log(float(self._scale)))
        residual, slope = f.squeeze(3) - y, out.squeeze(3)
        precision = torch.exp(log_scale * MINUS_TWO).unsqueeze(1)
        torch.mul(residual, weight * precision, out=slope)
        # Sums of squares in units of the noise, beside what they are on average.
        squares = torch.linalg.vecdot(slope.flatten(1), residual.flatten(1))
        count = weight.expand_as(residual).sum((1, 2))
        shortfall = count - squares
        level = log_scale.squeeze(1) + LEVEL
        value = torch.addcmul(shortfall * MINUS_HALF, count, level)
        return RowSums(value, shortfall.unsqueeze(1) if self.learnt else hyper)

    def expected_log_prob(
        self, mean: torch.Tensor, spread: torch.Tensor, y: torch.Tensor, refine: int = 1
    ) -> Expectations:
        """Closed form; see `Likelihood.expected_log_prob`."""
        precision = self._scale**-2
        value = self.log_prob(mean[None, :, None], y)[0]
        first = (y - mean) * precision
        second = torch.zeros_like(mean) - precision
        return value - 0.5 * precision * spread.square(), first, second

    def _expected_power(
        self,
        mean: torch.Tensor,
        spread: torch.Tensor,
        y: torch.Tensor,
        c: float,
        log_factor: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        log_scale = self._scale.log()
        variance = self._scale**2 + c * spread.square()
        log_norm = log_scale - 0.5 * variance.log() - c * (HALF_LOG_2PI + log_scale)
        z = y - mean
        value = torch.exp(log_factor + log_norm - 0.5 * c * z.square() / variance)
        first = value * c * z / variance
        second = value * (c / variance) * (c * z.square() / variance - 1)
        return value, first, second
