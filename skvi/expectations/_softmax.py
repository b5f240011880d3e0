"""Expectations of softmax and log-sum-exp functions of normal f.

With independent standard Gumbel G_k, ``log sum_k exp f_k`` plus Euler's constant is
the mean of ``max_k (f_k + G_k)``. For independent f_k the distribution function of
that maximum is a product over k, so that expectations are one-dimensional integrals,
however wide f is. Weak covariances S enter the logarithm of this function as a power
series: with covariance e S it solves ``du/de = S : (u'' + u' u'^T) / 2``, the heat
equation after Hopf and Cole. Strong ones are integrated by points.

For G standard Gumbel and Z standard normal, ``log(-log P(G + s Z <= x))`` is a line
for s = 0 and nearly a parabola for large s. Standardized, and with its range mapped to
[-1, 1], a polynomial of degree 26 whose coefficients are polynomials in the shape
gives probabilities to 5e-7 for every s.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev
from scipy.special import log_ndtr

from skvi.expectations._conditioning import expect_conditioned, log_expect_conditioned
from skvi.expectations._rules import (
    FEW,
    N_POINTS,
    Expectations,
    contrasts,
    factorize_rows,
    node_groups,
    quasi_random_rule,
    reduce_covariance,
)
from skvi.utils._tables import table
from skvi.utils._validation import row_chunks

# Exponentials of deviations in this range, and ratios of them, do not overflow.
MAX_RANGE = 300.0


def softmax_nodes(
    mean: torch.Tensor, covariance: torch.Tensor, refine: int = 1
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield rows, (m,), f ~ N(mean_i, covariance_i) at nodes, (m, K, N), and weights.

    f is up to a constant added to all K, and is the caller's to change.
    """
    for rows, factor, nodes, weights in node_groups(covariance, refine):
        f = (factor.reshape(-1, len(nodes)) @ nodes).reshape(*factor.shape[:2], -1)
        f += mean[rows, :, None]
        yield rows, f, weights


