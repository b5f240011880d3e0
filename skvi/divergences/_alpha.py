"""Alpha divergence."""

from numbers import Real

import torch

from skvi.base._protocols import PriorDensity
from skvi.divergences._forms import OrderForm, order_form
from skvi.divergences._integrals import RatioDivergence
from skvi.divergences._messages import collapse_message
from skvi.utils._validation import Interval

__all__ = ["AlphaDivergence"]


class AlphaDivergence(RatioDivergence):
    r"""Alpha divergence, per coordinate where q and the prior are factorized.

    .. math:: D_\alpha(q \| \pi) = \frac{1}{\alpha(1-\alpha)}
              \left(1 - \int q^\alpha \pi^{1-\alpha} d\theta\right)

    Parameters
    ----------
    alpha : float, default=0.5
        Order. 1 is ``KL(q || prior)``, and the limit 0 is ``KL(prior || q)``; 0.5 is
        four times the squared Hellinger distance ``1 - integral sqrt(q pi)``.
    joint : bool, default=False
        False: for a factorized q and prior, the sum over coordinates of
        their divergences. True: the formula above in all P dimensions. For a correlated
        q or prior the formula is always used as it is.

    Notes
    -----
    For ``0 < alpha < 1`` the divergence is at most ``1/(alpha (1-alpha))``. In P
    dimensions its gradient with respect to the width of q is of the order of
    ``width^((1-alpha) P)``, that of the loss of ``width^2``: once ``(1-alpha) P > 2`` a
    point mass is an optimum (the posterior *collapses*). Per coordinate (P = 1) the
    width cannot collapse, but if the data push a mean to infinity (separable classes),
    ignoring the prior costs no more than the bound. A fit that ends this way warns.

    For ``alpha > 1`` the divergence is finite only while cov(q) is below
    ``alpha/(alpha-1)`` times the covariance of the prior; outside its range the
    value is ``inf``. Orders ``alpha <= 0`` cannot regularize and are refused.

    For other priors linear models integrate by fixed nodes, see `RenyiDivergence`;
    other models use draws of the normal ``q^alpha``: the value without bias, its
    gradient with one of O(1/S), a few percent for the 128 draws of a step in training.

    References
    ----------
    Knoblauch, Jewson and Damoulas, *Generalized Variational Inference*,
    alpha-divergence.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.divergences import AlphaDivergence
    >>> from skvi.priors import Normal
    >>> prior = Normal().build(Layout({"coef": (1, 2)}))
    >>> q = NormalForm(torch.ones(2), torch.ones(2))
    >>> round(float(AlphaDivergence(alpha=0.5).closed_form(q, prior)), 4)
    0.94
    >>> joint = AlphaDivergence(alpha=0.5, joint=True)
    >>> round(float(joint.closed_form(q, prior)), 4)
    0.8848
    """

    _parameter_constraints: dict = {
        "alpha": [Interval(Real, None, None, closed="neither")],
        "joint": ["boolean"],
    }

    def __init__(self, alpha: float = 0.5, joint: bool = False) -> None:
        self.alpha = alpha
        self.joint = joint

    def _combine(self, cross: torch.Tensor, *alone: torch.Tensor) -> torch.Tensor:
        return -torch.expm1(cross) / self._k

    def order_form(self, prior: PriorDensity) -> OrderForm | None:
        """Per coordinate; see `Divergence.order_form`."""
        return None if self.joint else order_form(prior, float(self.alpha), self._k)

    def _collapse_message(self, overlap: torch.Tensor, size: int) -> str:
        if not 0 < self.alpha < 1:
            return ""
        excess = (1 - self.alpha) * size / overlap.numel()
        why = f"it is at most {overlap.numel() / self._k:.3g}"
        if excess > 2:
            why += f", and (1 - alpha) P = {excess:.3g} is above 2"
        return collapse_message(self, overlap / self.alpha, why)

    @property
    def _k(self) -> float:
        return float(self.alpha * (1 - self.alpha))
