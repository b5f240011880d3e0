"""Alpha divergence."""

import math
from numbers import Real

import torch

from skvi.base import NormalForm
from skvi.base._protocols import PosteriorDensity, PriorDensity
from skvi.divergences._kl import KL
from skvi.divergences._messages import (
    N_DRAWS,
    collapse_message,
    draw_logs,
    noise_message,
)
from skvi.divergences._nodes import fits_nodes, log_integrals, node_terms
from skvi.divergences._pair import Pair, normal_of, order_form, renyi
from skvi.divergences._pair_terms import TINY_WEIGHT, alpha_from_renyi, alpha_terms
from skvi.divergences._tempered import log_tempered_integral, tempered_normal
from skvi.divergences.base import Divergence, DivergenceTerms, OrderForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.utils._validation import Interval

__all__ = ["AlphaDivergence"]


class AlphaDivergence(Divergence):
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

    For other priors linear models integrate by fixed nodes, see `Renyi`; other models
    use draws of the normal ``q^alpha``: the value without bias, its gradient with one
    of O(1/S), a few percent for the 128 draws of a step in training.

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

    def check_regularizer(self) -> None:
        """Refuse orders below zero, where q would have to be as wide as the prior."""
        self.validate()
        if self.alpha <= 0:
            raise IncompatibleComponentsError(
                f"{self!r} cannot regularize a posterior: for alpha <= 0 it is "
                "infinite, or grows without bound, as soon as the posterior becomes "
                "much narrower than the prior. Use alpha > 0; alpha=1 is KL."
            )

    @property
    def max_variance_ratio(self) -> float:
        """For orders above 1; see `Divergence.max_variance_ratio`."""
        return self.alpha / (self.alpha - 1) if self.alpha > 1 else math.inf

    def has_closed_form(self, prior: PriorDensity) -> bool:
        """Whether the prior is normal."""
        return prior.as_normal() is not None

    def has_nodes(self, q: NormalForm, prior: PriorDensity) -> bool:
        """For proper priors with independent coordinates."""
        return fits_nodes(q, prior)

    def closed_form(self, q: NormalForm, prior: PriorDensity) -> torch.Tensor:
        """Closed form, or one by nodes; see `Divergence.closed_form`."""
        if not self.has_closed_form(prior):
            if self.alpha == 1:
                return KL().closed_form(q, prior)
            return -torch.expm1(self._log_overlap(q, prior)).sum() / self._k
        order = renyi(self._pair(q, prior), float(self.alpha))
        return alpha_from_renyi(order, self._k).sum()

    def order_form(self, prior: PriorDensity) -> OrderForm | None:
        """Per coordinate; see `Divergence.order_form`."""
        return None if self.joint else order_form(prior, float(self.alpha), self._k)

    def monte_carlo(self, log_q: torch.Tensor, log_prior: torch.Tensor) -> torch.Tensor:
        """Mean of powered ratios, of the joint form: unbiased."""
        a, ratio = self.alpha, log_q - log_prior
        if a == 1:
            return ratio.mean()
        if a == 0:
            return (-ratio * torch.exp(-ratio)).mean()
        return -torch.expm1((a - 1) * ratio).mean() / self._k

    def terms(
        self,
        q: NormalForm,
        prior: PriorDensity,
        q_precision: torch.Tensor | None = None,
    ) -> DivergenceTerms:
        """Value and derivatives; see `Divergence.terms`."""
        if not self.has_closed_form(prior):
            if self.alpha == 1:
                return KL().terms(q, prior, q_precision)
            overlap = self._log_overlap(q, prior).exp().clamp(min=TINY_WEIGHT)
            powers = self.alpha, 1 - self.alpha
            return node_terms(self.closed_form, q, prior, *powers, (overlap, overlap))
        return alpha_terms(self._pair(q, prior), float(self.alpha), q_precision)

    def estimate(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        log_q: torch.Tensor,
        log_prior: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """From draws of q^alpha if q is normal; see `Divergence.estimate`."""
        a, q = float(self.alpha), tempered_normal(posterior, self.alpha)
        if q is None or a == 1:
            return self.monte_carlo(log_q, log_prior)
        logs, _ = log_tempered_integral(q, prior, a, generator, self.joint)
        return -torch.expm1(logs).sum() / self._k

    @torch.no_grad()
    def collapse(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        generator: torch.Generator,
    ) -> str:
        """Warn if a point mass is the optimum; see `Divergence.collapse`."""
        q, message = tempered_normal(posterior, self.alpha), ""
        if q is not None and self.has_closed_form(prior):
            overlap = torch.exp(-self._k * renyi(self._pair(q, prior), self.alpha))
        elif q is not None and fits_nodes(q, prior):
            overlap = self._log_overlap(q, prior).exp()
        elif q is not None:
            logs, weights = log_tempered_integral(
                q, prior, float(self.alpha), generator, self.joint, N_DRAWS
            )
            overlap, message = logs.exp(), noise_message(self, weights)
        else:
            log_q, log_prior = draw_logs(posterior, prior, generator)
            powers = (self.alpha - 1) * (log_q - log_prior)
            overlap, message = powers.exp().mean(), noise_message(self, powers)
        if not 0 < self.alpha < 1:
            return message
        excess = (1 - self.alpha) * posterior.layout.size / overlap.numel()
        why = f"it is at most {overlap.numel() / self._k:.3g}"
        if excess > 2:
            why += f", and (1 - alpha) P = {excess:.3g} is above 2"
        return collapse_message(self, overlap / self.alpha, why) or message

    def _log_overlap(self, q: NormalForm, prior: PriorDensity) -> torch.Tensor:
        """Log of the integral of q^alpha pi^(1 - alpha), by nodes."""
        logs = log_integrals(q, prior, float(self.alpha), 1 - float(self.alpha))
        return logs.sum() if self.joint or len(logs) == 1 else logs

    @property
    def _k(self) -> float:
        return float(self.alpha * (1 - self.alpha))

    def _pair(self, q: NormalForm, prior: PriorDensity) -> Pair:
        return Pair(q, normal_of(prior), split=not self.joint)
