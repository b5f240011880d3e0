"""Optimizers: the state of one member, and of a stack of members."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

import torch

__all__ = ["Numbers", "Optimizer", "OptimizerStack"]

#: The state of an optimizer: tensors and numbers by name.
Numbers = dict[str, torch.Tensor | float | int]


class OptimizerStack(Protocol):
    """Steps of several members at once."""

    def updates(self, n_steps: int) -> list[Callable[[], None]]:
        """Prepare steps, which the members count as done; each call performs one."""


class Optimizer:
    """Base class: the state of an optimizer for the vector of one member.

    A subclass must implement `stack`, and list its state tensors in `moments`.
    """

    #: Attributes that change with every step: tensors of constant shape.
    moments: tuple[str, ...] = ()
    #: Maximum step of a point parameter, in step sizes.
    longest_step: float

    def __init__(self, rate: float) -> None:
        self.rate, self.count = rate, 0

    @classmethod
    def stack(
        cls, members: Sequence[Self], params: torch.Tensor, gradients: torch.Tensor
    ) -> OptimizerStack:
        """Steps of M vectors, (M, V), in place, in fused operations.

        The members' states move into the stack.
        """
        raise NotImplementedError

    def state_dict(self) -> Numbers:
        """Everything that changes: a copy."""
        found: Numbers = {"rate": self.rate, "count": self.count}
        return found | {name: getattr(self, name).clone() for name in self.moments}

    def load_state_dict(self, state: Mapping[str, torch.Tensor | float | int]) -> None:
        """Continue from a copy of the state of another one of the same kind.

        Raises ValueError if the kind or the length of the vector is another one.
        """
        if set(state) != {"rate", "count", *self.moments}:
            raise ValueError(
                f"This is the state of another optimizer: expected {self.moments}, "
                f"got {sorted(state)}."
            )
        for name in self.moments:
            own, other = getattr(self, name), torch.as_tensor(state[name])
            if own.shape != other.shape:
                raise ValueError(
                    f"{name} has the shape {tuple(other.shape)}; this optimizer needs "
                    f"{tuple(own.shape)}."
                )
            own.copy_(other)
        self.rate, self.count = float(state["rate"]), int(state["count"])
