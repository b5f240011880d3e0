"""Rényi divergence."""

import math
from numbers import Real
from typing import Any

import torch

from skvi.base import NormalForm
from skvi.divergences._linalg import (
    apply,
    factorise,
    inverse_of,
    mix,
    precision_of,
    subtract,
)
from skvi.divergences.base import Divergence, DivergenceTerms
from skvi.exceptions import IncompatibleComponentsError
from skvi.utils._validation import Interval

__all__ = ["Renyi"]


class Renyi(Divergence):
    r"""Rényi divergence in the scaling of generalised variational inference.

    .. math:: D_\alpha(q \| \pi) = \frac{1}{\alpha(\alpha-1)}
              \log \int q^\alpha \pi^{1-\alpha} d\theta

    Parameters
    ----------
    alpha : float, default=0.5
        Order. 1 is ``KL(q || prior)``, and the limit 0 is ``KL(prior || q)``.
        Below 1 the divergence punishes a narrow posterior more than KL and a
        wide one hardly at all; above 1 it is the other way round.

    Notes
    -----
    For ``alpha > 1`` it is finite only while cov(q) is below ``alpha/(alpha-1)``
    times the covariance of the prior, for ``alpha < 0`` only while it is above
    ``|alpha|/(1+|alpha|)`` times it, so that negative orders cannot regularise a
    posterior that learns from data: they are refused there. Outside its range
    the value is ``inf``. The scaling differs from the classical one by 1/alpha.

    The estimate from S draws, for priors that are not normal, is consistent and
    biased upwards for 0 < alpha < 1, downwards for alpha > 1.

    References
    ----------
    Knoblauch, Jewson and Damoulas, *Generalized Variational Inference*,
    alpha-Rényi divergence.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.divergences import Renyi
    >>> from skvi.priors import Normal
    >>> prior = Normal().build(Layout({"coef": (1, 1)}))
    >>> q = NormalForm(torch.ones(1), torch.ones(1))
    >>> round(float(Renyi(alpha=0.5).closed_form(q, prior)), 6)
    0.5
    """

    _parameter_constraints: dict = {
        "alpha": [Interval(Real, None, None, closed="neither")]
    }

    def __init__(self, alpha: float = 0.5) -> None:
        self.alpha = alpha

    def check_regularizer(self) -> None:
        """Refuse orders below zero, where q would have to be as wide as the prior."""
        self.validate()
        if self.alpha <= 0:
            raise IncompatibleComponentsError(
                f"Renyi(alpha={self.alpha}) cannot regularise a posterior: for "
                "alpha <= 0 it is infinite, or grows without bound, as soon as the "
                "posterior becomes much narrower than the prior. Use alpha > 0; "
                "alpha=1 is KL, smaller values give wider posteriors."
            )

    def has_closed_form(self, prior: Any) -> bool:
        """Whether the prior is normal."""
        return prior.as_normal() is not None

    def closed_form(self, q: NormalForm, prior: Any) -> torch.Tensor:
        """Closed form; see `Divergence.closed_form`."""
        return _renyi(q, prior.as_normal(), float(self.alpha))

    def monte_carlo(self, log_q: torch.Tensor, log_prior: torch.Tensor) -> torch.Tensor:
        """Log mean of the powered ratios: consistent, biased (see Notes)."""
        a, ratio = self.alpha, log_q - log_prior
        if a == 1:
            return ratio.mean()
        if a == 0:
            return (torch.softmax(-ratio, 0) * -ratio).sum()
        log_mean = torch.logsumexp((a - 1) * ratio, 0) - math.log(len(ratio))
        return log_mean / (a * (a - 1))

    def terms(
        self, q: NormalForm, prior: Any, q_precision: torch.Tensor | None = None
    ) -> DivergenceTerms:
        """Value and derivatives; see `Divergence.terms`."""
        pi, a = prior.as_normal(), float(self.alpha)
        b = 1 - a
        precision = precision_of(q) if q_precision is None else q_precision
        inverse = inverse_of(mix(a, pi, b, q))
        u = apply(inverse, q.mean - pi.mean)
        outer = u.square() if inverse.ndim == 1 else torch.outer(u, u)
        pull = subtract(inverse, precision) / a - b * outer
        return DivergenceTerms(_renyi(q, pi, a), u, inverse, pull, 1 / a)


def _renyi(q: NormalForm, pi: NormalForm, a: float) -> torch.Tensor:
    """J(a, 1-a) / (a (a-1)), without cancellation near the orders 0 and 1."""
    b = 1 - a
    factor = factorise(mix(a, pi, b, q))
    if factor is None:
        return torch.full((), math.inf, dtype=q.mean.dtype)
    mixed = NormalForm(q.mean, factor)
    deviation = mixed.whiten((q.mean - pi.mean)[None]).square().sum()
    if min(abs(a), abs(b)) > 1e-3:
        log_dets = b * q.half_log_det + a * pi.half_log_det - mixed.half_log_det
        return 0.5 * deviation - log_dets / (a * b)
    return 0.5 * deviation - _log_det_ratio(_relative_eigenvalues(q, pi), a)


def _log_det_ratio(s: torch.Tensor, a: float) -> torch.Tensor:
    """Sum of (b log s - log(a + b s)) / (2 a b), stable near a = 0 and b = 0.

    ``log(a + b s)`` is ``log1p(b (s - 1))``, and ``log s + log1p(a (1/s - 1))``.
    """
    b = 1 - a
    if abs(b) <= abs(a):
        return 0.5 * ((s.log() - _log1p_ratio(b, s - 1)) / a).sum()
    return 0.5 * ((-s.log() - _log1p_ratio(a, 1 / s - 1)) / b).sum()


def _log1p_ratio(x: float, t: torch.Tensor) -> torch.Tensor:
    """Return log1p(x t) / x, and its limit t at x = 0."""
    return t if x == 0 else torch.log1p(x * t) / x


def _relative_eigenvalues(q: NormalForm, pi: NormalForm) -> torch.Tensor:
    """Eigenvalues of cov(q) relative to cov(pi)."""
    if q.is_diagonal and pi.is_diagonal:
        return q.variance / pi.variance
    scale = torch.diag(q.scale) if q.is_diagonal else q.scale
    return torch.linalg.svdvals(pi.whiten(scale.T)).square()
