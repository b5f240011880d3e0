"""Beta and gamma divergences."""

from numbers import Real

import torch

from skvi.base._component import PosteriorDensity, PriorDensity
from skvi.divergences._forms import collapse_message, draw_logs
from skvi.divergences._integrals import PowerDivergence
from skvi.divergences._nodes import fits_nodes
from skvi.utils._tensors import log_mean_exp
from skvi.utils._validation import Interval

# Gradient in the mean, relative to KL, below which the prior has no effect.
LOST_BELOW = 0.01


class BetaDivergence(PowerDivergence):
    r"""Beta divergence, per coordinate where q and the prior are factorized.

    .. math:: D_\beta(q \| \pi) = \frac{1}{\beta(\beta-1)} \int \left(
              q^\beta + (\beta-1) \pi^\beta - \beta q \pi^{\beta-1} \right) d\theta

    Parameters
    ----------
    beta : float, default=1.1
        Order, above 0. 1 is ``KL(q || prior)``.
    joint : bool, default=False
        False: for a factorized normal q and prior, the sum over coordinates of
        their divergences. True: the formula above in all P dimensions. For a correlated
        q or prior, and for priors that are not normal, the formula is always used as it
        is.

    Notes
    -----
    Densities have units, so that the value depends on the units of theta: the
    features should be standardized. In P dimensions the terms are powers of P:
    above 1 the first one grows with every narrow dimension and the mean of the prior
    loses its influence, below 1 it vanishes, and once ``(1-beta) P > 2`` a point mass
    is an optimum. A fit that ends in either state warns.

    For ``beta < 1`` it is finite only while cov(q) is below ``1/(1-beta)`` times the
    covariance of the prior; outside the value is ``inf``. At ``beta <= 0`` its terms
    are infinite with opposite signs: refused.

    For other priors linear models integrate by fixed nodes, see `RenyiDivergence`.
    Other models estimate it from S draws of q, without bias. The term without q comes
    from draws of the prior in a fit; from log densities alone it is estimated by
    importance sampling, with heavy tails where q is much narrower than the prior.

    References
    ----------
    Knoblauch, Jewson and Damoulas, *Generalized Variational Inference*,
    beta-divergence.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.divergences import BetaDivergence
    >>> from skvi.priors import Normal
    >>> prior = Normal().build(Layout({"coef": (1, 2)}))
    >>> q = NormalForm(torch.ones(2), torch.ones(2))
    >>> round(float(BetaDivergence(beta=1.5).closed_form(q, prior)), 4)
    0.3167
    >>> joint = BetaDivergence(beta=1.5, joint=True)
    >>> round(float(joint.closed_form(q, prior)), 4)
    0.1508
    """

    _parameter_constraints: dict = {
        "beta": [Interval(Real, 0, None, closed="neither")],
        "joint": ["boolean"],
    }

    def __init__(self, beta: float = 1.1, joint: bool = False) -> None:
        self.beta = beta
        self.joint = joint

    @property
    def _order(self) -> float:  # type: ignore[override]
        return float(self.beta)

    def _combine(self, cross: torch.Tensor, *alone: torch.Tensor) -> torch.Tensor:
        own, norm = alone
        first = exp_gap(cross, self._b, (own - cross) / self._b)
        return (first + exp_gap(cross, 1.0, norm - cross)) / self.beta

    @torch.no_grad()
    def collapse(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        generator: torch.Generator,
    ) -> str:
        """Warn if a point mass is the optimum; see `Divergence.collapse`."""
        b, q, size = self._b, posterior.as_normal(), posterior.layout.size
        if self._is_kl:
            return ""
        if q is not None and (self.has_closed_form(prior) or fits_nodes(q, prior)):
            cross, own, _ = self._log_integrals(q, prior)
        else:
            logs = draw_logs(posterior, prior, generator)
            own, cross = (log_mean_exp(b * x) for x in logs)
        if b > 0:
            return self._lost_prior(cross.exp(), size)
        excess = -b * size / own.numel()
        why = "for narrow posteriors"
        if excess > 2:
            why += f", and (1 - beta) P = {excess:.3g} is above 2"
        return collapse_message(self, own.exp() / self.beta, why)

    def _lost_prior(self, weight: torch.Tensor, size: int) -> str:
        # Infinite only by rounding, for a posterior of enormous width.
        weight = torch.where(weight.isfinite(), weight, torch.zeros_like(weight))
        lost = int((weight < LOST_BELOW).sum())
        if not lost:
            return ""
        where = f"in {size} dimensions"
        remedy = "divergence='gamma' or 'kl', or beta closer to 1"
        if weight.numel() == 1:
            remedy += (
                ", or posterior='mean_field' with a normal prior and joint=False, "
                "which is applied per coordinate"
            )
        else:
            where = f"in {lost} of {size} coordinates"
        return (
            f"the prior has been lost: {where} the gradient of {self!r} in the "
            f"means is {float(weight.min()):.1g} of that of KL, so that nothing bounds "
            f"them. Use {remedy}"
        )


