"""Power integrals of a normal and an independent prior, by nodes along coordinates.

Factors of the prior are replaced by normal ones, with which the integral is closed, and
what is left of each is integrated over its own coordinate. That is exact for a
factorized q. Otherwise the normal factors are those of expectation propagation (Minka
2001; parallel updates): first and second moments agree, so that the value does not
depend on how the factors follow q, and its derivatives are those at fixed factors.
"""

import math
from typing import NamedTuple, cast

import torch

from skvi.base import NormalForm
from skvi.base._component import PriorDensity
from skvi.divergences._forms import factorize, inverse_of, mix
from skvi.utils._tensors import LOG_2PI

# Nodes along a coordinate, to at least this many deviations on both sides.
N_NODES, REACH = 256, 9.0
# Around 0 this many steps are shorter.
DENSE = 4.0
# Nodes of a prior alone: up to sinh(t^3 / 3) of its scales, dense around 0.
TAILS = 5.0
# Parameters up to which draws would take longer: factorized, and of dependent ones.
MAX_SIZE, MAX_DEPENDENT = 2000, 100
# Updates of the normal factors, at most, and what they still move moments by, in units
# of the deviations, once they have settled.
MAX_UPDATES, SETTLED = 50, 1e-5
# Curvatures of a prior with straight tails, which vanish, remain invertible.
TINY = 1e-10


class _Factors(NamedTuple):
    """Normal factors ``exp(linear theta - precision theta^2 / 2)``, (P,) each."""

    linear: torch.Tensor
    precision: torch.Tensor


def fits_nodes(q: NormalForm, prior: PriorDensity) -> bool:
    """Whether the integrals of these two are known to nodes."""
    largest = MAX_SIZE if q.is_diagonal else MAX_DEPENDENT
    is_known = prior.has_log_prob_terms and prior.tail_precision() is not None
    return is_known and prior.is_proper and q.size <= largest


def log_integrals(
    q: NormalForm, prior: PriorDensity, a: float, b: float
) -> torch.Tensor:
    """Logs of integrals, (P,) or (1,), whose sum is that of ``q^a pi^b``, a > 0.

    One for each coordinate if q is factorized. Differentiable in q and in the prior;
    ``inf`` outside the range of the order.
    """
    factors = _factors(q, prior, a, b)
    if factors is None:
        return (0.0 * q.mean.sum() + math.inf)[None]
    mean, covariance, log_integral = _tilted(q, a, factors)
    width = (covariance if q.is_diagonal else covariance.diagonal()).sqrt()
    rest, _ = _left_over(mean, width, prior, b, factors)
    return log_integral + (rest if q.is_diagonal else rest.sum()[None])


@torch.no_grad()
def _factors(q: NormalForm, prior: PriorDensity, a: float, b: float) -> _Factors | None:
    """Factors close to those of ``pi^b``; None where there is no integral."""
    slope, curvature = _parabolas(q, prior, a, b)
    factors = _Factors(b * (curvature * q.mean - slope), b * curvature)
    mean, covariance, _ = _tilted(q, a, factors)
    if factorize(covariance) is None:
        return None
    share = 1.0
    for _ in range(0 if q.is_diagonal else MAX_UPDATES):
        variance = covariance.diagonal()
        log_w, theta = _left_over(mean, variance.sqrt(), prior, b, factors)[1]
        weights = torch.softmax(log_w, 0)
        found = (weights * theta).sum(0)
        spread = (weights * (theta - found).square()).sum(0)
        linear = found / spread - mean / variance
        precision = 1 / spread - 1 / variance
        moves = torch.cat([(found - mean) * spread.rsqrt(), precision * variance])
        if float(moves.abs().max()) < SETTLED:
            break
        moved = _Factors(
            factors.linear + share * linear, factors.precision + share * precision
        )
        trial = _tilted(q, a, moved)
        if factorize(trial[1]) is None:
            share *= 0.5
        else:
            factors, (mean, covariance, _) = moved, trial
    return factors


