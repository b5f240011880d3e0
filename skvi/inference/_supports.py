"""Supports of parameters: maps from unconstrained coordinates, with their Jacobians."""

from typing import Any

import torch
from torch.distributions import constraints
from torch.distributions.constraint_registry import biject_to
from torch.distributions.transforms import Transform

__all__ = ["SUPPORTS", "Ordered", "find_transform"]


class Ordered(Transform):
    """Increasing vectors: the first element, and the logs of the gaps after it.

    With `positive` the first element is the gap after 0.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, positive: bool = False) -> None:
        super().__init__()
        self.first = 0 if positive else 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ordered) and self.first == other.first

    __hash__ = None  # type: ignore[assignment]

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        gaps = torch.cat([x[..., : self.first], x[..., self.first :].exp()], -1)
        return gaps.cumsum(-1)

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        gaps = torch.cat([y[..., :1], y.diff(dim=-1)], -1)
        return torch.cat([gaps[..., : self.first], gaps[..., self.first :].log()], -1)

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Sum of the logs of the gaps."""
        return x[..., self.first :].sum(-1)


#: Supports by name.
SUPPORTS = {
    "real": biject_to(constraints.real),
    "positive": biject_to(constraints.positive),
    "unit_interval": biject_to(constraints.unit_interval),
    "simplex": biject_to(constraints.simplex),
    "ordered": Ordered(),
    "positive_ordered": Ordered(positive=True),
}


def find_transform(name: str, support: Any) -> Transform:
    """Map onto a support: a name, a torch constraint or a torch transform."""
    if isinstance(support, str) and support in SUPPORTS:
        return SUPPORTS[support]
    if isinstance(support, Transform) and support.bijective:
        return support
    if isinstance(support, constraints.Constraint):
        try:
            return biject_to(support)
        except NotImplementedError:
            pass
    raise ValueError(
        f"The support of {name!r} must be one of {sorted(SUPPORTS)}, a constraint of "
        "torch.distributions.constraints that has a bijection, or a bijective torch "
        f"transform. Got {support!r}."
    )
