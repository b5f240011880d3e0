"""Normal noise of one scale, and of a scale that depends on the features."""

import math
from copy import copy
from operator import attrgetter
from typing import Any

import torch

from skvi.likelihoods._noise import NoiseLikelihood, NoisePass
from skvi.likelihoods.base import Expectations, Likelihood
from skvi.utils._rows import RowBuffers, RowPass
from skvi.utils._tensors import LOG_2PI

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


class HeteroscedasticLikelihood(Likelihood):
    """y = f_0 + noise, and a second column of f is the log of the noise's scale.

    The scale is ``noise_scale * exp(g)`` with ``g = 6 tanh(f_1 / 6)``, or with 1 in
    place of 6 for noise of logarithms, which is f_1 up to rounding near 0: where f_1 is
    0, as its prior expects, the noise is that of `noise` alone, and `noise_scale` is
    its level, fixed or learned.

    Parameters
    ----------
    noise : GaussianLikelihood, StudentTLikelihood or None, default=None
        Shape of the noise and level of its scale. None is ``GaussianLikelihood()``.

    Notes
    -----
    The scale lies within a factor of 400 of its level, so that the densities of exactly
    fitted rows are bounded.

    References
    ----------
    Nix and Weigend (1994), *Estimating the mean and variance of the target
    probability distribution*.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood, HeteroscedasticLikelihood
    >>> likelihood = HeteroscedasticLikelihood(GaussianLikelihood(0.5))
    >>> f = torch.tensor([[[0.0, 0.0], [0.0, 1.0]]])
    >>> likelihood.variance(f).sqrt()
    tensor([[0.5000, 1.3468]])
    """

    _parameter_constraints: dict = {"noise": [NoiseLikelihood, None]}
    has_expectations = False
    n_outputs = 2
    scale_outputs = noise_outputs = (1,)

    def __init__(self, noise: NoiseLikelihood | None = None) -> None:
        self.noise = noise

    @property
    def level(self) -> NoiseLikelihood:
        """Shape of the noise, and level of its scale."""
        return GaussianLikelihood() if self.noise is None else self.noise

    # As of the noise.
    learned: Any = property(attrgetter("level.learned"))
    is_normal: Any = property(attrgetter("level.is_normal"))
    _learned_limits: Any = property(attrgetter("level._learned_limits"))
    _length_scale: Any = property(attrgetter("level._length_scale"))

    def initial_hyper(self, y: torch.Tensor) -> torch.Tensor:
        """That of constant noise; see `Likelihood.initial_hyper`."""
        return self.level.initial_hyper(y)

    def bind(self, hyper: torch.Tensor) -> Any:
        """Return the likelihood whose level is ``exp(hyper)``."""
        if not self.learned:
            return self
        bound = copy(self)
        bound.noise = self.level.bind(hyper)
        return bound

    def _at_rows(self, f: torch.Tensor) -> NoiseLikelihood:
        """Noise with the scales of rows.

        Parameters
        ----------
        f : Tensor of shape (S, n, 2)

        Returns
        -------
        NoiseLikelihood
            With scales of shape (S, n).
        """
        reach = self.level.scale_reach
        ratio = torch.exp(reach * torch.tanh(f[..., 1] / reach))
        return self.level._at_scale(self.level._scale * ratio)

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density, (S, n)."""
        return self._at_rows(f).log_prob(f, y)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """That of the noise at the scale of each row, (S, n)."""
        return self._at_rows(f).log_power_integral(f, c)

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """First column of f, plus the mean of the noise, (S, n)."""
        return self._at_rows(f).mean(f)

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Variance of the noise of each row, (S, n)."""
        return self._at_rows(f).variance(f)

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of less than y, (S, n)."""
        return self._at_rows(f).cdf(f, y)

    def quantile(self, f: torch.Tensor, level: float | torch.Tensor) -> torch.Tensor:
        """Quantile of y, (S, n)."""
        return self._at_rows(f).quantile(f, level)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n)."""
        return self._at_rows(f).sample(f, generator)

    def _log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Closed form; see `Likelihood._log_prob_slope`."""
        noise = self._at_rows(f)
        z = noise._residual(f, y)
        slope = noise._standard_slope(z)
        inside = 1 - torch.tanh(f[..., 1] / self.level.scale_reach).square()
        return torch.stack([slope / noise._scale, (z * slope - 1) * inside], -1)

    def _row_pass(self, buffers: RowBuffers) -> RowPass:
        """Closed form; see `Likelihood._row_pass`."""
        return NoisePass(self.level, buffers, self.level.scale_reach)