def _parabolas(
    q: NormalForm, prior: PriorDensity, a: float, b: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slopes at the mean of q, and curvatures, of parabolas in place of -log pi.

    They are those around 0 that touch it as far out as ``q^a`` lies: exact for normals
    around 0. For a negative power the curvature is that of the tails, as no more may
    be taken from the precision of ``q^a``.
    """
    far = (q.mean.square() + q.variance / a).sqrt()
    curvature = (-prior.log_prob_gradient(far[None])[0] / far).clamp(min=0)
    slope = curvature * q.mean
    return slope, curvature if b > 0 else cast(torch.Tensor, prior.tail_precision())


def _tilted(
    q: NormalForm, a: float, factors: _Factors
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normal of ``q^a`` times the factors, and logs of integrals as `log_integrals`.

    Means (P,), and covariances of shape (P,) or (P, P); without an inverse of that
    of q.
    """
    h, t = factors
    constant = 0.5 * (1 - a) * LOG_2PI - 0.5 * math.log(a)
    if q.is_diagonal:
        c, norm = q.variance / a, constant + (1 - a) * q.scale.log()
        growth = 1 + c * t
        mean, covariance = (q.mean + c * h) / growth, c / growth
        half_log_det = 0.5 * growth.log()
    else:
        c, norm = q.covariance() / a, q.size * constant + (1 - a) * q.half_log_det
        growth = torch.eye(q.size, dtype=c.dtype, device=c.device) + c * t
        right = torch.cat([(q.mean + c @ h)[:, None], c], 1)
        mean, covariance = torch.linalg.solve(growth, right).split([1, q.size], 1)
        mean, half_log_det = mean[:, 0], 0.5 * growth.slogdet().logabsdet
    at_mean = (
        h * mean - 0.5 * t * mean.square() - 0.5 * (mean - q.mean) * (h - t * mean)
    )
    at_mean = at_mean if q.is_diagonal else at_mean.sum()[None]
    return mean, covariance, norm - half_log_det + at_mean


def _left_over(
    mean: torch.Tensor,
    width: torch.Tensor,
    prior: PriorDensity,
    b: float,
    factors: _Factors,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Logs of the means of ``pi^b``, divided by the factors, of each coordinate.

    The nodes are denser around 0, where the prior may have a kink or a pole. Their
    steps are powers of 2: no node moves with q, unless a step is doubled.
    """
    with torch.no_grad():
        step = torch.exp2((2 * REACH / N_NODES * width).log2().ceil())
        line = torch.arange(N_NODES, dtype=mean.dtype, device=mean.device)[:, None]
        u = (mean / step).round() + line - 0.5 * (N_NODES - 1)
        share = DENSE**2 / (u.square() + DENSE**2)
        theta, speed = step * u * (1 - share), (1 - share) * (1 + 2 * share)
    z = (theta - mean) / width
    log_w = b * prior.log_prob_terms(theta) - factors.linear * theta
    log_w = (
        log_w + speed.log() + 0.5 * (factors.precision * theta.square() - z.square())
    )
    value = torch.logsumexp(log_w, 0) + (step / width).log() - 0.5 * LOG_2PI
    return value, (log_w, theta)


def log_norm_by_nodes(prior: PriorDensity, a: float) -> torch.Tensor:
    """Log of the integral of ``pi^a``: nodes reach into tails, and surround poles."""
    normal = cast(NormalForm, prior.matching_normal())
    scale, step = normal.scale, 2 * TAILS / N_NODES
    t = torch.arange(N_NODES, dtype=scale.dtype, device=scale.device)[:, None]
    t = step * (t - 0.5 * (N_NODES - 1))
    log_prior = prior.log_prob_terms(normal.mean + scale * (t.pow(3) / 3).sinh())
    log_speed = (scale * step * t.square()).log() + (t.pow(3) / 3).cosh().log()
    return torch.logsumexp(a * log_prior + log_speed, 0).sum()


def node_derivatives(
    q: NormalForm, prior: PriorDensity, a: float, b: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Derivatives of `log_integrals` in the mean, and twice those in the covariance.

    And an inverse of the covariance ``a cov(prior) + b cov(q)``, by parabolas.
    """
    with torch.inference_mode(False), torch.enable_grad():
        mean = q.mean.detach().clone().requires_grad_()
        covariance = q.variance if q.is_diagonal else q.covariance()
        covariance = covariance.detach().clone().requires_grad_()
        root = covariance.sqrt() if q.is_diagonal else torch.linalg.cholesky(covariance)
        value = log_integrals(NormalForm(mean, root), prior, a, b).sum()
        # Outside the range of the order the value depends on nothing.
        found = torch.autograd.grad(value, (mean, covariance), materialize_grads=True)
    _, curvature = _parabolas(q, prior, a, b)
    straight = NormalForm(q.mean, curvature.clamp(min=TINY).rsqrt())
    gradient, by_covariance = found
    return gradient, 2 * by_covariance, inverse_of(mix(a, straight, b, q))
