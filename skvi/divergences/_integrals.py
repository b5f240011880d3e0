"""Divergences that are functions of power integrals, exact or by draws."""

import math

import torch

from skvi.base import NormalForm
from skvi.base._component import PosteriorDensity, PriorDensity
from skvi.divergences._forms import (
    N_DRAWS,
    apply,
    draw_logs,
    inverse_of,
    log_power_integral,
    log_power_norm,
    mix,
    noise_message,
    precision_of,
    squared_outer,
    subtract,
)
from skvi.divergences._kl import KLDivergence, kl_of_normals
from skvi.divergences._nodes import (
    fits_nodes,
    log_integrals,
    log_norm_by_nodes,
    node_derivatives,
)
from skvi.divergences.base import Divergence, DivergenceTerms
from skvi.exceptions import IncompatibleComponentsError
from skvi.utils._tensors import LOG_2PI, log_mean_exp, randn
from skvi.utils._validation import TEMPORARY_ELEMENTS

# Draws of a step of training, and numbers that they may take at most.
MAX_DRAWS, MAX_NUMBERS = 128, 2**19


def tempered_normal(posterior: PosteriorDensity, order: float) -> NormalForm | None:
    """Differentiable normal of a posterior; None if no power of it can be drawn."""
    if order <= 0 or posterior.as_normal() is None:
        return None
    return posterior.normal()


