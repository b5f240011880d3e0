"""Continuous targets with normal noise."""

import math
from numbers import Real

import torch

from skvi.likelihoods.base import Expectations, Likelihood
from skvi.utils._random import randn
from skvi.utils._validation import Interval, StrOptions

__all__ = ["GaussianLikelihood"]

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class GaussianLikelihood(Likelihood):
    """y = f + noise, with normal noise.

    Parameters
    ----------
    noise_scale : float or "learn", default=1.0
        Standard deviation of the noise, in units of y. "learn" has the fit find
        the value with the largest evidence (type-II maximum likelihood).

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> GaussianLikelihood(2.0).log_prob(torch.zeros(1, 1, 1), torch.zeros(1))
    tensor([[-1.6121]])
    """

    _parameter_constraints: dict = {
        "noise_scale": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"learn"}),
        ]
    }

    _bound_scale: torch.Tensor | None = None

    def __init__(self, noise_scale: float | str = 1.0) -> None:
        self.noise_scale = noise_scale

    @property
    def learnt(self) -> tuple[str, ...]:  # type: ignore[override]
        """The noise scale, where it is "learn"."""
        return ("noise_scale",) if isinstance(self.noise_scale, str) else ()

    def initial_hyper(self, y: torch.Tensor) -> torch.Tensor:
        """Log of half a robust scale of y, (1,); see `Likelihood.initial_hyper`."""
        if not self.learnt:
            return super().initial_hyper(y)
        # The median distance can be 0 where most targets are equal.
        median = 1.4826 * (y - y.median()).abs().median()
        scale = median if float(median) > 0 else y.std(correction=0)
        scale = scale if float(scale) > 0 else torch.ones_like(scale)
        return torch.log(0.5 * scale).to(torch.float64).reshape(1)

    def bind(self, hyper: torch.Tensor) -> "GaussianLikelihood":
        """Return the likelihood whose noise scale is ``exp(hyper)``."""
        if not self.learnt:
            return self
        bound = GaussianLikelihood()
        bound._bound_scale = hyper[0].exp()
        return bound

    @property
    def _scale(self) -> torch.Tensor:
        if self._bound_scale is not None:
            return self._bound_scale
        if self.learnt:
            raise ValueError(
                "GaussianLikelihood(noise_scale='learn') has no value before a fit "
                "binds one; give a number."
            )
        return torch.tensor(float(self.noise_scale), dtype=torch.float64)

    @property
    def length_scale(self) -> float:
        """The scale of the noise."""
        return float(self._scale)

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

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Return f itself, (S, n)."""
        return f[..., 0]

    def log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Residual over the noise variance, (S, n)."""
        return (y - f[..., 0]) / self._scale**2

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n)."""
        f = f[..., 0]
        return f + self._scale.to(f.dtype) * randn(generator, *f.shape, dtype=f.dtype)

    def expected_log_prob(
        self, mean: torch.Tensor, spread: torch.Tensor, y: torch.Tensor, refine: int = 1
    ) -> Expectations:
        """Closed form; see `Likelihood.expected_log_prob`."""
        precision = self._scale**-2
        value = self.log_prob(mean[None, :, None], y)[0]
        first = (y - mean) * precision
        second = torch.zeros_like(mean) - precision
        return value - 0.5 * precision * spread.square(), first, second

    def expected_power(
        self,
        mean: torch.Tensor,
        spread: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        """Closed form; see `Likelihood.expected_power`."""
        return self._expected_power(mean, spread, y, c, torch.zeros_like(mean))

    def _expected_power(
        self,
        mean: torch.Tensor,
        spread: torch.Tensor,
        y: torch.Tensor,
        c: float,
        log_factor: torch.Tensor,
    ) -> Expectations:
        log_scale = self._scale.log()
        variance = self._scale**2 + c * spread.square()
        log_norm = log_scale - 0.5 * variance.log() - c * (HALF_LOG_2PI + log_scale)
        z = y - mean
        value = torch.exp(log_factor + log_norm - 0.5 * c * z.square() / variance)
        first = value * c * z / variance
        second = value * (c / variance) * (c * z.square() / variance - 1)
        return value, first, second

    def expected_power_integral(
        self, mean: torch.Tensor, spread: torch.Tensor, c: float, refine: int = 1
    ) -> Expectations:
        """A constant: the integral does not depend on f."""
        value = torch.exp(self.log_power_integral(mean[None, :, None], c))[0]
        return value, torch.zeros_like(mean), torch.zeros_like(mean)

    def expected_escort_power(
        self,
        mean: torch.Tensor,
        spread: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        """Closed form; see `Likelihood.expected_escort_power`."""
        # The integral does not depend on f; large orders need the sum of logarithms.
        log_norm = self.log_power_integral(mean[None, :, None], c)[0]
        return self._expected_power(mean, spread, y, c - 1, -(c - 1) / c * log_norm)
