"""Noise with a scale, fixed or learnt."""

from copy import copy
from numbers import Real
from typing import Any

import torch

from skvi.likelihoods.base import Likelihood
from skvi.utils._device import CPU
from skvi.utils._random import randn
from skvi.utils._validation import Interval, StrOptions


class NoiseLikelihood(Likelihood):
    """Base class: y = f + noise; a subclass takes a `noise_scale`."""

    _parameter_constraints: dict = {
        "noise_scale": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"learn"}),
        ]
    }

    noise_scale: float | str
    _bound_scale: torch.Tensor | None = None

    @property
    def learnt(self) -> tuple[str, ...]:  # type: ignore[override]
        """The noise scale, where it is "learn"."""
        is_bound = self._bound_scale is not None
        return ("noise_scale",) if self.noise_scale == "learn" and not is_bound else ()

    def initial_hyper(self, y: torch.Tensor) -> torch.Tensor:
        """Log of half a robust scale of y, (1,); see `Likelihood.initial_hyper`."""
        if not self.learnt:
            return super().initial_hyper(y)
        # The median distance can be 0 where most targets are equal.
        median = 1.4826 * (y - y.median()).abs().median()
        scale = median if float(median) > 0 else y.std(correction=0)
        scale = scale if float(scale) > 0 else torch.ones_like(scale)
        return torch.log(0.5 * scale).to(torch.float64).reshape(1)

    def bind(self, hyper: torch.Tensor) -> Any:
        """Return the likelihood whose noise scale is ``exp(hyper)``."""
        if not self.learnt:
            return self
        bound = copy(self)
        bound._bound_scale = hyper[0].exp()
        return bound

    @property
    def _scale(self) -> torch.Tensor:
        if self._bound_scale is not None:
            return self._bound_scale
        if self.learnt:
            raise ValueError(
                f"{type(self).__name__}(noise_scale='learn') has no value before a fit "
                "binds one; give a number."
            )
        # A scalar on the CPU goes with tensors on any device.
        return torch.tensor(float(self.noise_scale), dtype=torch.float64, device=CPU)

    @property
    def length_scale(self) -> float:
        """The scale of the noise."""
        return float(self._scale)

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Return f itself, (S, n)."""
        return f[..., 0]

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
        self, mean: torch.Tensor, spread: torch.Tensor, c: float, refine: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A constant times `expected_power`; see `Likelihood.expected_escort_power`."""
        # The integral does not depend on f; large orders need the sum of logarithms.
        log_norm = self.log_power_integral(mean[None, :, None], c)[0]
        log_factor = -(c - 1) / c * log_norm
        return self._expected_power(mean, spread, y, c - 1, log_factor, refine)

    def expected_power(
        self,
        mean: torch.Tensor,
        spread: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Without cut or cap for any spread; see `Likelihood.expected_power`."""
        return self._expected_power(mean, spread, y, c, torch.zeros_like(mean), refine)

    def _expected_power(
        self,
        mean: torch.Tensor,
        spread: torch.Tensor,
        y: torch.Tensor,
        c: float,
        log_factor: torch.Tensor,
        refine: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Expected ``exp(log_factor) p^c`` and its derivatives."""
        raise NotImplementedError
