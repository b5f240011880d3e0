"""Scales of priors: fixed or learned."""

from collections.abc import Callable
from numbers import Real

import torch

from skvi.base import Layout
from skvi.priors.base import BuiltPrior
from skvi.utils._device import CPU
from skvi.utils._validation import Interval, StrOptions

__all__ = ["POSITIVE", "SCALE", "scaled"]

POSITIVE = [Interval(Real, 0, None, closed="neither")]
#: Constraint of every parameter `scale`.
SCALE = [*POSITIVE, StrOptions({"learn"})]

Make = Callable[[torch.Tensor], BuiltPrior]


def scaled(layout: Layout, scale: float | str, make: Make) -> BuiltPrior:
    """Build a prior from its scale in every coordinate.

    Parameters
    ----------
    layout : Layout
    scale : float or "learn"
        In units of the blocks' natural size.
    make : callable
        Scales of shape (P,) -> BuiltPrior.
    """
    natural = layout.natural_scales()
    if isinstance(scale, str):
        return _LearnedScale(make, natural)
    return make(float(scale) * natural)


class _LearnedScale(BuiltPrior):
    """A prior whose scale is to be chosen by a fit."""

    learned = ("prior_scale",)

    def __init__(self, make: Make, natural: torch.Tensor) -> None:
        self.make, self.natural = make, natural

    def initial_hyper(self) -> torch.Tensor:
        """Scale 1."""
        return torch.zeros(1, dtype=torch.float64, device=CPU)

    def learned_scales(self) -> torch.Tensor | None:
        if self.make(self.natural).as_normal() is None:
            return None
        return torch.zeros(len(self.natural), dtype=torch.int64, device=CPU)

    @property
    def is_log_concave(self) -> bool:
        return self.make(self.natural).is_log_concave

    def bind(self, hyper: torch.Tensor) -> BuiltPrior:
        return self.make(hyper[0].exp() * self.natural)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        raise ValueError(UNBOUND)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        raise ValueError(UNBOUND)


UNBOUND = (
    "A prior with scale='learn' has no density before a fit sets the scale; give a "
    "number, or use `bind`."
)
