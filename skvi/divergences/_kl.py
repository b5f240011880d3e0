"""Kullback-Leibler and Jeffreys divergences."""

from numbers import Real
from typing import Any, cast

import torch

from skvi.base import NormalForm
from skvi.base._component import PosteriorDensity, PriorDensity
from skvi.divergences._forms import apply, in_double, precision_of, subtract
from skvi.divergences.base import Divergence, DivergenceTerms, MomentForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.utils._validation import Interval, StrOptions


class KLDivergence(Divergence):
    r"""Kullback-Leibler divergence, ``weight * KL(q || prior)``.

    Parameters
    ----------
    weight : float or "auto", default=1.0
        1 is standard Bayesian inference; ``1/w`` gives the power posterior, in which
        every observation has weight ``w``. "auto", for linear models and networks,
        is the one with the best log density of held-out rows.

    Notes
    -----
    A closed form, or a one-dimensional integral without draws, for the priors of this
    package; an unbiased estimate from draws for other priors.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.divergences import KLDivergence
    >>> from skvi.priors import Normal
    >>> prior = Normal().build(Layout({"coef": (1, 1)}))
    >>> q = NormalForm(torch.ones(1), torch.ones(1))
    >>> round(float(KLDivergence().closed_form(q, prior)), 6)
    0.5
    """

    _parameter_constraints: dict = {
        "weight": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})]
    }

    def __init__(self, weight: float | str = 1.0) -> None:
        self.weight: Any = weight

    def check_regularizer(self) -> None:
        """Refuse a weight that no fit has chosen."""
        super().check_regularizer()
        if self.weight == "auto":
            raise IncompatibleComponentsError(
                "KLDivergence(weight='auto')",
                "held-out rows, which linear models and networks have",
                "a number, such as KLDivergence(weight=1.0), or search over it",
            )

    def check_prior(self, prior: PriorDensity) -> None:
        """Accept improper priors: a factor of the density changes no optimum."""

    @property
    def kl_weight(self) -> float:  # type: ignore[override]
        """The weight."""
        return self.weight

    def has_closed_form(self, prior: PriorDensity) -> bool:
        """Whether expectations of the log prior under a normal q are closed."""
        return prior.as_normal() is not None or prior.has_expected_log_prob

    def closed_form(self, q: NormalForm, prior: PriorDensity) -> torch.Tensor:
        """Closed form; see `Divergence.closed_form`. Shape (...) for (..., P)."""
        pi = prior.as_normal()
        if pi is not None:
            return self.weight * kl_of_normals(q, pi)
        log_prior = prior.expected_log_prob(q.mean, q.variance.sqrt()).sum(-1)
        return self.weight * (-q.entropy() - log_prior)

    def moment_form(self, prior: PriorDensity) -> MomentForm | None:
        """Coefficients for a normal prior with independent coordinates."""
        pi = prior.as_normal()
        if pi is None or not pi.is_diagonal:
            return None
        constant = self.weight * float((pi.scale.log() - 0.5).sum())
        precision = self.weight / pi.variance
        return MomentForm(precision, pi.mean, float(self.weight), constant)

    def monte_carlo(self, log_q: torch.Tensor, log_prior: torch.Tensor) -> torch.Tensor:
        """Mean log ratio: unbiased."""
        return self.weight * (log_q - log_prior).mean()

    def terms(
        self,
        q: NormalForm,
        prior: PriorDensity,
        q_precision: torch.Tensor | None = None,
    ) -> DivergenceTerms:
        """Value and derivatives; see `Divergence.terms`."""
        w, pi = self.weight, prior.as_normal()
        precision = precision_of(q) if q_precision is None else q_precision
        value = self.closed_form(q, prior)
        if pi is None:
            gradient, exact = _separable_derivatives(prior, q)
            # If -log prior is not convex, the curvature of a parabola above it that is
            # symmetric around 0, as for a mixture of normals around 0.
            above = (gradient / q.mean).nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
            curvature = torch.where(exact < 0, above, exact)
        else:
            exact = curvature = precision_of(pi)
            gradient = apply(curvature, q.mean - pi.mean)
        natural = w * subtract(exact, precision)
        return DivergenceTerms(value, w * gradient, w * curvature, natural, w)


def kl_of_normals(q: NormalForm, pi: NormalForm) -> torch.Tensor:
    """KL(q || pi) of each q."""
    if q.factor is not None or pi.factor is not None:
        q, pi = in_double(q), in_double(pi)
    distance = pi.squared_distance((q.mean - pi.mean)[None])[0]
    both = _trace_of_ratio(q, pi) + distance
    return pi.half_log_det - q.half_log_det + 0.5 * (both - q.size)


def _trace_of_ratio(q: NormalForm, pi: NormalForm) -> torch.Tensor:
    """Trace of ``cov(pi)^-1 cov(q)``; without a matrix (P, P) unless one has one."""
    if pi.is_diagonal:
        return (q.variance / pi.variance).sum(-1)
    if pi.factor is None or q.scale.ndim > q.mean.ndim:
        return (precision_of(pi) * q.covariance()).sum((-2, -1))
    # Woodbury, as in `NormalForm.squared_distance`, for the diagonal part of q.
    unit = pi.factor / pi.scale[:, None]
    capacity = torch.eye(unit.shape[1], dtype=unit.dtype, device=unit.device)
    capacity = capacity + unit.T @ unit
    inside = (unit * torch.linalg.solve(capacity, unit.T).T).sum(1)
    trace = ((q.scale / pi.scale).square() * (1 - inside)).sum(-1)
    return trace if q.factor is None else trace + pi.squared_distance(q.factor.mT).sum()


