"""Expected log-sum-exp of normal f for many classes, through its largest value.

With independent standard Gumbel G_k, ``log sum_k exp f_k`` plus Euler's constant is
the mean of ``max_k (f_k + G_k)``. For independent f_k the distribution function of
that maximum is a product over k, so that expectations are one-dimensional integrals,
however wide f is. Weak covariances S enter the logarithm of this function as a power
series: with covariance e S it solves ``du/de = S : (u'' + u' u'^T) / 2``, the heat
equation after Hopf and Cole. Strong ones are integrated by points.
"""

import math
from typing import NamedTuple

import torch

from skvi.utils._arrays import row_chunks
from skvi.utils._covariance_split import definite_split, pairwise_split
from skvi.utils._gumbel_cdf import EULER, LogCdf
from skvi.utils._normal_points import NODE_ELEMENTS, quasi_random_rule

# Points for strong covariances, in up to three dimensions and in more.
N_FEW, N_MANY = 128, 64
# Minimum and maximum number of nodes of the integral over the maximum.
N_LINE, MAX_LINE = 24, 384
# Nats by which the second term of the series may change a row: errors are a tenth.
WEAK = 1e-2
# Smallest absolute eigenvalue of a Hessian that counts as negative.
DEFINITE = 1e-9

Moments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class _Rows(NamedTuple):
    """Means (m, K, N) at N points, variances (m, K), covariances (m, K, K)."""

    mean: torch.Tensor
    own: torch.Tensor
    rest: torch.Tensor | None


def expect_logsumexp(
    mean: torch.Tensor, covariance: torch.Tensor, refine: int = 1
) -> Moments:
    """Expected log-sum-exp of f ~ N(mean_i, covariance_i), and its derivatives.

    Parameters
    ----------
    mean : Tensor of shape (n, K)
    covariance : Tensor of shape (n, K, K)
    refine : int, default=1
        Multiplies the number of nodes, and above 1 takes one more term of the series
        for the value, to verify a result.

    Returns
    -------
    value : Tensor of shape (n,)
    first : Tensor of shape (n, K)
        Expected softmax.
    second : Tensor of shape (n, K, K)
        Expected Hessian; rows sum to 0.
    """
    value, first = torch.empty_like(mean[:, 0]), torch.empty_like(mean)
    out = (value, first, torch.empty_like(covariance))
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    if not bool((covariance - torch.diag_embed(diagonal)).any()):
        _fill(out, _Rows(mean[..., None], diagonal, None), refine)
        return out
    own, rest = pairwise_split(mean, covariance)
    last = _fill(out, _Rows(mean[..., None], own, rest), refine)
    strong = (~(last < WEAK) | _is_indefinite(out[2])).nonzero()[:, 0]
    if len(strong):
        own, root = definite_split(covariance[strong])
        n_points = N_MANY if root.shape[2] > 3 else N_FEW
        nodes, _ = quasi_random_rule(root.shape[2], n_points * refine, root.device)
        parts = (value[strong], first[strong], out[2][strong])
        at = mean[strong, :, None] + root @ nodes
        _fill(parts, _Rows(at, own, None), refine)
        for part, found in zip(out, parts, strict=True):
            part[strong] = found
    return out


def _is_indefinite(second: torch.Tensor) -> torch.Tensor:
    """Which Hessians are not positive: the series does not hold there, (n,)."""
    identity = torch.eye(second.shape[1], dtype=second.dtype, device=second.device)
    _, info = torch.linalg.cholesky_ex(second + DEFINITE * identity)
    return info > 0


def _fill(out: Moments, rows: _Rows, refine: int) -> torch.Tensor:
    """Write the results of all rows, and return the last term of the series."""
    last = torch.zeros_like(out[0])
    low, high, n_line = _line(rows)
    for count in n_line.unique().tolist():
        group = (n_line == count).nonzero()[:, 0]
        width = rows.mean.shape[1] * rows.mean.shape[2] * count * refine
        for chunk in row_chunks(len(group), width, NODE_ELEMENTS):
            part = group[chunk]
            rest = None if rows.rest is None else rows.rest[part]
            some = _Rows(rows.mean[part], rows.own[part], rest)
            found = _integrate(some, low[part], high[part], count * refine, refine)
            for target, values in zip((*out, last), found, strict=True):
                target[part] = values
    return last


def _line(rows: _Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Range of the maximum, (m, N), and the number of nodes that it needs, (m,)."""
    std = rows.own.sqrt()
    # Outside the distribution function is 0 or 1 up to 2e-8.
    below = (5.2 * std + 2.8)[..., None]
    above = torch.minimum(18 + 0.5 * rows.own, 5.4 * std + 18)[..., None]
    low, high = (rows.mean - below).amax(1), (rows.mean + above).amax(1)
    # Smoothness over s leaves the trapezoidal rule exp(-pi^2 (1 + 2 s^2 / h) / h).
    s = 0.5 * std.amin(1)
    step = (math.pi**2 + (math.pi**4 + 112 * (math.pi * s).square()).sqrt()) / 28
    octaves = torch.log2((high - low).amax(1) / (N_LINE * step)).ceil()
    n_line = N_LINE * 2 ** octaves.clamp(0, math.log2(MAX_LINE / N_LINE))
    return low, high, n_line.to(torch.int64)


def _integrate(
    rows: _Rows, low: torch.Tensor, high: torch.Tensor, n_line: int, refine: int
) -> tuple[torch.Tensor, ...]:
    n_points, step = rows.mean.shape[2], (high - low) / n_line
    line = torch.arange(n_line, dtype=low.dtype, device=low.device) + 0.5
    t = low[..., None] + step[..., None] * line
    x = (t[:, None] - rows.mean[..., None]).flatten(2)
    order = 1 if rows.rest is None else 2 + (refine > 1)
    logs = LogCdf(rows.own.sqrt()).derivatives(x, order)
    log_cdf, slope = logs[0].sum(1), logs[1]
    cell = (step[..., None] / n_points).expand(-1, -1, n_line).flatten(1)
    if rows.rest is None:
        cdf = log_cdf.exp_() * cell
        value, last = cdf.sum(1), torch.zeros_like(cell[:, 0])
        second = _weighted_products(slope, cdf)
    else:
        terms = _series(rows.rest, logs)
        total = log_cdf + sum(terms)
        final = total.clamp(max=0).exp_() * cell
        value, last = final.sum(1), (final * terms[1].abs()).sum(1)
        # Derivatives of the first order, which are those of its logarithm.
        cdf = (log_cdf + terms[0]).clamp_(max=0).exp_() * cell
        curvature = logs[2]
        slope = torch.addcmul(slope, curvature, rows.rest @ slope)
        second = _weighted_products(slope, cdf)
        second += rows.rest * _weighted_products(curvature, cdf)
    first = (slope @ cdf[..., None])[..., 0]
    value = high.mean(1) - value - EULER
    second.neg_().diagonal(dim1=1, dim2=2).zero_()
    second.diagonal(dim1=1, dim2=2).copy_(-second.sum(2))
    return value, first / first.sum(1, keepdim=True), second, last


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
    for j, row in enumerate(rest.unbind(1)):
        near = row[..., None] * c
        third = third + c[:, j] * (near * (rest @ near)).sum(1)
    # Far in the left tail, where the integrand is negligible, terms may grow.
    return [first, second, torch.clamp(third / 6, -second.abs(), second.abs())]
