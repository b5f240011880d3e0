"""Supports of parameters: maps from unconstrained coordinates, with their Jacobians."""

from typing import Any

import torch
from torch.distributions import constraints
from torch.distributions.constraint_registry import biject_to
from torch.distributions.transforms import ExpTransform, SigmoidTransform, Transform

__all__ = ["SUPPORTS", "Integers", "Ordered", "find_bijection", "find_transform"]


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


class Integers(Transform):
    """Integers between two limits, which are their own coordinates.

    Without `is_index` they are floats: factors of 0 and 1.
    """

    domain = codomain = constraints.real
    bijective = True

    def __init__(self, low: int, high: int, is_index: bool = True) -> None:
        super().__init__()
        self.limits, self.is_index = (low, high), is_index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Integers) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        return x.long() if self.is_index else x

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        return y.double()

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Zeros: densities are probabilities."""
        return torch.zeros_like(x)


BOOLEAN = Integers(0, 1, is_index=False)
#: Supports by name.
SUPPORTS = {
    "real": biject_to(constraints.real),
    "positive": ExpTransform(),
    "unit_interval": biject_to(constraints.unit_interval),
    "simplex": biject_to(constraints.simplex),
    "ordered": Ordered(),
    "positive_ordered": Ordered(positive=True),
    "boolean": BOOLEAN,
}


def find_bijection(transform: Transform) -> str:
    """Bijection of a block of a layout that families know; "identity" for others."""
    kinds = {ExpTransform: "exp", SigmoidTransform: "sigmoid", Integers: "integer"}
    return kinds.get(type(transform), "identity")


def find_transform(name: str, support: Any) -> Transform:
    """Map onto a support: a name, a torch constraint or a torch transform."""
    if isinstance(support, str) and support in SUPPORTS:
        return SUPPORTS[support]
    if isinstance(support, Transform) and support.bijective:
        return support
    if support is constraints.positive:
        return SUPPORTS["positive"]
    if isinstance(support, type(constraints.boolean)):
        return BOOLEAN
    if isinstance(support, constraints.integer_interval):
        return Integers(int(support.lower_bound), int(support.upper_bound))
    if isinstance(support, constraints.Constraint):
        try:
            return biject_to(support)
        except NotImplementedError:
            pass
    raise ValueError(
        f"The support of {name!r} must be one of {sorted(SUPPORTS)}, a constraint of "
        "torch.distributions.constraints that has a bijection, constraints."
        "integer_interval(low, high) for a discrete parameter, or a bijective torch "
        f"transform. Got {support!r}."
    )
