"""Gamma divergence."""

from numbers import Real

import torch

from skvi.base import NormalForm
from skvi.base._protocols import PriorDensity
from skvi.divergences._kl import KL
from skvi.divergences._nodes import node_terms
from skvi.divergences._pair import Pair, infinite, normal_of, power_parts
from skvi.divergences._pair_terms import gamma_terms
from skvi.divergences._powers import PowerDivergence
from skvi.divergences.base import DivergenceTerms
from skvi.utils._log_space import log_mean_exp
from skvi.utils._validation import Interval

__all__ = ["GammaDivergence"]


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

    For other priors linear models integrate by fixed nodes, see `Renyi`. Other models
    estimate it from S draws of q: consistently, as logs of means with a bias O(1/S),
    from the first term downwards and from the last one upwards for ``gamma > 1``. The
    term without q comes from draws of the prior in a fit; from log densities alone by
    importance sampling, far too low if q is much narrower than the prior.

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

    @property
    def is_weak(self) -> bool:
        """For all orders but 1; see `Divergence.is_weak`."""
        return self.gamma != 1

    @property
    def _order(self) -> float:
        return float(self.gamma)

    def closed_form(self, q: NormalForm, prior: PriorDensity) -> torch.Tensor:
        """Closed form, or one by nodes; see `Divergence.closed_form`."""
        if not self.has_closed_form(prior):
            return self._at_nodes(q, prior)
        return self._value(Pair(q, normal_of(prior)))

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
            weights = 1.0, 1 / self.gamma
            return node_terms(self.closed_form, q, prior, 1.0, self._b, weights)
        pair = Pair(q, normal_of(prior))
        return gamma_terms(pair, self._b, self._value(pair), q_precision)

    def _value(self, pair: Pair) -> torch.Tensor:
        parts = power_parts(pair, self._b)
        if parts is None:
            return infinite(pair)
        return (parts[1] + self._b * parts[2]) / self.gamma

    def _from_means(
        self, log_q: torch.Tensor, log_prior: torch.Tensor, log_norm: torch.Tensor
    ) -> torch.Tensor:
        b = self._b
        if b == 0:
            return (log_q - log_prior).mean()
        own, cross = (log_mean_exp(b * v) for v in (log_q, log_prior))
        return self._from_logs(own, cross, log_norm)

    def _from_logs(
        self, log_own: torch.Tensor, log_cross: torch.Tensor, log_norm: torch.Tensor
    ) -> torch.Tensor:
        return ((log_own - log_cross) / self._b + log_norm - log_cross) / self.gamma
