"""Gradient steps of several members of a fit, which share their structure."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch

__all__ = ["Member", "Rows", "Source", "Steps", "SurrogateSteps"]

#: Rows of one minibatch; None is all rows.
Rows = torch.Tensor | None

# Steps that are prepared at once, and the numbers that may be kept for each member.
MAX_STEPS, MAX_ELEMENTS = 32, 2**21


class Member(Protocol):
    """What one member brings: the parts of its objective, and a source of draws."""

    @property
    def target(self) -> Any:
        """Target, with its own rows and hyperparameters."""

    @property
    def posterior(self) -> Any:
        """Posterior."""

    @property
    def divergence(self) -> Any:
        """Divergence."""

    @property
    def generator(self) -> Any:
        """Source of all its draws, torch.Generator."""


class Source(Protocol):
    """Where draws come from: a generator of torch, or a stream of noise."""

    def get_state(self) -> Any:
        """Where it is: tensors and numbers."""

    def set_state(self, state: Any) -> None:
        """Go on from there."""


class Steps:
    """Gradients of M members, some steps at a time.

    Parameters
    ----------
    params : Tensor of shape (M, V)
        Variational parameters of each member, then its hyperparameters. The owner
        changes it in place between steps.

    Attributes
    ----------
    gradient : Tensor of shape (M, V)
        That of the last step: a buffer.
    """

    #: Whether draws do not depend on how many steps are prepared at once: then that
    #: may be more than an epoch.
    spans_epochs = False

    #: Whether gradients can hold a part of the divergence only, see `weigh_divergence`.
    weighs_divergence = False

    def __init__(self, params: torch.Tensor) -> None:
        self.params, self.gradient = params, torch.zeros_like(params)

    def weigh_divergence(self, shares: Sequence[float]) -> None:
        """Let gradients, but not values, hold a share of the divergence from now on.

        Parameters
        ----------
        shares : sequence of float
            One for each member; 1 at first.
        """
        raise NotImplementedError(f"{type(self).__name__} take the whole divergence.")

    @property
    def sources(self) -> list[Source]:
        """Where draws come from, in an order that is the same for equal members.

        With `params` it is all that steps know of the ones before: for checkpoints.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement sources.")

    @property
    def max_steps(self) -> int:
        """Steps that may be prepared at once."""
        return max(1, min(MAX_STEPS, MAX_ELEMENTS // self.params[0].numel()))

    def prepare(self, rows: Sequence[Sequence[Rows]]) -> None:
        """Take over the rows of the next steps, of each member."""
        raise NotImplementedError

    def differentiate(self, step: int) -> None:
        """Put the gradient at `params`, with the rows of a prepared step, in place."""
        raise NotImplementedError

    def values(self, trail: torch.Tensor) -> torch.Tensor:
        """What was minimized in the steps since `prepare`, in nats.

        Parameters
        ----------
        trail : Tensor of shape (T, M, V)
            The parameters at which the gradients were taken.

        Returns
        -------
        Tensor of shape (T, M)
            In double precision.
        """
        raise NotImplementedError

    def keep(self, members: Sequence[int], params: torch.Tensor) -> Self:
        """Steps of some of the members, which go on as if nothing had been.

        Parameters
        ----------
        members : sequence of int
        params : Tensor of shape (m, V)
            Theirs.

        Returns
        -------
        Steps
        """
        raise NotImplementedError


class SurrogateSteps(Steps):
    """By automatic differentiation, one member after the other.

    Parameters
    ----------
    objective : Objective
    members : sequence of Member
    params : Tensor of shape (M, V)
    n_draws : int
        S.
    """

    def __init__(
        self,
        objective: Any,
        members: Sequence[Member],
        params: torch.Tensor,
        n_draws: int,
    ) -> None:
        super().__init__(params)
        self.objective, self.members, self.n_draws = objective, list(members), n_draws
        self._rows: Sequence[Sequence[Rows]] = []
        self._values: list[torch.Tensor] = []

    @property
    def sources(self) -> list[Source]:
        return [member.generator for member in self.members]

    def prepare(self, rows: Sequence[Sequence[Rows]]) -> None:
        self._rows, self._values = rows, []

    def differentiate(self, step: int) -> None:
        with torch.inference_mode(False):
            found = [
                self._one(member, params.clone(), rows[step])
                for member, params, rows in zip(
                    self.members, self.params, self._rows, strict=True
                )
            ]
        self._values.append(torch.stack([value.double() for value, _ in found]))
        torch.stack([gradient for _, gradient in found], out=self.gradient)

    def _one(
        self, member: Member, params: torch.Tensor, rows: Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        split = len(member.posterior.params)
        return self.objective.value_and_gradient(
            member.target.at(params[split:]),
            member.posterior.at(params[:split]),
            member.divergence,
            rows,
            self.n_draws,
            member.generator,
        )

    def values(self, trail: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._values)

    def keep(self, members: Sequence[int], params: torch.Tensor) -> Self:
        chosen = [self.members[m] for m in members]
        return type(self)(self.objective, chosen, params, self.n_draws)
