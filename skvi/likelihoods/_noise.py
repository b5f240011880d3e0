"""Noise with a scale, fixed or learned."""

import math
from copy import copy
from numbers import Real
from typing import Any, Self

import torch

from skvi.likelihoods.base import Likelihood
from skvi.utils._device import CPU
from skvi.utils._random import randn
from skvi.utils._row_pass import RowBuffers, RowPass
from skvi.utils._validation import Interval, StrOptions


class NoiseLikelihood(Likelihood):
    """Base class: y = f + noise of one shape, with a scale.

    A subclass takes a `noise_scale`, and implements `log_power_integral` and the
    methods whose names begin with "standard", for noise of scale 1. Quadrature over a
    normal f, which networks do not need, also asks for `expected_log_loss` and
    `_expected_power`.

    Examples
    --------
    >>> from skvi.likelihoods import GaussianLikelihood, NoiseLikelihood
    >>> issubclass(GaussianLikelihood, NoiseLikelihood)
    True
    """

    _parameter_constraints: dict = {
        "noise_scale": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"learn"}),
        ]
    }

    is_location = True
    gamma_block = ("noise_precision", -0.5)
    noise_scale: float | str
    _bound_scale: torch.Tensor | None = None

    @property
    def learned(self) -> tuple[str, ...]:  # type: ignore[override]
        """The noise scale, where it is "learn"."""
        is_bound = self._bound_scale is not None
        return ("noise_scale",) if self.noise_scale == "learn" and not is_bound else ()

    def initial_hyper(self, y: torch.Tensor) -> torch.Tensor:
        """Log of half a robust scale of y, (1,); see `Likelihood.initial_hyper`."""
        if not self.learned:
            return super().initial_hyper(y)
        # The median distance can be 0 where most targets are equal.
        median = 1.4826 * (y - y.median()).abs().median()
        scale = median if float(median) > 0 else y.std(correction=0)
        scale = scale if float(scale) > 0 else torch.ones_like(scale)
        return torch.log(0.5 * scale).to(torch.float64).reshape(1)

    def bind(self, hyper: torch.Tensor) -> Any:
        """Return the likelihood whose noise scale is ``exp(hyper)``."""
        if not self.learned:
            return self
        bound = copy(self)
        bound._bound_scale = hyper[0].exp()
        return bound

    def at_scale(self, scale: torch.Tensor) -> Self:
        """Return the same noise with other scales.

        Parameters
        ----------
        scale : Tensor of shape (S, n)
            In units of y; any shape that broadcasts to it.

        Returns
        -------
        NoiseLikelihood
        """
        bound = copy(self)
        bound._bound_scale = scale
        return bound

    def at_rows(self, f: torch.Tensor) -> Self:
        """Return the noise of rows, the same for all.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)

        Returns
        -------
        NoiseLikelihood
        """
        return self

    @property
    def scale(self) -> torch.Tensor:
        """Scale of the noise, in units of y: a scalar, or what `at_scale` gave."""
        return self._scale

    def standard_log_prob(self, z: torch.Tensor) -> torch.Tensor:
        """Log density of noise of scale 1.

        Parameters
        ----------
        z : Tensor

        Returns
        -------
        Tensor
            In nats, elementwise.
        """
        raise NotImplementedError

    def standard_slope(self, z: torch.Tensor) -> torch.Tensor:
        """Minus the derivative of `standard_log_prob`.

        Parameters
        ----------
        z : Tensor

        Returns
        -------
        Tensor
            In nats per unit of z, elementwise.
        """
        raise NotImplementedError

    @property
    def standard_variance(self) -> float:
        """Variance of noise of scale 1; infinity if it has none."""
        raise NotImplementedError

    def standard_cdf(self, z: torch.Tensor) -> torch.Tensor:
        """Probability that noise of scale 1 is less than z.

        Parameters
        ----------
        z : Tensor

        Returns
        -------
        Tensor
            Elementwise.
        """
        raise NotImplementedError

    def standard_log_cdf(self, z: torch.Tensor) -> torch.Tensor:
        """Logarithm of `standard_cdf`.

        Parameters
        ----------
        z : Tensor

        Returns
        -------
        Tensor
            Elementwise.
        """
        return self.standard_cdf(z).log()

    def standard_tail_moment(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``E[max(e**2 - z**2, 0); e > 0]`` for noise e of scale 1.

        Parameters
        ----------
        z : Tensor
            Positive.

        Returns
        -------
        Tensor
            Elementwise.
        """
        raise NotImplementedError

    def standard_quantile(self, level: float) -> float:
        """Return the quantile of noise of scale 1.

        Parameters
        ----------
        level : float
            Probability in (0, 1).

        Returns
        -------
        float
        """
        raise NotImplementedError

    @property
    def _scale(self) -> torch.Tensor:
        if self._bound_scale is not None:
            return self._bound_scale
        if self.learned:
            raise ValueError(
                f"{type(self).__name__}(noise_scale='learn') has no value before a fit "
                "binds one; give a number."
            )
        # A scalar on the CPU goes with tensors on any device.
        return torch.tensor(float(self.noise_scale), dtype=torch.float64, device=CPU)

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density, (S, n)."""
        z = (y - f[..., 0]) / self._scale
        return self.standard_log_prob(z) - self._scale.log()

    def log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Closed form, (S, n); see `Likelihood.log_prob_slope`."""
        return self.standard_slope((y - f[..., 0]) / self._scale) / self._scale

    @property
    def length_scale(self) -> float:
        """The scale of the noise."""
        return float(self._scale.detach())

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Return f itself, (S, n)."""
        return f[..., 0]

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Variance of the noise, (S, n)."""
        return torch.zeros_like(f[..., 0]) + self._scale**2 * self.standard_variance

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of less than y, (S, n)."""
        return self.standard_cdf((y - f[..., 0]) / self._scale)

    def quantile(self, f: torch.Tensor, level: float) -> torch.Tensor:
        """Quantile of y, (S, n)."""
        return f[..., 0] + self._scale * self.standard_quantile(level)

    def row_pass(self, buffers: RowBuffers) -> RowPass:
        """Closed form; see `Likelihood.row_pass`."""
        return NoisePass(self, buffers)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n)."""
        f = f[..., 0]
        noise = self._standard_noise(generator, f.shape).to(f.dtype)
        return f + self._scale.to(f.dtype) * noise

    def _standard_noise(
        self, generator: torch.Generator, shape: torch.Size
    ) -> torch.Tensor:
        return randn(generator, *shape)

    def expected_power_integral(
        self, mean: torch.Tensor, std_or_cov: torch.Tensor, c: float, refine: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A constant: the integral does not depend on f."""
        value = torch.exp(self.log_power_integral(mean[None, :, None], c))[0]
        return value, torch.zeros_like(mean), torch.zeros_like(mean)

    def expected_escort_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A constant times `expected_power`; see `Likelihood.expected_escort_power`."""
        # The integral does not depend on f; large orders need the sum of logarithms.
        log_norm = self.log_power_integral(mean[None, :, None], c)[0]
        log_factor = -(c - 1) / c * log_norm
        return self._expected_power(mean, std_or_cov, y, c - 1, log_factor, refine)

    def expected_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Without truncation at any scale; see `Likelihood.expected_power`."""
        return self._expected_power(
            mean, std_or_cov, y, c, torch.zeros_like(mean), refine
        )

    def _expected_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        log_factor: torch.Tensor,
        refine: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Expected ``exp(log_factor) p^c`` and its derivatives."""
        raise NotImplementedError


class NoisePass(RowPass):
    """Minus the log density of location-scale noise, with its slopes.

    Buffers have one column of f, the location, or two: then the second is the log of
    the scale relative to `noise_scale`, bounded as ``reach * tanh(f / reach)``.
    """

    def __init__(
        self, noise: NoiseLikelihood, buffers: RowBuffers, reach: float | None = None
    ) -> None:
        super().__init__()
        self._noise, self._reach = noise, reach
        self._f, self._slope = buffers.f, buffers.slope
        self._level, self._for_level = buffers.hyper, buffers.for_hyper
        if not noise.learned:
            fixed = math.log(float(noise.noise_scale))
            self._level = self._f.new_full((len(self._f), 1), fixed)
            self._for_level = torch.empty_like(self._level)

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        log_scale = self._level[:, :1, None]
        if self._reach is not None:
            share = torch.tanh(self._f[..., 1] / self._reach)
            log_scale = log_scale + self._reach * share
        inverse = torch.exp(-log_scale)
        z = (y - self._f[..., 0]) * inverse
        losses, slope, by_log_scale = self._of_rows(z, log_scale, inverse)
        self._slope[..., 0] = -slope * inverse * weight
        by_log_scale = by_log_scale * weight
        if self._reach is not None:
            self._slope[..., 1] = by_log_scale * (1 - share.square())
        self._for_level[:, 0] = by_log_scale.sum((1, 2))
        return ((losses * weight).sum((1, 2)),)

    def _of_rows(
        self, z: torch.Tensor, log_scale: torch.Tensor, inverse: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Losses, with derivatives in z and in the log of the scale."""
        slope = self._noise.standard_slope(z)
        return log_scale - self._noise.standard_log_prob(z), slope, 1 - z * slope
