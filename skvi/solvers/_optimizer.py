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
        """Prepare steps, which the members count as made.

        Parameters
        ----------
        n_steps : int

        Returns
        -------
        list of callable
            Each call performs the next step of all members.
        """


class Optimizer:
    """Base class: the state of an optimizer for the vector of one member.

    A subclass must implement `stack`, and list its state tensors in `moments`.

    Parameters
    ----------
    rate : float
        Step size, which schedules change.
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
        """Steps of several vectors, in place, in fused operations.

        Parameters
        ----------
        members : sequence of Optimizer
            States of M vectors, which move into the stack.
        params, gradients : Tensor of shape (M, V)

        Returns
        -------
        OptimizerStack
        """
        raise NotImplementedError

    def state_dict(self) -> Numbers:
        """Everything that changes: a copy.

        Returns
        -------
        dict of str to Tensor or number
        """
        found: Numbers = {"rate": self.rate, "count": self.count}
        return found | {name: getattr(self, name).clone() for name in self.moments}

    def load_state_dict(self, state: Mapping[str, torch.Tensor | float | int]) -> None:
        """Continue from the state of another one of the same kind.

        Parameters
        ----------
        state : mapping of str to Tensor or number
            As `state_dict` returned it; it is copied.

        Raises
        ------
        ValueError
            The state is of another kind, or of vectors of another length.
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
