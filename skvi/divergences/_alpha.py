"""Alpha and Rényi divergences."""

from numbers import Real

import torch

from skvi.base._component import PriorDensity
from skvi.divergences._forms import MomentForm, OrderForm, collapse_message, order_form
from skvi.divergences._integrals import RatioDivergence
from skvi.divergences._kl import KLDivergence
from skvi.utils._validation import Interval


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

    def score_factor(
        self, log_q: torch.Tensor, log_prior: torch.Tensor
    ) -> torch.Tensor | None:
        """That of the joint form, a mean over q; see `Divergence.score_factor`."""
        if not self.joint or self._is_kl:
            return None
        ratio = torch.exp((self.alpha - 1) * (log_q - log_prior).detach())
        return (1 - ratio) / self._k + ratio / self.alpha

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


class RenyiDivergence(RatioDivergence):
    r"""Rényi divergence in the scaling of generalized variational inference.

    .. math:: D_\alpha(q \| \pi) = \frac{1}{\alpha(\alpha-1)}
              \log \int q^\alpha \pi^{1-\alpha} d\theta

    Parameters
    ----------
    alpha : float, default=0.5
        Order. 1 is ``KL(q || prior)``, and the limit 0 is ``KL(prior || q)``.
        Below 1 the divergence penalizes a narrow posterior more than KL and a wide one
        hardly at all; above 1 it is the reverse.

    Notes
    -----
    For ``alpha > 1`` it is finite only while cov(q) is below ``alpha/(alpha-1)``
    times the covariance of the prior, for ``alpha < 0`` only while it is above
    ``|alpha|/(1+|alpha|)`` times it, so that negative orders cannot regularize a
    posterior that learns from data: they are refused there. Outside its range
    the value is ``inf``. The scaling differs from the classical one by 1/alpha.

    For other priors with independent coordinates, such as Laplace, linear models
    integrate every coordinate by fixed nodes: within about 1e-5 nats for a factorized
    q, 1e-3 for a prior with a pole (horseshoe) and 1e-2 with a spike (ARD). For a
    correlated q of at most 100 parameters this is an estimate, and no bound: factors of
    the prior are replaced by normal ones, and correlations of what is left of them are
    neglected. With correlations of 0.6 two coefficients gave errors up to 0.01 nats;
    with 0.9, and a q as wide as the prior, up to 0.05.

    Networks and other models estimate it from draws of the normal ``q^alpha``,
    coordinate by coordinate where both are factorized: consistently, with a bias
    upwards for 0 < alpha < 1, downwards for alpha > 1.

    References
    ----------
    Knoblauch, Jewson and Damoulas, *Generalized Variational Inference*,
    alpha-Rényi divergence. Minka (2001), *Expectation propagation for approximate
    Bayesian inference*: the normal factors.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.divergences import RenyiDivergence
    >>> from skvi.priors import Normal
    >>> prior = Normal().build(Layout({"coef": (1, 1)}))
    >>> q = NormalForm(torch.ones(1), torch.ones(1))
    >>> round(float(RenyiDivergence(alpha=0.5).closed_form(q, prior)), 6)
    0.5
    """

    _parameter_constraints: dict = {
        "alpha": [Interval(Real, None, None, closed="neither")]
    }

    def __init__(self, alpha: float = 0.5) -> None:
        self.alpha = alpha

    def check_prior(self, prior: PriorDensity) -> None:
        """Accept improper priors; see `KLDivergence.check_prior`."""

    @property
    def is_weak(self) -> bool:
        """For orders below 1; see `Divergence.is_weak`."""
        return self.alpha < 1

    def _combine(self, cross: torch.Tensor, *alone: torch.Tensor) -> torch.Tensor:
        return cross / (self.alpha * (self.alpha - 1))

    def moment_form(self, prior: PriorDensity) -> MomentForm | None:
        """For order 1, which is KL; see `Divergence.moment_form`."""
        return KLDivergence().moment_form(prior) if self.alpha == 1 else None

    def order_form(self, prior: PriorDensity) -> OrderForm | None:
        """For a factorized normal prior; see `Divergence.order_form`."""
        return order_form(prior, float(self.alpha))
