"""Continuous targets with normal noise."""

import math

import torch

from skvi.likelihoods._noise import NoiseLikelihood
from skvi.likelihoods.base import Expectations
from skvi.utils._log_space import LOG_2PI
from skvi.utils._row_pass import RowBuffers, RowPass

__all__ = ["GaussianLikelihood"]

HALF_LOG_2PI = 0.5 * LOG_2PI


class GaussianLikelihood(NoiseLikelihood):
    """y = f + noise, with normal noise.

    Parameters
    ----------
    noise_scale : float or "learn", default="learn"
        Standard deviation of the noise, in units of y. "learn" finds the value with the
        largest ELBO (type-II maximum likelihood where q is exact).

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> GaussianLikelihood(2.0).log_prob(torch.zeros(1, 1, 1), torch.zeros(1))
    tensor([[-1.6121]])
    """

    is_normal = True
    is_log_concave = True
    _standard_variance = 1.0

    def __init__(self, noise_scale: float | str = "learn") -> None:
        self.noise_scale = noise_scale

    def _standard_log_prob(self, z: torch.Tensor) -> torch.Tensor:
        """Log density of noise of scale 1, elementwise."""
        return -0.5 * z.square() - HALF_LOG_2PI

    def _standard_slope(self, z: torch.Tensor) -> torch.Tensor:
        """Return z itself."""
        return z

    def _standard_cdf(self, z: torch.Tensor) -> torch.Tensor:
        """Probability that noise of scale 1 is less than z, elementwise."""
        return torch.special.ndtr(z)

    def _standard_log_cdf(self, z: torch.Tensor) -> torch.Tensor:
        """Without underflow; see `NoiseLikelihood._standard_log_cdf`."""
        return torch.special.log_ndtr(z)

    def _standard_tail_moment(self, z: torch.Tensor) -> torch.Tensor:
        """Closed form; see `NoiseLikelihood._standard_tail_moment`."""
        tail, density = torch.special.ndtr(-z), self._standard_log_prob(z).exp()
        return (1 - z.square()) * tail + z * density

    def _standard_quantile(self, level: torch.Tensor) -> torch.Tensor:
        """Quantiles of noise of scale 1, elementwise."""
        return torch.special.ndtri(level)

    @property
    def tail_curvature(self) -> float:  # type: ignore[override]
        """Precision of the noise."""
        return float(self._scale) ** -2

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Return (1 - c)/2 log(2 pi s^2) - log(c)/2 for every row, (S, n)."""
        log_norm = HALF_LOG_2PI + self._scale.log()
        return torch.zeros_like(f[..., 0]) + (1 - c) * log_norm - 0.5 * math.log(c)

    def _row_pass(self, buffers: RowBuffers) -> RowPass:
        """Closed form; see `Likelihood._row_pass`."""
        return _GaussianPass(self, buffers)

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Closed form; see `Likelihood.expected_log_loss`."""
        precision = self._scale**-2
        value = self.log_prob(mean[None, :, None], y)[0]
        first = (mean - y) * precision
        second = torch.zeros_like(mean) + precision
        return 0.5 * precision * std_or_cov.square() - value, first, second

    def _expected_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        log_factor: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        log_scale = self._scale.log()
        variance = self._scale**2 + c * std_or_cov.square()
        log_norm = log_scale - 0.5 * variance.log() - c * (HALF_LOG_2PI + log_scale)
        z = y - mean
        value = torch.exp(log_factor + log_norm - 0.5 * c * z.square() / variance)
        first = value * c * z / variance
        second = value * (c / variance) * (c * z.square() / variance - 1)
        return value, first, second


class _GaussianPass(RowPass):
    def __init__(self, likelihood: GaussianLikelihood, buffers: RowBuffers) -> None:
        super().__init__()
        f, slope, self._log_scale, for_scale = buffers
        self._fixed: float | None = None
        if not likelihood.learned:
            self._fixed = math.log(float(likelihood.noise_scale))
            self._log_scale = f.new_full((len(f), 1), self._fixed)
            for_scale = torch.empty_like(self._log_scale)
        self._for_scale = for_scale[:, 0]
        self._f, self._slope = f.squeeze(3), slope.squeeze(3)
        self._residual = torch.empty_like(self._slope)
        self._squares = torch.empty_like(self._slope)
        self._precision = torch.empty_like(self._log_scale)
        # A number, or a tensor of another dtype, would take longer.
        self._minus_two = torch.full_like(self._precision, -2.0)
        self._factor = torch.empty_like(self._slope[:, :1])
        self._by_row = self._precision[:, None]

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        torch.mul(self._log_scale, self._minus_two, out=self._precision).exp_()
        torch.mul(weight, self._by_row, out=self._factor)
        torch.sub(self._f, y, out=self._residual)
        torch.mul(self._residual, self._factor, out=self._slope)
        # Squares in units of the noise; they average to about one per term.
        squares = torch.mul(self._slope, self._residual, out=self._squares).sum((1, 2))
        torch.sub(count, squares, out=self._for_scale)
        return squares, count

    def _values(self, found: list[torch.Tensor], hyper: torch.Tensor) -> torch.Tensor:
        squares, count = (x.double() for x in found)
        level = hyper[..., 0] if self._fixed is None else self._fixed
        return 0.5 * squares + count * (level + HALF_LOG_2PI)
