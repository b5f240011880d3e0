"""Jeffreys divergence."""

from typing import cast

import torch

from skvi.base import NormalForm
from skvi.base._protocols import PosteriorDensity, PriorDensity
from skvi.divergences._kl import kl_of_normals
from skvi.divergences._linalg import apply, precision_of, subtract
from skvi.divergences.base import Divergence, DivergenceTerms
from skvi.exceptions import IncompatibleComponentsError

__all__ = ["JeffreysDivergence"]


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
                "JeffreysDivergence() is infinite for a prior without a variance. Use "
                "divergence='kl' or 'renyi', or prior='normal' or 'laplace'."
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
