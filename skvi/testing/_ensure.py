"""Assertions that say which part of a contract is violated."""

import pickle
import re
from collections.abc import Callable
from typing import TypeVar

import torch
from sklearn.base import clone

from skvi.base._component import Component

T = TypeVar("T")

# Errors of a Monte Carlo estimate that are allowed, in standard errors; and draws.
N_SE, N_DRAWS = 5.0, 50_000


def ensure(condition: bool | torch.Tensor, message: str) -> None:
    """Raise `AssertionError` unless the condition holds, even under ``python -O``."""
    if not bool(condition):
        raise AssertionError(message)


class Check:
    """Assertions about one part, whose name begins every message."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, condition: bool | torch.Tensor, message: str) -> None:
        """Raise unless the condition holds."""
        ensure(condition, f"{self.name}: {message}")

    def close(
        self,
        found: torch.Tensor | float,
        expected: torch.Tensor | float,
        what: str,
        rtol: float = 1e-6,
        atol: float | torch.Tensor = 1e-8,
    ) -> None:
        """Raise unless two tensors agree; a number stands for equal entries.

        A tolerance may be a tensor.
        """
        found = torch.as_tensor(found).detach().double()
        if isinstance(expected, float):
            expected = torch.full_like(found, expected)
        expected = expected.detach().double()
        self(
            found.shape == expected.shape,
            f"{what} must have the shape {tuple(expected.shape)}. "
            f"Got {tuple(found.shape)}.",
        )
        gap = (found - expected).abs()
        wrong = ~(gap <= atol + rtol * expected.abs())
        if bool(wrong.any()):
            at = int(gap.nan_to_num(nan=torch.inf).argmax())
            self(
                False,
                f"{what} is wrong: got {float(found.flatten()[at]):.8g}, expected "
                f"{float(expected.flatten()[at]):.8g} (the largest of "
                f"{int(wrong.sum())} deviations).",
            )


def numeric_gradient(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, h: float = 1e-5
) -> torch.Tensor:
    """Central differences of a scalar function, of the shape of `x`."""
    out = torch.empty_like(x)
    with torch.no_grad():
        for i in range(x.numel()):
            step = torch.zeros_like(x)
            step.view(-1)[i] = h
            out.view(-1)[i] = (function(x + step) - function(x - step)) / (2 * h)
    return out


def pickled(value: T) -> T:
    """Return a pickled copy, or the object if a class of it is in no module."""
    try:
        copied: T = pickle.loads(pickle.dumps(value))
    except (AttributeError, pickle.PicklingError) as error:
        if "<lambda>" in str(error) or not re.search("<class|local object", str(error)):
            raise
        return value
    return copied


def check_component(component: Component) -> None:
    """A scikit-learn parameter object; see `check_part`."""
    name = type(component).__name__
    ensure(
        isinstance(component, Component),
        f"an object of a class of parts is needed (Loss, Divergence, Prior, Family, "
        f"Likelihood, Solver). Got {component!r}.",
    )
    component.validate()
    params = component.get_params(deep=False)
    stored = {key for key, value in vars(component).items() if value is not None}
    ensure(
        stored <= set(params),
        f"{name} stores {sorted(stored - set(params))} besides its parameters: a "
        "specification holds parameters only; tensors belong to what `build` makes.",
    )
    for copy in (clone(component), pickled(component)):
        found = copy.get_params(deep=False)
        ensure(
            repr(found) == repr(params),
            f"A copy of {name} has the parameters {found} instead of {params}: "
            "__init__ must store every argument, unchanged, under its own name.",
        )
    ensure(
        any("_parameter_constraints" in vars(cls) for cls in type(component).__mro__),
        f"{name} has no _parameter_constraints.",
    )