def log_expect_softmax(mean: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    """Log of the expected softmax of f ~ N(mean_i, covariance_i), (n, K), in nats.

    Each row has its own rule. Small values keep their digits as far as nodes reach.
    """
    if mean.shape[1] <= FEW:
        return torch.log_softmax(log_expect_conditioned(mean, covariance), 1)
    out = mean - mean.amax(1, keepdim=True)
    for rows, factor, nodes, weights in node_groups(covariance):
        g = (factor.reshape(-1, len(nodes)) @ nodes).reshape(*factor.shape[:2], -1)
        out[rows] += _log_expect_ratio(out[rows], g, weights)
    return torch.log_softmax(out, 1)


def _log_expect_ratio(
    mean: torch.Tensor, g: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Log of E[exp(g_k) / sum_j exp(mean_j + g_j)] from g at nodes, (m, K, N)."""
    low, high = g.aminmax()
    if float(high - low) < MAX_RANGE:
        ratio = g.exp_()
        inverse = (mean.exp()[:, None] @ ratio).reciprocal_() * weights
        return (ratio @ inverse.mT)[..., 0].log_()
    total = torch.logsumexp(g + mean[..., None], 1, keepdim=True)
    return torch.logsumexp(g - total + weights.log(), 2)


def softmax_at_points(
    mean: torch.Tensor, covariance: torch.Tensor, log_weights: torch.Tensor
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield rows, and softmax probabilities of a mixture of M normal f, (S, n, K)."""
    n_normals, n, k = mean.shape
    basis = contrasts(k, mean.device)
    centered = mean - mean.mean(2, keepdim=True)
    root = factorize_rows(reduce_covariance(covariance.flatten(0, 1)))
    root = (basis @ root).reshape(n_normals, n, k, -1)
    groups = _shared_points(basis.shape[1], log_weights)
    for rows in row_chunks(n, N_POINTS * basis.shape[1]):
        p = [
            torch.softmax(
                centered[m, rows] + torch.einsum("nkd,sd->snk", root[m, rows], points),
                2,
            )
            for m, points in enumerate(groups)
        ]
        yield rows, torch.cat(p)


def _shared_points(dimension: int, log_weights: torch.Tensor) -> list[torch.Tensor]:
    """Standard normal points for each normal, as many as its weight demands."""
    several = len(log_weights) > 1
    device = log_weights.device
    points = quasi_random_rule(dimension + several, N_POINTS, device=device)[0].T
    if not several:
        return [points]
    # The last coordinate of a point decides which normal it belongs to.
    ends = log_weights.exp().cumsum(0)[:-1].contiguous()
    owner = torch.searchsorted(ends, torch.special.ndtr(points[:, -1]).contiguous())
    return [points[owner == m, :-1] for m in range(len(log_weights))]


_GUMBEL_STD = math.pi / math.sqrt(6)
_DEGREE, _SHAPE_DEGREE = 26, 40


class LogCdf:
    """Polynomials in x for the log distribution functions of G + std Z, std (m, K)."""

    def __init__(self, std: torch.Tensor) -> None:
        total = (std.square() + _GUMBEL_STD**2).sqrt()
        shape = (2 * _GUMBEL_STD / total - 1).clamp_(-1, 1)
        powers = _coefficients(std.device) @ _chebyshev(shape.reshape(-1))
        self.coefficients = powers.reshape(-1, *shape.shape)
        middle, half = _range(_GUMBEL_STD / total)
        self.middle, self.half = np.euler_gamma + total * middle, total * half

    def derivatives(self, x: torch.Tensor, order: int) -> list[torch.Tensor]:
        """Log distribution function at x, (m, K, T), and its first derivatives."""
        scale = 1 / self.half[..., None]
        v = ((x - self.middle[..., None]) * scale).clamp_(-1, 1)
        columns = self.coefficients[..., None].unbind()
        # Horner's rule, for Taylor coefficients at v.
        taylor = [columns[-1].expand_as(v).clone()]
        taylor += [torch.zeros_like(v) for _ in range(order)]
        for column in columns[-2::-1]:
            for j in range(order, 0, -1):
                torch.addcmul(taylor[j - 1], taylor[j], v, out=taylor[j])
            torch.addcmul(column, taylor[0], v, out=taylor[0])
        log_cdf = taylor[0].exp_().neg_()
        # Bell polynomials: derivatives of - exp(g).
        g1 = taylor[1].mul_(scale)
        out = [log_cdf, log_cdf * g1]
        if order > 1:
            g2 = taylor[2].mul_(2 * scale.square())
            out.append(log_cdf * torch.addcmul(g2, g1, g1))
        if order > 2:
            g3 = taylor[3].mul_(6 * scale**3)
            out.append(log_cdf * (g3 + 3 * g1 * g2 + g1**3))
        return out


def _range(shape: Any) -> tuple[Any, Any]:
    """Middle and half of the range: probabilities of about 1e-9 to 1 - 3e-9."""
    low, high = -6.1 + 3.28 * shape**4, (36 + 196 * shape**2) ** 0.5
    return (low + high) / 2, (high - low) / 2


@table(maxsize=4)
def _coefficients(device: torch.device) -> torch.Tensor:
    """Chebyshev coefficients in the shape, (P, Q), of powers of v."""
    nodes = chebyshev.chebpts1(_SHAPE_DEGREE + 1)
    rows = np.array([_fit((node + 1) / 2) for node in nodes])
    found = chebyshev.chebfit(nodes, rows, _SHAPE_DEGREE)
    return torch.from_numpy(found).T.contiguous().to(device)


def _chebyshev(x: torch.Tensor) -> torch.Tensor:
    """Chebyshev polynomials at x, (Q, N), by their recurrence."""
    out = x.new_ones(_SHAPE_DEGREE + 1, len(x))
    out[1], double = x, 2 * x
    for k in range(2, len(out)):
        torch.mul(double, out[k - 1], out=out[k]).sub_(out[k - 2])
    return out


def _fit(shape: float) -> np.ndarray:
    total = _GUMBEL_STD / shape
    s = math.sqrt(max(total**2 - _GUMBEL_STD**2, 0.0))
    middle, half = _range(shape)
    v = chebyshev.chebpts1(150)
    values = _iterated_log(np.euler_gamma + total * (middle + half * v), s)
    # Errors count as far as they move the probability.
    weight = np.exp(values - np.exp(values)) + 1e-4
    return chebyshev.cheb2poly(chebyshev.chebfit(v, values, _DEGREE, w=weight))


def _iterated_log(x: np.ndarray, s: float) -> np.ndarray:
    """``log(-log E exp(-exp(s Z - x)))``: by Z, or for wide s by the Gumbel noise."""
    if s > 3:
        t = np.linspace(-4, 36, 401)
        log_w = -t - np.exp(-t)
        log_f, log_g = (log_ndtr(sign * (x[:, None] - t) / s) for sign in (1, -1))
    else:
        z = np.linspace(-13, 13, 521)
        log_w = -0.5 * z**2
        log_f = -np.exp(np.minimum(s * z - x[:, None], 700))
        log_g = np.log(-np.expm1(log_f))
    log_w -= np.logaddexp.reduce(log_w)
    log_cdf = np.logaddexp.reduce(log_w + log_f, 1)
    # In the right tail from the complement, which keeps its digits.
    other = np.logaddexp.reduce(log_w + log_g, 1)
    tail = np.log(-np.log1p(-np.exp(np.minimum(other, math.log(0.5)))))
    return np.where(other < math.log(0.5), tail, np.log(-np.minimum(log_cdf, -1e-300)))


# Minimum and maximum number of nodes of the integral over the maximum.
N_LINE, MAX_LINE = 24, 384
# Nats by which the second term of the series may change a row: errors are a tenth.
# Of four classes strong rows have a product rule of two dimensions, which is exact.
WEAK, WEAK_OF_FOUR = 1e-2, 1e-4
# Smallest absolute eigenvalue of a Hessian that counts as negative.
DEFINITE = 1e-9


def expect_logsumexp(
    mean: torch.Tensor, covariance: torch.Tensor, refine: int = 1
) -> Expectations:
    """Expected log-sum-exp of f ~ N(mean_i, covariance_i), gradient and Hessian.

    The mean is (n, K). `refine` above 1 also takes one more term of the series.
    """
    own = covariance.diagonal(dim1=1, dim2=2)
    joint = (covariance != torch.diag_embed(own)).flatten(1).any(1)
    few = mean.shape[1] < FEW  # product rules of all rows of four take too long
    if mean.shape[1] == 2:
        joint.fill_(True)  # a closed form
    rules = {False: _by_maximum, True: expect_conditioned if few else _by_series}
    out = torch.empty_like(mean[:, 0]), torch.empty_like(mean), covariance.clone()
    for is_joint in joint.unique().tolist():
        rows = joint == is_joint
        found = rules[is_joint](mean[rows], covariance[rows], refine)
        for whole, part in zip(out, found, strict=True):
            whole[rows] = part
    return out


def _by_maximum(
    mean: torch.Tensor, covariance: torch.Tensor, refine: int
) -> Expectations:
    """Integrals over the maximum for independent f."""
    own = covariance.diagonal(dim1=1, dim2=2)
    return _over_line(mean, own, None, refine)[0]


def _by_series(
    mean: torch.Tensor, covariance: torch.Tensor, refine: int
) -> Expectations:
    """Integrals over the maximum if covariances are weak, else over the other f."""
    out, last = _over_line(mean, *pairwise_split(mean, covariance), refine)
    weak = WEAK if mean.shape[1] > FEW else WEAK_OF_FOUR
    strong = (~(last < weak) | _is_indefinite(out[2])).nonzero()[:, 0]
    if len(strong):
        found = expect_conditioned(mean[strong], covariance[strong], refine)
        for whole, part in zip(out, found, strict=True):
            whole[strong] = part
    return out


def _is_indefinite(second: torch.Tensor) -> torch.Tensor:
    """Which Hessians are not positive: the series does not hold there, (n,)."""
    identity = torch.eye(second.shape[1], dtype=second.dtype, device=second.device)
    _, info = torch.linalg.cholesky_ex(second + DEFINITE * identity)
    return info > 0


def _over_line(
    mean: torch.Tensor, own: torch.Tensor, rest: torch.Tensor | None, refine: int
) -> tuple[Expectations, torch.Tensor]:
    """Integrals over the maximum, and the last term of the series, (n,).

    With variances, (n, K), and the remaining covariances, (n, K, K).
    """
    n, k = mean.shape
    value, first, last = (torch.empty_like(mean[:, i]) for i in (0, slice(k), 0))
    second = mean.new_empty(n, k, k)
    low, high, n_line = _line(mean, own)
    for count in n_line.unique().tolist():
        group = (n_line == count).nonzero()[:, 0]
        for chunk in row_chunks(len(group), k * count * refine):
            at = group[chunk]
            line = low[at], high[at], count * refine
            between = None if rest is None else rest[at]
            found = _integrate(mean[at], own[at], between, *line, refine > 1)
            value[at], first[at], second[at], last[at] = found
    return (value, first, second), last


def _line(
    mean: torch.Tensor, own: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Range of the maximum, (n,) each, and the number of nodes that it needs, (n,)."""
    std = own.sqrt()
    # Outside the distribution function is 0 or 1 up to 2e-8.
    below, above = 5.2 * std + 2.8, torch.minimum(18 + 0.5 * own, 5.4 * std + 18)
    low, high = (mean - below).amax(1), (mean + above).amax(1)
    # Smoothness over s leaves the trapezoidal rule exp(-pi^2 (1 + 2 s^2 / h) / h).
    s = 0.5 * std.amin(1)
    step = (math.pi**2 + (math.pi**4 + 112 * (math.pi * s).square()).sqrt()) / 28
    octaves = torch.log2((high - low) / (N_LINE * step)).ceil()
    n_line = N_LINE * 2 ** octaves.clamp(0, math.log2(MAX_LINE / N_LINE))
    return low, high, n_line.to(torch.int64)


def _integrate(
    mean: torch.Tensor,
    own: torch.Tensor,
    rest: torch.Tensor | None,
    low: torch.Tensor,
    high: torch.Tensor,
    n_line: int,
    more: bool,
) -> tuple[torch.Tensor, ...]:
    step = ((high - low) / n_line)[:, None]
    line = torch.arange(n_line, dtype=low.dtype, device=low.device) + 0.5
    x = (low[:, None] + step * line)[:, None] - mean[..., None]
    order = 1 if rest is None else 2 + more
    logs = LogCdf(own.sqrt()).derivatives(x, order)
    log_cdf, slope = logs[0].sum(1), logs[1]
    if rest is None:
        cdf = log_cdf.exp_() * step
        value, last = cdf.sum(1), torch.zeros_like(low)
        second = _weighted_products(slope, cdf)
    else:
        terms = _series(rest, logs)
        total = log_cdf + sum(terms)
        final = total.clamp(max=0).exp_() * step
        value, last = final.sum(1), (final * terms[1].abs()).sum(1)
        # Derivatives of the first order, which are those of its logarithm.
        cdf = (log_cdf + terms[0]).clamp_(max=0).exp_() * step
        curvature = logs[2]
        slope = torch.addcmul(slope, curvature, rest @ slope)
        second = _weighted_products(slope, cdf)
        second += rest * _weighted_products(curvature, cdf)
    first = (slope @ cdf[..., None])[..., 0]
    value = high - value - np.euler_gamma
    second.neg_().diagonal(dim1=1, dim2=2).zero_()
    second.diagonal(dim1=1, dim2=2).copy_(-second.sum(2))
    return value, first / first.sum(1, keepdim=True), second, last


def _triangles(rest: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Sum of ``c_j c_k c_l R_jk R_kl R_lj``, (m, T): small, so in single precision."""
    rest, c, total = rest.float(), c.float(), torch.zeros_like(c[:, 0])
    for j, row in enumerate(rest.unbind(1)):
        near = row[..., None] * c
        total += c[:, j] * (near * (rest @ near)).sum(1)
    return total


def _weighted_products(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (rows * weights[:, None]) @ rows.mT


def _series(rest: torch.Tensor, logs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Terms of the logarithm of the distribution function, each (m, T).

    With a, c, d the derivatives of the log distribution functions of single f.
    """
    a, c = logs[1:3]
    mixed, squared = rest @ a, rest.square()
    turn = squared @ c
    curved = c * mixed
    first = 0.5 * (a * mixed).sum(1)
    second = 0.5 * (curved * mixed).sum(1) + 0.25 * (c * turn).sum(1)
    if len(logs) < 4:
        return [first, second]
    d = logs[3]
    back = rest @ curved
    slope = 0.5 * d * (mixed.square() + turn) + c * back
    third = 2 * (d * mixed * turn).sum(1) + 0.5 * (d * ((rest * squared) @ d)).sum(1)
    third = third + 2 * (mixed * slope).sum(1) + (curved * back).sum(1)
    third = third + _triangles(rest, c)
    # Far in the left tail, where the integrand is negligible, terms may grow.
    return [first, second, torch.clamp(third / 6, -second.abs(), second.abs())]


def pairwise_split(
    mean: torch.Tensor, covariance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Split covariances, (n, K, K), into a diagonal, (n, K), and a small remainder.

    Only differences of f matter: covariances are equivalent if they give every
    difference of two f the same variance.

    The diagonal alone gives the right variance of each difference to the class with the
    largest mean. The remainder has a zero diagonal and can be indefinite.
    """
    n = len(mean)
    each = covariance.diagonal(dim1=1, dim2=2)
    between = each[:, :, None] + each[:, None] - 2 * covariance
    rows, pivot = torch.arange(n, device=mean.device), mean.argmax(1)
    variance = between[rows, pivot].clamp(min=0)
    joint = 0.5 * (variance[:, :, None] + variance[:, None] - between)
    odds = (mean - mean.amax(1, keepdim=True)) / (1 + math.pi / 8 * variance).sqrt()
    weight = torch.sigmoid(odds) + 1e-9
    weight[rows, pivot] = 0
    weight = weight[:, :, None] * weight[:, None]
    if mean.shape[1] > 2:
        weight.diagonal(dim1=1, dim2=2).zero_()
    own = (weight * joint).sum((1, 2)) / weight.sum((1, 2))
    own = torch.minimum(own.clamp(min=0), 0.5 * variance.amax(1))
    diagonal = torch.maximum(variance - own[:, None], 0.05 * variance)
    diagonal[rows, pivot] = own
    rest = 0.5 * (diagonal[:, :, None] + diagonal[:, None] - between)
    rest.diagonal(dim1=1, dim2=2).zero_()
    return diagonal, rest
