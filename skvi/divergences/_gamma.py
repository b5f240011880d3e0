"""Gamma divergence."""

from numbers import Real

import torch

from skvi.divergences._integrals import PowerDivergence
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
