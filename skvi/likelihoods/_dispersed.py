"""Likelihoods with a dispersion: fixed, learned, or with a prior of its own."""

import math
from copy import copy
from numbers import Real
from typing import Any

import torch

from skvi.likelihoods.base import Likelihood
from skvi.utils._tensors import CPU
from skvi.utils._validation import Interval, StrOptions

# Least dispersion of a density: rows that are fitted exactly have a bounded one.
LEAST = 1e-12
# Smallest dispersion from which a fit starts.
MIN_START = 1e-4
# Logs of numbers whose inverses are floats, too.
LOGS = (-690.0, 690.0)


class DispersedLikelihood(Likelihood):
    """Base class: one f, and a positive number `dispersion` without units.

    A subclass implements `_start(y)`.
    """

    _parameter_constraints: dict = {
        "dispersion": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"learn", "hyperprior"}),
        ]
    }
    gamma_block = ("precision", -1.0)
    dispersion: float | str
    _least = LEAST
    _bound: torch.Tensor | None = None

    @property
    def gamma_prior(self) -> tuple[float, float] | None:  # type: ignore[override]
        """An exponential prior of the number in `gamma_block`, if it has one."""
        is_free = self._bound is None and self.dispersion == "hyperprior"
        return (1.0, 1.0) if is_free else None

    @property
    def learned(self) -> tuple[str, ...]:  # type: ignore[override]
        """The dispersion, unless it is a number."""
        is_free = self._bound is None and isinstance(self.dispersion, str)
        return ("dispersion",) if is_free else ()

    def _start(self, y: torch.Tensor) -> float:
        """Dispersion of y itself, from which a fit starts."""
        raise NotImplementedError

    def initial_hyper(self, y: torch.Tensor) -> torch.Tensor:
        """Log of y's own dispersion, (1,); see `Likelihood.initial_hyper`."""
        if not self.learned:
            return super().initial_hyper(y)
        start = max(self._start(y), MIN_START)
        return y.new_tensor([math.log(start)], dtype=torch.float64)

    def bind(self, hyper: torch.Tensor) -> Any:
        """Return the likelihood whose dispersion is ``exp(hyper)``, or a limit."""
        if not self.learned:
            return self
        bound = copy(self)
        bound._bound = hyper[0].exp().clamp(min=self._least)
        return bound

    @property
    def _alpha(self) -> torch.Tensor:
        if self._bound is not None:
            return self._bound
        if self.learned:
            raise ValueError(
                f"{type(self).__name__}(dispersion={self.dispersion!r}) has no "
                "value before a fit binds one; give a number."
            )
        # A scalar on the CPU goes with tensors on any device.
        return torch.tensor(float(self.dispersion), dtype=torch.float64, device=CPU)
