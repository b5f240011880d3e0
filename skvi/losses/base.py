"""What every loss must implement."""

import torch

from skvi.base import Component
from skvi.base._protocols import ConditionalDensity
from skvi.utils._device import Movable
from skvi.utils._expectations import Expectations, expect_derivatives
from skvi.utils._row_sums import RowSums

__all__ = ["Loss"]


class Loss(Component, Movable):
    """Base class of losses: a subclass must implement `__call__`.

    Examples
    --------
    >>> from skvi.losses import BetaLoss, Loss
    >>> isinstance(BetaLoss(beta=1.2), Loss)
    True
    """

    #: Whether exp(-loss) is the likelihood itself, so that bounds speak of p(D).
    is_log_loss = False

    def __call__(
        self, likelihood: ConditionalDensity, f: torch.Tensor, y: torch.Tensor
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

    def check(self, likelihood: ConditionalDensity) -> None:
        """Refuse a likelihood that this loss cannot train; nothing by default.

        Parameters
        ----------
        likelihood : Likelihood

        Raises
        ------
        IncompatibleComponentsError
            Says what is missing and what to use instead.
        """

    def tail_curvature(self, likelihood: ConditionalDensity) -> float | None:
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

    def sums(
        self,
        likelihood: ConditionalDensity,
        hyper: torch.Tensor,
        f: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
    ) -> RowSums:
        """Weighted sum of the loss over draws and rows, with its derivatives.

        Automatic derivatives in f and in the hyperparameters, which are few numbers
        beside those of a network, one member after the other.

        Parameters
        ----------
        likelihood : Likelihood
            Before hyperparameters are bound.
        hyper : Tensor of shape (M, H)
            Those of each of M members.
        f : Tensor of shape (M, S, n, K)
        y, weight : Tensor of shape (M, 1, n)
            In the dtype of `f`.
        out : Tensor of shape (M, S, n, K)
            Receives the derivatives in `f`.

        Returns
        -------
        RowSums
            ``sum_si weight_i loss(f_si, y_i)`` for each member, in nats.
        """
        found = [
            self._sums_of_one(likelihood, *arguments)
            for arguments in zip(hyper, f, y, weight, out, strict=True)
        ]
        return RowSums(*(torch.stack(part) for part in zip(*found, strict=True)))

    def _sums_of_one(
        self,
        likelihood: ConditionalDensity,
        hyper: torch.Tensor,
        f: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
    ) -> RowSums:
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [x.clone().requires_grad_() for x in (f, hyper)]
            losses = self(likelihood.bind(leaves[1]), leaves[0], y[0].clone())
            value = losses.sum(0) @ weight[0].to(losses.dtype)
            slope, for_hyper = torch.autograd.grad(
                value, leaves, materialize_grads=True
            )
        out.copy_(slope)
        return RowSums(value.detach(), for_hyper)

    def expected(
        self,
        likelihood: ConditionalDensity,
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
            Mean of f; with K columns the loss must not change when all of them move
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
