"""Losses: what the parameter is for.

A loss turns a likelihood into l(theta, x_i, y_i), in nats per row. The log loss
gives Bayesian inference; robust losses give a generalised posterior that
outliers move less.
"""

from numbers import Real
from typing import Any

import torch

from skvi.base import Component
from skvi.utils._expectations import Expectations, expect_derivatives
from skvi.utils._validation import Interval

__all__ = ["BetaLoss", "LogLoss", "Loss"]


class Loss(Component):
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


class LogLoss(Loss):
    """Negative log likelihood: standard Bayesian inference.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import BernoulliLikelihood
    >>> from skvi.losses import LogLoss
    >>> LogLoss()(BernoulliLikelihood(), torch.zeros(1, 1, 1), torch.ones(1))
    tensor([[0.6931]])
    """

    is_log_loss = True

    def __call__(
        self, likelihood: Any, f: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Negative log density of every row, (S, n)."""
        return -likelihood.log_prob(f, y)

    def tail_curvature(self, likelihood: Any) -> float | None:
        """What the likelihood says; see `Loss.tail_curvature`."""
        return likelihood.tail_curvature

    def expected(
        self,
        likelihood: Any,
        mean: torch.Tensor,
        spread: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Use the likelihood's own expectation; see `Loss.expected`."""
        value, first, second = likelihood.expected_log_prob(mean, spread, y, refine)
        return -value, -first, -second


class BetaLoss(Loss):
    r"""Robust loss of the beta (density power) divergence.

    .. math:: \ell_\beta = -\frac{p(y|f)^{\beta-1}}{\beta-1}
              + \frac{1}{\beta} \int p(y'|f)^\beta \, dy'

    Parameters
    ----------
    beta : float, default=1.1
        Order, greater than 1; 1 is the log loss, reached up to a constant, and
        larger values give more weight to the bulk and less to outliers. The
        default costs a few per cent of efficiency on clean data.

    Notes
    -----
    Nats per row at beta = 1; for other orders the unit depends on the unit of y
    (for classes there is none). The loss is proper: on clean data its population
    minimiser is the true parameter. Evidences of different orders have no common
    unit and are never compared.

    References
    ----------
    Knoblauch, Jewson and Damoulas, *Generalized Variational Inference*, robust
    losses; Basu et al. (1998), density power divergence.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import BernoulliLikelihood
    >>> from skvi.losses import BetaLoss
    >>> BetaLoss(beta=2.0)(BernoulliLikelihood(), torch.zeros(1, 1, 1), torch.ones(1))
    tensor([[-0.2500]])
    """

    _parameter_constraints: dict = {"beta": [Interval(Real, 1, None, closed="neither")]}

    def __init__(self, beta: float = 1.1) -> None:
        self.beta = beta

    def __call__(
        self, likelihood: Any, f: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Beta loss of every row, (S, n)."""
        power = self.beta - 1
        gain = torch.exp(power * likelihood.log_prob(f, y)) / power
        return torch.exp(likelihood.log_power_integral(f, self.beta)) / self.beta - gain

    def tail_curvature(self, likelihood: Any) -> float | None:
        """0, because this loss is bounded; see `Loss.tail_curvature`."""
        return 0.0

    def expected(
        self,
        likelihood: Any,
        mean: torch.Tensor,
        spread: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Use the likelihood's expected powers; see `Loss.expected`."""
        c = self.beta - 1
        gain = likelihood.expected_power(mean, spread, y, c, refine)
        norm = likelihood.expected_power_integral(mean, spread, self.beta, refine)
        return (
            norm[0] / self.beta - gain[0] / c,
            norm[1] / self.beta - gain[1] / c,
            norm[2] / self.beta - gain[2] / c,
        )
