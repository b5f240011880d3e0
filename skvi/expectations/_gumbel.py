"""Expected log-sum-exp of normal f for many classes, through its largest value.

With independent standard Gumbel G_k, ``log sum_k exp f_k`` plus Euler's constant is
the mean of ``max_k (f_k + G_k)``. For independent f_k the distribution function of
that maximum is a product over k, so that expectations are one-dimensional integrals,
however wide f is. Weak covariances S enter the logarithm of this function as a power
series: with covariance e S it solves ``du/de = S : (u'' + u' u'^T) / 2``, the heat
equation after Hopf and Cole. Strong ones are integrated by points.
"""

import math

import numpy as np
import torch

from skvi.expectations._conditioning import expect_conditioned
from skvi.expectations._gumbel_cdf import LogCdf
from skvi.expectations._rules import FEW
from skvi.expectations._smooth import Expectations
from skvi.utils._arrays import row_chunks

# Minimum and maximum number of nodes of the integral over the maximum.
N_LINE, MAX_LINE = 24, 384
# Nats by which the second term of the series may change a row: errors are a tenth.
WEAK = 1e-2
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
    few = mean.shape[1] <= FEW
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
    strong = (~(last < WEAK) | _is_indefinite(out[2])).nonzero()[:, 0]
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