def _separable_derivatives(
    prior: PriorDensity, q: NormalForm
) -> tuple[torch.Tensor, torch.Tensor]:
    """Derivatives of -E_q[log prior] in the mean, and twice those in the variance.

    The latter is also the second derivative in the mean.
    """
    with torch.inference_mode(False), torch.enable_grad():
        mean = q.mean.detach().clone().requires_grad_()
        variance = q.variance.detach().clone().requires_grad_()
        value = -prior.expected_log_prob(mean, variance.sqrt()).sum()
        gradient, half = torch.autograd.grad(value, (mean, variance))
    return gradient, 2 * half


class JeffreysDivergence(Divergence):
    r"""Jeffreys divergence, ``KL(q || prior) + KL(prior || q)``.

    It is symmetric: the sum, not the mean, of both directions.

    Notes
    -----
    For normals the entropies cancel:

    .. math:: D = \tfrac12 \left( \mathrm{tr}(\Sigma_\pi^{-1} \Sigma_q)
              + \mathrm{tr}(\Sigma_q^{-1} \Sigma_\pi) - 2P
              + \Delta^T (\Sigma_\pi^{-1} + \Sigma_q^{-1}) \Delta \right),
              \quad \Delta = \mu_q - \mu_\pi.

    For a narrow q it grows like 1/width^2, not like a log, so that posteriors are much
    wider than with KL: if the data are informative, of the order of the geometric mean
    of the widths of posterior and prior. It needs a prior with a finite variance.
    Networks start with a narrow q, for which it is huge: they need more iterations than
    with KL.

    In a fit with a prior that is not normal, draws of q give the first direction and
    draws of the prior the second: unbiased. From log densities at draws of q alone,
    the second is self-normalized: consistent, and far too low if q is much narrower
    than the prior.

    References
    ----------
    Jeffreys (1946), *An invariant form for the prior probability in estimation
    problems*. Knoblauch, Jewson and Damoulas (2019), *Generalized Variational
    Inference*, use it as an uncertainty quantifier.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.divergences import JeffreysDivergence
    >>> from skvi.priors import Normal
    >>> prior = Normal().build(Layout({"coef": (1, 1)}))
    >>> q = NormalForm(torch.ones(1), torch.ones(1))
    >>> float(JeffreysDivergence().closed_form(q, prior))
    1.0
    """

    def has_closed_form(self, prior: PriorDensity) -> bool:
        """Whether the prior is normal."""
        return prior.as_normal() is not None

    def check_prior(self, prior: PriorDensity) -> None:
        """Refuse priors without a variance, for which it is infinite."""
        super().check_prior(prior)
        if _has_infinite_variance(prior):
            raise IncompatibleComponentsError(
                "JeffreysDivergence()",
                "a prior that is known to have a variance, or it is infinite",
                "divergence='kl' or 'renyi', or a prior such as 'normal' or 'laplace'",
            )

    def closed_form(self, q: NormalForm, prior: PriorDensity) -> torch.Tensor:
        """Closed form; see `Divergence.closed_form`."""
        pi = cast(NormalForm, prior.as_normal())
        return kl_of_normals(q, pi) + kl_of_normals(pi, q)

    def collapse(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        generator: torch.Generator,
    ) -> str:
        """It cannot; see `Divergence.collapse`."""
        return ""

    def monte_carlo(self, log_q: torch.Tensor, log_prior: torch.Tensor) -> torch.Tensor:
        """Both directions from draws of q: consistent, biased (see Notes)."""
        ratio = log_q - log_prior
        return ratio.mean() + (torch.softmax(-ratio, 0) * -ratio).sum()

    def estimate(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        log_q: torch.Tensor,
        log_prior: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Unbiased, with draws of the prior too; see `Divergence.estimate`."""
        theta = prior.sample(len(log_q), generator).to(log_q.dtype)
        backward = prior.log_prob(theta) - posterior.log_prob(theta)
        return (log_q - log_prior).mean() + backward.mean()

    def terms(
        self,
        q: NormalForm,
        prior: PriorDensity,
        q_precision: torch.Tensor | None = None,
    ) -> DivergenceTerms:
        """Value and derivatives; see `Divergence.terms`."""
        pi = cast(NormalForm, prior.as_normal())
        precision = precision_of(q) if q_precision is None else q_precision
        own, shift = precision_of(pi), q.mean - pi.mean
        curvature = subtract(own, -precision)
        moved = apply(precision, shift)
        sandwich = _congruent(precision, pi) + (
            moved.square() if q.is_diagonal and pi.is_diagonal else moved.outer(moved)
        )
        return DivergenceTerms(
            self.closed_form(q, prior),
            apply(curvature, shift),
            curvature,
            subtract(own, sandwich),
            2 * _force(sandwich, q),  # which itself falls with the width
        )


def _has_infinite_variance(prior: PriorDensity) -> bool:
    """Whether the tails of a density decay more slowly than ``|theta|^-3``."""
    normal = prior.matching_normal()
    if normal is None or prior.as_normal() is not None:
        return normal is None
    far = normal.mean + 1e6 * normal.variance.sqrt()
    powers = prior.log_prob_gradient(far[None])[0] * far
    return bool((powers > -3 - 1e-6).any())


def _force(sandwich: torch.Tensor, q: NormalForm) -> torch.Tensor:
    """-dD / d(log width) relative to KL: for each coordinate, or the mean."""
    if sandwich.ndim == 1:
        return sandwich * q.variance
    return (q.covariance() * sandwich).sum() / len(sandwich)


def _congruent(precision: torch.Tensor, pi: NormalForm) -> torch.Tensor:
    """``precision cov(pi) precision``."""
    if precision.ndim == 1 and pi.is_diagonal:
        return precision.square() * pi.variance
    covariance = pi.covariance()
    if precision.ndim == 1:
        return precision[:, None] * covariance * precision
    return precision @ covariance @ precision