def exp_gap(log_base: torch.Tensor, b: float, t: torch.Tensor) -> torch.Tensor:
    """``exp(log_base) (exp(b t) - 1) / b``.

    Neither a product of zero and infinity nor a difference of nearly equal numbers.
    """
    small = (b * t).abs() < 1
    near = log_base.exp() * torch.expm1(b * torch.where(small, t, 0.0)) / b
    far = (torch.exp(log_base + b * torch.where(small, 0.0, t)) - log_base.exp()) / b
    return torch.where(small, near, far)


class GammaDivergence(PowerDivergence):
    r"""Gamma divergence.

    .. math:: D_\gamma(q \| \pi) = \frac{1}{\gamma(\gamma-1)} \left(
              \log \int q^\gamma + (\gamma-1) \log \int \pi^\gamma
              - \gamma \log \int q \pi^{\gamma-1} \right)

    Parameters
    ----------
    gamma : float, default=1.1
        Order, above 0. 1 is ``KL(q || prior)``.

    Notes
    -----
    It is additive: for a factorized q and prior it is the sum of the divergences of the
    coordinates, unlike the alpha- and the beta-divergence, so that it needs no separate
    form per coordinate. It does not depend on the units of theta, and never collapses.

    For ``gamma < 1`` it is finite only while cov(q) is below ``1/(1-gamma)`` times
    the covariance of the prior; outside the value is ``inf``. At ``gamma <= 0`` its
    terms are infinite with opposite signs: refused.

    For other priors linear models integrate by fixed nodes, see `RenyiDivergence`.
    Other models estimate it from S draws of q: consistently, as logs of means with a
    bias O(1/S), from the first term downwards and from the last one upwards for ``gamma
    > 1``. The term without q comes from draws of the prior in a fit; from log densities
    alone by importance sampling, far too low if q is much narrower than the prior.

    References
    ----------
    Knoblauch, Jewson and Damoulas, *Generalized Variational Inference*,
    gamma-divergence.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.divergences import GammaDivergence
    >>> from skvi.priors import Normal
    >>> prior = Normal().build(Layout({"coef": (1, 1)}))
    >>> q = NormalForm(torch.ones(1), torch.ones(1))
    >>> round(float(GammaDivergence(gamma=1.5).closed_form(q, prior)), 6)
    0.333333
    """

    _parameter_constraints: dict = {
        "gamma": [Interval(Real, 0, None, closed="neither")]
    }

    def __init__(self, gamma: float = 1.1) -> None:
        self.gamma = gamma

    joint = True  # it is additive

    @property
    def is_weak(self) -> bool:
        """For all orders but 1; see `Divergence.is_weak`."""
        return self.gamma != 1

    @property
    def _order(self) -> float:  # type: ignore[override]
        return float(self.gamma)

    def _combine(self, cross: torch.Tensor, *alone: torch.Tensor) -> torch.Tensor:
        own, norm = alone
        return ((own - cross) / self._b + norm - cross) / self.gamma
