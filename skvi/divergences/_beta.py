"""Beta divergence."""

from numbers import Real

import torch

from skvi.base import NormalForm
from skvi.base._protocols import PosteriorDensity, PriorDensity
from skvi.divergences._kl import KL
from skvi.divergences._messages import collapse_message, draw_logs
from skvi.divergences._nodes import fits_nodes, node_terms
from skvi.divergences._pair import Pair, infinite, normal_of, power_parts
from skvi.divergences._pair_terms import TINY_WEIGHT, beta_terms
from skvi.divergences._powers import PowerDivergence, exp_gap
from skvi.divergences.base import DivergenceTerms
from skvi.utils._validation import Interval

__all__ = ["BetaDivergence"]

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

    For other priors linear models integrate by fixed nodes, see `Renyi`. Other models
    estimate it from S draws of q, without bias. The term without q comes from draws of
    the prior in a fit; from log densities alone it is estimated by importance sampling,
    with heavy tails where q is much narrower than the prior.

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
    def _order(self) -> float:
        return float(self.beta)

    def closed_form(self, q: NormalForm, prior: PriorDensity) -> torch.Tensor:
        """Closed form, or one by nodes; see `Divergence.closed_form`."""
        if not self.has_closed_form(prior):
            return self._at_nodes(q, prior)
        return self._value(self._pair(q, prior)).sum()

    def terms(
        self,
        q: NormalForm,
        prior: PriorDensity,
        q_precision: torch.Tensor | None = None,
    ) -> DivergenceTerms:
        """Value and derivatives; see `Divergence.terms`."""
        if not self.has_closed_form(prior):
            if self._b == 0:
                return KL().terms(q, prior, q_precision)
            own, cross, _ = self._log_integrals(q, prior)
            cross, own = (x.exp().clamp(min=TINY_WEIGHT) for x in (cross, own))
            weights = cross, own / self.beta
            return node_terms(self.closed_form, q, prior, 1.0, self._b, weights)
        pair = self._pair(q, prior)
        return beta_terms(pair, self._b, self._value(pair).sum(), q_precision)

    def collapse(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        generator: torch.Generator,
    ) -> str:
        """Warn if a point mass is the optimum; see `Divergence.collapse`."""
        b, q, size = self._b, posterior.as_normal(), posterior.layout.size
        if b == 0:
            return ""
        if q is not None and self.has_closed_form(prior):
            parts = power_parts(self._pair(q, prior), b)
            if parts is None:  # for b > 0: a posterior that is numerically flat
                return self._lost_prior(q.mean.new_zeros(()), size) if b > 0 else ""
            own, cross = torch.exp(parts[0] + b * parts[1]), parts[0].exp()
        elif q is not None and fits_nodes(q, prior):
            own, cross = (x.exp() for x in self._log_integrals(q, prior)[:2])
        else:
            log_q, log_prior = draw_logs(posterior, prior, generator)
            own, cross = (b * log_q).exp().mean(), (b * log_prior).exp().mean()
        if b > 0:
            return self._lost_prior(cross, size)
        excess = -b * size / own.numel()
        why = "for narrow posteriors"
        if excess > 2:
            why += f", and (1 - beta) P = {excess:.3g} is above 2"
        return collapse_message(self, own / self.beta, why)

    def _lost_prior(self, weight: torch.Tensor, size: int) -> str:
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

    def _pair(self, q: NormalForm, prior: PriorDensity) -> Pair:
        return Pair(q, normal_of(prior), split=not self.joint)

    def _value(self, pair: Pair) -> torch.Tensor:
        parts = power_parts(pair, self._b)
        if parts is None:
            return infinite(pair)
        log_cross, own, prior = parts
        first = exp_gap(log_cross, self._b, own)
        return (first + self._b * exp_gap(log_cross, self._b, prior)) / self.beta

    def _from_means(
        self, log_q: torch.Tensor, log_prior: torch.Tensor, log_norm: torch.Tensor
    ) -> torch.Tensor:
        b = self._b
        # (q^b - pi^b) / b, and the remainder: the norm of the prior minus E_q[pi^b].
        first = exp_gap(b * log_prior, b, log_q - log_prior).mean()
        return (first + log_norm.exp() - (b * log_prior).exp().mean()) / self.beta

    def _from_logs(
        self, log_own: torch.Tensor, log_cross: torch.Tensor, log_norm: torch.Tensor
    ) -> torch.Tensor:
        first = exp_gap(log_cross, self._b, (log_own - log_cross) / self._b)
        return (first + log_norm.exp() - log_cross.exp()) / self.beta