def log_tempered_integral(
    q: NormalForm,
    prior: PriorDensity,
    order: float,
    generator: torch.Generator,
    joint: bool = True,
    n_draws: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log of the integral of q^a pi^(1-a), from draws of the normal q^a.

    Returns logs, (G,), for each coordinate unless `joint`, and log weights, (S, G).
    Consistent, its exponential unbiased; draws are held fixed in the gradient.
    """
    factorized = not joint and q.is_diagonal and prior.has_log_prob_terms
    size = q.size
    n_draws = n_draws or max(2, min(MAX_DRAWS, MAX_NUMBERS // size))
    with torch.no_grad():
        eps = randn(generator, n_draws // 2, q.n_noise, dtype=q.mean.dtype)
        half = (q.transform(eps) - q.mean) / math.sqrt(order)
        theta = q.mean + torch.cat([half, -half])
    if factorized:
        log_q, log_pi = q.log_prob_terms(theta), prior.log_prob_terms(theta)
        half_log_det, size = q.scale.log(), 1
    else:
        log_q, log_pi = q.log_prob(theta)[:, None], prior.log_prob(theta)[:, None]
        half_log_det = q.half_log_det[None]
    # The integral of q^a itself.
    log_norm = (1 - order) * (half_log_det + 0.5 * size * LOG_2PI)
    log_norm = log_norm - 0.5 * size * math.log(order)
    # They vary over the width of q as little as the prior does; those of draws of q
    # itself, (pi / q)^(1-a), would be heavy-tailed.
    log_weights = (1 - order) * log_pi.detach()
    value = log_norm + log_mean_exp(log_weights, 0)
    weights = torch.softmax(log_weights, 0)
    # log_norm holds the mean of the gradient of a log q.
    score = (weights - 1 / len(theta)) * order * log_q
    score = (score + (1 - order) * weights * log_pi).sum(0)
    return value + score - score.detach(), log_weights


# Closer than this to an order that is a limit it is the limit: to about 3e-7.
NEAR = 1e-7
# Weights of collapsed posteriors, which vanish: metrics and steps stay finite.
TINY_WEIGHT = 1e-8


class _IntegralDivergence(Divergence):
    """A function of log integrals: of q^a pi^b, and perhaps of q and pi alone.

    A subclass has `_order`, the limit of which is KL at 1, `_powers` a and b, and
    `_combine`, which is elementwise.
    """

    #: Whether factorized densities are compared in all P dimensions, or each coordinate
    #: alone. They are the same where `_combine` is linear.
    joint: bool = False
    _order: float
    _powers: tuple[float, float]

    def _combine(self, cross: torch.Tensor, *alone: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    @property
    def _is_kl(self) -> bool:
        return abs(self._order - 1) < NEAR

    def has_closed_form(self, prior: PriorDensity) -> bool:
        """Whether the prior is normal."""
        return prior.as_normal() is not None

    def has_nodes(self, q: NormalForm, prior: PriorDensity) -> bool:
        """For proper priors with independent coordinates."""
        return fits_nodes(q, prior)

    def closed_form(self, q: NormalForm, prior: PriorDensity) -> torch.Tensor:
        """Closed form, or one by nodes; see `Divergence.closed_form`."""
        if self._is_kl:
            return KLDivergence().closed_form(q, prior)
        return self._value(*self._log_integrals(q, prior))

    def _value(self, *logs: torch.Tensor) -> torch.Tensor:
        if bool((logs[0] == math.inf).any()):  # outside the range of the order
            return logs[0].sum()
        return self._combine(*logs).sum()

    def _log_integrals(
        self, q: NormalForm, prior: PriorDensity
    ) -> tuple[torch.Tensor, ...]:
        """Logs of the integrals that `_combine` takes."""
        pi, (a, b) = prior.as_normal(), self._powers
        if pi is not None:
            return (log_power_integral(q, pi, a, b, not self.joint),)
        logs = log_integrals(q, prior, a, b)
        return (logs.sum() if self.joint or len(logs) == 1 else logs,)

    def terms(
        self,
        q: NormalForm,
        prior: PriorDensity,
        q_precision: torch.Tensor | None = None,
    ) -> DivergenceTerms:
        """Value and derivatives; see `Divergence.terms`."""
        if self._is_kl:
            return KLDivergence().terms(q, prior, q_precision)
        (a, b), pi = self._powers, prior.as_normal()
        precision = precision_of(q) if q_precision is None else q_precision
        with torch.inference_mode(False), torch.enable_grad():
            logs = self._log_integrals(q, prior)
            logs = tuple(x.detach().clone().requires_grad_() for x in logs)
            value = self._value(*logs)
            weight, *rest = torch.autograd.grad(value, logs, materialize_grads=True)
        if pi is None:
            gradient, natural, inverse = node_derivatives(q, prior, a, b)
        else:
            inverse = inverse_of(mix(a, pi, b, q))
            u = apply(inverse, q.mean - pi.mean)
            gradient = -a * b * u
            natural = b * (a * b * squared_outer(u, inverse) - inverse)
            natural = subtract(natural, (a - 1) * precision)
        gradient, natural = weight * gradient, weight * natural
        curvature = (-a * b * weight).clamp(min=TINY_WEIGHT) * inverse
        entropy = (a - 1) * weight
        if rest:
            own = (self._order - 1) * rest[0]
            natural, entropy = subtract(natural, own * precision), entropy + own
        entropy = entropy.clamp(min=TINY_WEIGHT)
        return DivergenceTerms(value.detach(), gradient, curvature, natural, entropy)


class RatioDivergence(_IntegralDivergence):
    """A function of the integral of q^alpha pi^(1 - alpha)."""

    alpha: float

    @property
    def _order(self) -> float:  # type: ignore[override]
        return float(self.alpha)

    @property
    def _powers(self) -> tuple[float, float]:  # type: ignore[override]
        return self._order, 1 - self._order

    @property
    def max_variance_ratio(self) -> float:
        """For orders above 1; see `Divergence.max_variance_ratio`."""
        return self.alpha / (self.alpha - 1) if self.alpha > 1 else math.inf

    def check_regularizer(self) -> None:
        """Refuse orders below zero, where q would have to be as wide as the prior."""
        self.validate()
        if self.alpha <= 0:
            raise IncompatibleComponentsError(
                repr(self),
                "alpha > 0 in a fit: else it is infinite, or grows without bound, for "
                "posteriors much narrower than the prior",
                "alpha=1, which is KL, or less for wider posteriors",
            )

    def closed_form(self, q: NormalForm, prior: PriorDensity) -> torch.Tensor:
        """Closed form, or one by nodes; see `Divergence.closed_form`."""
        pi = prior.as_normal()
        if abs(self.alpha) < NEAR and pi is not None:
            return kl_of_normals(pi, q)
        return super().closed_form(q, prior)

    def monte_carlo(self, log_q: torch.Tensor, log_prior: torch.Tensor) -> torch.Tensor:
        """From the mean of powers of the ratio, in all P dimensions."""
        ratio = log_q - log_prior
        if self._is_kl:
            return ratio.mean()
        if abs(self.alpha) < NEAR:
            return (torch.softmax(-ratio, 0) * -ratio).sum()
        return self._combine(log_mean_exp((self._order - 1) * ratio))

    def estimate(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        log_q: torch.Tensor,
        log_prior: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """From draws of q^alpha if q is normal; see `Divergence.estimate`."""
        q = tempered_normal(posterior, self._order)
        if q is None or self._is_kl:
            return self.monte_carlo(log_q, log_prior)
        logs, _ = log_tempered_integral(q, prior, self._order, generator, self.joint)
        return self._combine(logs).sum()

    @torch.no_grad()
    def collapse(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        generator: torch.Generator,
    ) -> str:
        """Warn if draws cannot resolve it; see `Divergence.collapse`."""
        a, q = self._order, tempered_normal(posterior, self._order)
        if self._is_kl:
            return ""
        if q is not None and (self.has_closed_form(prior) or fits_nodes(q, prior)):
            (logs,), message = self._log_integrals(q, prior), ""
        elif q is not None:
            logs, weights = log_tempered_integral(
                q, prior, a, generator, self.joint, N_DRAWS
            )
            message = noise_message(self, weights)
        else:
            log_q, log_prior = draw_logs(posterior, prior, generator)
            weights = (a - 1) * (log_q - log_prior)
            logs, message = log_mean_exp(weights), noise_message(self, weights)
        return self._collapse_message(logs.exp(), posterior.layout.size) or message

    def _collapse_message(self, overlap: torch.Tensor, size: int) -> str:
        """Say that q has collapsed, if it has; `overlap` is the integral."""
        return ""


class PowerDivergence(_IntegralDivergence):
    """A function of the integrals of q pi^(order - 1), q^order and pi^order."""

    @property
    def _b(self) -> float:
        return self._order - 1

    @property
    def _powers(self) -> tuple[float, float]:  # type: ignore[override]
        return 1.0, self._b

    @property
    def max_variance_ratio(self) -> float:
        """For orders below 1; see `Divergence.max_variance_ratio`."""
        return 1 / (1 - self._order) if self._order < 1 else math.inf

    def _log_integrals(
        self, q: NormalForm, prior: PriorDensity
    ) -> tuple[torch.Tensor, ...]:
        pi = prior.as_normal()
        if pi is not None:
            (cross,) = super()._log_integrals(q, prior)
            split = cross.ndim == 1
            own, norm = (log_power_norm(p, self._order, split) for p in (q, pi))
            return cross, own, norm
        # The formula of independent coordinates needs closed forms.
        cross = log_integrals(q, prior, *self._powers).sum()
        return (
            cross,
            log_power_norm(q, self._order),
            log_norm_by_nodes(prior, self._order),
        )

    def monte_carlo(self, log_q: torch.Tensor, log_prior: torch.Tensor) -> torch.Tensor:
        """Means of powers, of the joint form; the class says how they are biased."""
        # The integral of pi^order does not depend on q: it adds no gradient and no
        # noise.
        ratio = (self._order * log_prior - log_q).detach()
        return self._from_draws(log_q, log_prior, log_mean_exp(ratio))

    def estimate(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        log_q: torch.Tensor,
        log_prior: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Estimate with draws of the prior too; see `Divergence.estimate`."""
        size = min(N_DRAWS, TEMPORARY_ELEMENTS // posterior.layout.size)
        with torch.no_grad():
            theta = prior.sample(max(size, len(log_q)), generator)
            log_norm = log_mean_exp(self._b * prior.log_prob(theta))
        return self._from_draws(log_q, log_prior, log_norm)

    def _from_draws(
        self, log_q: torch.Tensor, log_prior: torch.Tensor, log_norm: torch.Tensor
    ) -> torch.Tensor:
        if self._is_kl:
            return (log_q - log_prior).mean()
        own, cross = (log_mean_exp(self._b * x) for x in (log_q, log_prior))
        return self._combine(cross, own, log_norm)
