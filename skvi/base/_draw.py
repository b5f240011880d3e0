"""Draws of a posterior, with what is known of them."""

from dataclasses import dataclass
from typing import Literal

import torch

__all__ = ["SIDES", "Draw", "Side"]

#: What a log density is: exact, a bound on it from above or below, or not there.
Side = Literal["exact", "upper", "lower", "none"]
SIDES: tuple[Side, ...] = ("exact", "upper", "lower", "none")


@dataclass(frozen=True, eq=False)
class Draw:
    """Draws of theta, and what made them.

    Gradient rules need more of a draw than its value: what it was made from says
    along which path it moves with the variational parameters, and given an auxiliary
    variable a posterior without a density of its own has one.

    Parameters
    ----------
    theta : Tensor of shape (S, P)
        Differentiable in the variational parameters where the family is.
    log_q : Tensor of shape (S,)
        Log density of the draws in nats, or the bound on it that `side` names.
    side : {"exact", "upper", "lower", "none"}, default="exact"
        Which side of the log density `log_q` is on; "none" where it says nothing.
    noise : Tensor of shape (S, ...), default=None
        Standardized noise that the draws are a smooth function of.
    component : Tensor of int of shape (S,), default=None
        Component of a mixture that each draw came from.
    auxiliary : Tensor of shape (S, ...), default=None
        Variable given which theta has a density.
    parts : tuple of Draw, default=()
        Of the independent parts that theta was put together from.

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

    def __len__(self) -> int:
        """Return the number of draws, S."""
        return len(self.theta)

    def detach(self) -> "Draw":
        """Cut theta and its log density off from the variational parameters.

        Returns
        -------
        Draw
            Of the same values.
        """
        theta, log_q = self.theta.detach(), self.log_q.detach()
        noise = None if self.noise is None else self.noise.detach()
        auxiliary = None if self.auxiliary is None else self.auxiliary.detach()
        parts = tuple(part.detach() for part in self.parts)
        return Draw(theta, log_q, self.side, noise, self.component, auxiliary, parts)
