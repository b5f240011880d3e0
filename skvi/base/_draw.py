"""Draws of a posterior, with additional information."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

#: Kind of a log density: exact, an upper or lower bound, or unavailable.
Side = Literal["exact", "upper", "lower", "none"]
SIDES: tuple[Side, ...] = ("exact", "upper", "lower", "none")


@dataclass(frozen=True, eq=False)
class Draw:
    """Draws of theta, and the variables that generated them.

    Gradient rules need more than the value of a draw: its noise determines the path
    along which it moves with the variational parameters, and a posterior without a
    tractable density can have one given an auxiliary variable.

    Parameters
    ----------
    theta : Tensor of shape (S, P)
        Differentiable in the variational parameters if the family is.
    log_q : Tensor of shape (S,)
        Log density of the draws in nats, or its bound, see `side`.
    side : {"exact", "upper", "lower", "none"}, default="exact"
        Whether `log_q` is exact, an upper or a lower bound; "none" if it is
        unavailable.
    noise : Tensor of shape (S, ...), default=None
        Standardized noise that the draws are a smooth function of.
    component : Tensor of int of shape (S,), default=None
        Component of a mixture that each draw came from.
    auxiliary : Tensor of shape (S, ...), default=None
        Variable given which theta has a density.
    parts : tuple of Draw, default=()
        Draws of the independent parts that theta consists of.
    weight : Tensor of shape (S,), default=None
        Weights of strata, of mean 1: expectations are means of values times these. They
        are differentiable in the variational parameters. None if all are 1.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Draw
    >>> draw = Draw(torch.zeros(3, 2), torch.zeros(3))
    >>> len(draw), draw.side
    (3, 'exact')
    """

    theta: torch.Tensor
    log_q: torch.Tensor
    side: Side = "exact"
    noise: torch.Tensor | None = None
    component: torch.Tensor | None = None
    auxiliary: torch.Tensor | None = None
    parts: tuple["Draw", ...] = ()
    weight: torch.Tensor | None = None

    def __len__(self) -> int:
        """Return the number of draws, S."""
        return len(self.theta)

    def weigh(self, values: torch.Tensor) -> torch.Tensor:
        """Values of a function of theta, whose mean estimates its expectation.

        Parameters
        ----------
        values : Tensor of shape (S,)
            At the draws.

        Returns
        -------
        Tensor of shape (S,)
            Times `weight`.
        """
        return values if self.weight is None else self.weight * values

    def take(self, index: torch.Tensor) -> "Draw":
        """Some of the draws, or the same ones several times.

        Parameters
        ----------
        index : Tensor of int of shape (m,)

        Returns
        -------
        Draw
        """

        def rows(value: torch.Tensor | None) -> torch.Tensor | None:
            return None if value is None else value[index]

        return Draw(
            self.theta[index],
            self.log_q[index],
            self.side,
            rows(self.noise),
            rows(self.component),
            rows(self.auxiliary),
            tuple(part.take(index) for part in self.parts),
            rows(self.weight),
        )

    def detach(self) -> "Draw":
        """Detach theta and its log density from the variational parameters.

        Returns
        -------
        Draw
            Draws with the same values.
        """

        def fixed(value: torch.Tensor | None) -> torch.Tensor | None:
            return None if value is None else value.detach()

        return replace(
            self,
            theta=self.theta.detach(),
            log_q=self.log_q.detach(),
            noise=fixed(self.noise),
            auxiliary=fixed(self.auxiliary),
            parts=tuple(part.detach() for part in self.parts),
            weight=fixed(self.weight),
        )
