"""What every loss owes."""

from typing import Any

import torch

from skvi.base import Component
from skvi.utils._device import Movable
from skvi.utils._expectations import Expectations, expect_derivatives

__all__ = ["Loss"]


class Loss(Component, Movable):
    """Base class of losses: a subclass owes `__call__`.

    Examples
    --------
    >>> from skvi.losses import BetaLoss, Loss
    >>> isinstance(BetaLoss(beta=1.2), Loss)
    True
    """

    #: Whether exp(-loss) is the likelihood itself, so that bounds speak of p(D).
    is_log_loss = False

    def __call__(
        self, likelihood: Any, f: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Evaluate the loss of every row.

        Parameters
        ----------
        likelihood : Likelihood
        f : Tensor of shape (S, n, K)
        y : Tensor of shape (n,)

        Returns
        -------
        Tensor of shape (S, n)
            In nats per row, not averaged.
        """
        raise NotImplementedError

    def check(self, likelihood: Any) -> None:
        """Refuse a likelihood that this loss cannot train; nothing by default.

        Parameters
        ----------
        likelihood : Likelihood

        Raises
        ------
        IncompatibleComponentsError
            Says what is missing and what to use instead.
        """

    def tail_curvature(self, likelihood: Any) -> float | None:
        """Quadratic growth of a row's loss in f.

        Parameters
        ----------
        likelihood : Likelihood

        Returns
        -------
        float or None
            c, where the loss is ``c f^2 / 2 + O(|f|)`` for large ``|f|`` of either
            sign; None where it is not known to be of this form.
        """
        return None

    def expected(
        self,
        likelihood: Any,
        mean: torch.Tensor,
        spread: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Expected loss, and its derivatives, under a normal f_i.

        Parameters
        ----------
        likelihood : Likelihood
        mean : Tensor of shape (n,) or (n, K)
            Of f; with K columns the loss must not change when all of them move
            together, as that of a softmax does not.
        spread : Tensor of shape (n,) or (n, K, K)
            Standard deviations of f, or its covariances.
        y : Tensor of shape (n,)
        refine : int, default=1
            Multiplies the number of quadrature nodes, to verify a result.

        Returns
        -------
        value, first, second : Tensor
            Of shapes (n,), that of `mean` and that of `spread`: expectation of the
            loss, in nats per row and without Monte Carlo noise, and of its first
            and second derivative in f (the derivative of the value in the mean,
            and twice the one in the variance).
        """
        return expect_derivatives(
            lambda f, t: self(likelihood, f, t),
            mean,
            spread,
            y,
            likelihood.length_scale,
            refine,
        )
