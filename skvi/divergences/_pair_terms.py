"""Derivatives of closed forms, for second-order solvers."""

import torch

from skvi.divergences._linalg import (
    apply,
    inverse_of,
    mix,
    precision_of,
    squared_outer,
    subtract,
)
from skvi.divergences._pair import Pair, power_parts, renyi
from skvi.divergences.base import DivergenceTerms

# A Hessian closer than this to singular is replaced by its positive part.
CONVEX_BELOW = 0.9
# Weights of collapsed posteriors, which vanish: metrics and steps stay finite.
TINY_WEIGHT = 1e-8


def renyi_terms(
    pair: Pair, a: float, q_precision: torch.Tensor | None = None
) -> DivergenceTerms:
    """Value and derivatives of the Rényi divergence, summed over coordinates."""
    b, q = 1 - a, pair.q
    precision = precision_of(q) if q_precision is None else q_precision
    inverse = inverse_of(mix(a, pair.pi, b, q))
    u = apply(inverse, pair.shift)
    natural = subtract(inverse, precision) / a - b * squared_outer(u, inverse)
    return DivergenceTerms(renyi(pair, a).sum(), u, inverse, natural, 1 / a)


def alpha_terms(
    pair: Pair, a: float, q_precision: torch.Tensor | None = None
) -> DivergenceTerms:
    """Derivatives of D_A = -expm1(-k R) / k for k = a (1 - a) and R the Rényi one."""
    k, order = a * (1 - a), renyi(pair, a)
    overlap = torch.exp(-k * order)
    parts = renyi_terms(pair, a, q_precision)
    natural = overlap * parts.precision_gradient
    metric = overlap.clamp(min=TINY_WEIGHT)
    curvature = metric * _convex(parts.curvature, parts.gradient, pair, k)
    value = alpha_from_renyi(order, k).sum()
    return DivergenceTerms(
        value, overlap * parts.gradient, curvature, natural, metric / a
    )


def alpha_from_renyi(order: torch.Tensor, k: float) -> torch.Tensor:
    """``(1 - exp(-k R)) / k``, and its limit R at k = 0."""
    return order if k == 0 else -torch.expm1(-k * order) / k


def gamma_terms(
    pair: Pair,
    b: float,
    value: torch.Tensor,
    q_precision: torch.Tensor | None = None,
) -> DivergenceTerms:
    """Derivatives of the γ-divergence of order 1 + b."""
    q = pair.q
    precision = precision_of(q) if q_precision is None else q_precision
    inverse = inverse_of(mix(1.0, pair.pi, b, q))
    u = apply(inverse, pair.shift)
    natural = subtract(inverse, precision / (1 + b)) - b * squared_outer(u, inverse)
    return DivergenceTerms(value, u, inverse, natural, 1 / (1 + b))


def beta_terms(
    pair: Pair,
    b: float,
    value: torch.Tensor,
    q_precision: torch.Tensor | None = None,
) -> DivergenceTerms:
    """Derivatives of the β-divergence of order 1 + b: entropy and cross apart."""
    q = pair.q
    precision = precision_of(q) if q_precision is None else q_precision
    inverse = inverse_of(mix(1.0, pair.pi, b, q))
    u = apply(inverse, pair.shift)
    parts = power_parts(pair, b)
    log_cross = torch.full_like(value, torch.nan) if parts is None else parts[0]
    own = log_cross if parts is None else log_cross + b * parts[1]
    cross, weight = log_cross.exp(), own.exp() / (1 + b)
    natural = cross * (inverse - b * squared_outer(u, inverse))
    natural = subtract(natural, weight * precision)
    curvature = cross.clamp(min=TINY_WEIGHT) * _convex(inverse, u, pair, b)
    return DivergenceTerms(
        value, cross * u, curvature, natural, weight.clamp(min=TINY_WEIGHT)
    )


def _convex(
    inverse: torch.Tensor, u: torch.Tensor, pair: Pair, k: float
) -> torch.Tensor:
    """``M^-1 - k u u'`` with ``u = M^-1 d``; without the last part if not convex.

    For a diagonal M the result is diagonal: exact coordinate by coordinate, otherwise
    the diagonal of the full Hessian.
    """
    squared = u * pair.shift
    if pair.split:
        return inverse - k * torch.where(k * squared < CONVEX_BELOW, u.square(), 0.0)
    if k * float(squared.sum()) >= CONVEX_BELOW:
        return inverse
    if inverse.ndim == 1 and k > 0:
        return inverse
    return inverse - k * squared_outer(u, inverse)
