"""Supports of parameters by name, constraint or transform."""

import math
from typing import Any

import torch
from torch.distributions import constraints, transforms
from torch.distributions.constraint_registry import biject_to
from torch.distributions.transforms import Transform

from skvi.targets._maps import (
    Between,
    Integers,
    Ordered,
    Simplex,
    Triangular,
    UnitVector,
)

__all__ = ["SUPPORTS", "find_bijection", "find_transform"]

#: Supports by name.
SUPPORTS: dict[str, Transform] = {
    "real": biject_to(constraints.real),
    "positive": Between(0.0, math.inf),
    "unit_interval": Between(0.0, 1.0),
    "simplex": Simplex(),
    "ordered": Ordered(),
    "positive_ordered": Ordered(True),
    "unit_vector": UnitVector(),
    "lower_cholesky": Triangular(correlation=False, product=False),
    "positive_definite": Triangular(correlation=False, product=True),
    "corr_cholesky": Triangular(correlation=True, product=False),
    "corr_matrix": Triangular(correlation=True, product=True),
    "boolean": Integers(0, 1, False),
}
# Those with a name here, by the type of the constraint or transform of torch.
_NAMES: dict[type, str] = {
    type(constraints.simplex): "simplex",
    type(constraints.lower_cholesky): "lower_cholesky",
    type(constraints.positive_definite): "positive_definite",
    type(constraints.positive_semidefinite): "positive_definite",
    type(constraints.corr_cholesky): "corr_cholesky",
    type(constraints.boolean): "boolean",
    transforms.ExpTransform: "positive",
    transforms.SigmoidTransform: "unit_interval",
    transforms.StickBreakingTransform: "simplex",
    transforms.CorrCholeskyTransform: "corr_cholesky",
}


def find_bijection(transform: Transform) -> str:
    """Bijection of a block of a layout that families know; "identity" for others."""
    if isinstance(transform, Integers):
        return "integer"
    kinds = {"exp": "positive", "sigmoid": "unit_interval"}
    found = (kind for kind, name in kinds.items() if transform == SUPPORTS[name])
    return next(found, "identity")


def find_transform(name: str, support: Any) -> Transform:
    """Map onto a support: a name, a torch constraint or a torch transform."""
    if isinstance(support, str) and support in SUPPORTS:
        return SUPPORTS[support]
    if type(support) in _NAMES:
        return SUPPORTS[_NAMES[type(support)]]
    if isinstance(support, Transform) and support.bijective:
        return support
    if isinstance(support, constraints.independent):
        return find_transform(name, support.base_constraint)
    if isinstance(support, constraints.integer_interval):
        return Integers(int(support.lower_bound), int(support.upper_bound))
    if isinstance(support, constraints.Constraint):
        try:
            found = biject_to(support)
            return _between(support) or found
        except NotImplementedError:
            pass
    raise ValueError(
        f"The support of {name!r} must be one of {sorted(SUPPORTS)}, a constraint of "
        "torch.distributions.constraints that has a bijection, constraints."
        "integer_interval(low, high) for a discrete parameter, or a bijective torch "
        f"transform. Got {support!r}."
    )


def _between(support: constraints.Constraint) -> Between | None:
    """The map onto an interval whose ends are numbers, if it is one."""
    given = [getattr(support, f"{side}_bound", None) for side in ("lower", "upper")]
    if given == [None, None] or any(
        isinstance(end, torch.Tensor) and end.numel() > 1 for end in given
    ):
        return None
    low, high = given
    return Between(
        -math.inf if low is None else float(low),
        math.inf if high is None else float(high),
    )
