"""Expected log-sum-exp of normal f for many classes, through its largest value.

With independent standard Gumbel G_k, ``log sum_k exp f_k`` plus Euler's constant is
the mean of ``max_k (f_k + G_k)``. For independent f_k the distribution function of
that maximum is a product over k, so that expectations are one-dimensional integrals,
however wide f is. A covariance is split into the largest diagonal that it contains,
which is integrated so, and a small rest, for which few quasi-random points suffice.
"""

import math
from functools import lru_cache

import numpy as np
import torch
from scipy.special import log_ndtr

from skvi.utils._arrays import row_chunks
from skvi.utils._normal_points import (
    NODE_ELEMENTS,
    contrasts,
    quasi_random_rule,
    reduce_covariance,
)

# Points for the rest, in up to three dimensions and in more, and nodes of the
# integral over the maximum.
N_REST_FEW, N_REST, N_LINE = 128, 32, 56
EULER = 0.5772156649015329
_GUMBEL_STD = math.pi / math.sqrt(6)
# The table: shapes from the normal (0) to the Gumbel (1), and standardised values.
_N_SHAPES, _LOW, _HIGH, _STEP = 41, -7.5, 17.0, 0.125

Moments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def expect_logsumexp(
    mean: torch.Tensor, covariance: torch.Tensor, refine: int = 1
) -> Moments:
    """Expected log-sum-exp of f ~ N(mean_i, covariance_i), and its derivatives.

    Parameters
    ----------
    mean : Tensor of shape (n, K)
    covariance : Tensor of shape (n, K, K)
    refine : int, default=1
        Multiplies the number of nodes, to verify a result.

    Returns
    -------
    value : Tensor of shape (n,)
    first : Tensor of shape (n, K)
        Expected softmax.
    second : Tensor of shape (n, K, K)
        Expected Hessian; rows sum to 0.
    """
    own, root = split_covariance(covariance)
    n, k = mean.shape
    nodes = torch.zeros(root.shape[2], 1, dtype=mean.dtype)
    if root.shape[2]:
        n_rest = N_REST if root.shape[2] > 3 else N_REST_FEW
        nodes, _ = quasi_random_rule(root.shape[2], n_rest * refine)
    n_line = N_LINE * refine
    value, first = torch.empty_like(mean[:, 0]), torch.empty_like(mean)
    second = torch.empty_like(covariance)
    width = k * n_line * nodes.shape[1]
    for rows in row_chunks(n, width, NODE_ELEMENTS):
        at = mean[rows, :, None] + root[rows] @ nodes
        value[rows], first[rows], second[rows] = _independent(
            at, own[rows].sqrt(), n_line
        )
    return value, first, second


def split_covariance(covariance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split the covariance of the contrasts of f into a diagonal and a rest.

    Parameters
    ----------
    covariance : Tensor of shape (n, K, K)

    Returns
    -------
    diagonal : Tensor of shape (n, K)
    root : Tensor of shape (n, K, D)
        ``diag(diagonal) + root root'`` has the contrasts' covariance. D is 0 for
        covariances that are diagonal, else K - 1.
    """
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    if not bool((covariance - torch.diag_embed(diagonal)).any()):
        return diagonal, covariance[:, :, :0]
    k = covariance.shape[1]
    basis, reduced = contrasts(k), reduce_covariance(covariance)
    identity = torch.eye(k - 1, dtype=covariance.dtype)
    smallest = torch.linalg.eigvalsh(reduced)[:, 0].clamp(min=0)
    tiny = 1e-12 * reduced.diagonal(dim1=1, dim2=2).mean(1) + 1e-200
    own = (0.5 * smallest)[:, None].repeat(1, k)
    rest = reduced - (0.5 * smallest - tiny)[:, None, None] * identity
    inverse = torch.linalg.inv(rest)
    # Take from every class in turn half of what can be taken, then nearly all.
    for share in (0.5, 0.5, 0.8):
        for j in range(k):
            side = inverse @ basis[j]
            most = 1 / (side @ basis[j])
            own[:, j] += share * most
            factor = (share / (1 - share) * most)[:, None, None]
            inverse = inverse + factor * side[:, :, None] * side[:, None, :]
    own = own.clamp(min=0)
    values, vectors = torch.linalg.eigh(
        reduced - reduce_covariance(torch.diag_embed(own))
    )
    root = basis @ (vectors * values.clamp(min=0).sqrt()[:, None])
    # The widest direction first, where quasi-random points are best.
    return own, root.flip(2)


def _independent(mean: torch.Tensor, std: torch.Tensor, n_line: int) -> Moments:
    """Average over nodes of means, (m, K, N), for f_k of standard deviations (m, K)."""
    n_nodes = mean.shape[2]
    total = (std.square() + math.pi**2 / 6).sqrt()
    # Outside the product is 0 or 1 up to 1e-7.
    below = (5.2 * std + 2.8)[..., None]
    above = torch.minimum(16 + 0.5 * std.square(), 5.4 * std + 16)[..., None]
    low, high = (mean - below).amax(1), (mean + above).amax(1)
    step = (high - low) / n_line
    line = torch.arange(n_line, dtype=mean.dtype) + 0.5
    t = low[..., None] + step[..., None] * line  # (m, N, T)
    u = (t[:, None] - mean[..., None] - EULER) / total[:, :, None, None]
    log_cdf, slope = _interpolate(_row_tables(_GUMBEL_STD / total), u.flatten(2))
    cdf = log_cdf.sum(1).exp_().reshape(-1, n_nodes, n_line)
    value = (high - step * cdf.sum(2)).mean(1) - EULER
    weights = (cdf * (step[..., None] / n_nodes)).flatten(1)
    slope /= total[..., None]
    weighted = slope * weights[:, None]
    first = weighted.sum(2)
    second = -(weighted @ slope.mT)
    second.diagonal(dim1=1, dim2=2).zero_()
    second.diagonal(dim1=1, dim2=2).copy_(-second.sum(2))
    return value, first / first.sum(1, keepdim=True), second


def _interpolate(
    tables: torch.Tensor, u: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log distribution function and its derivative at u, (m, K, M)."""
    position = ((u - _LOW) / _STEP).clamp_(0, tables.shape[2] - 1.001)
    cell = position.floor()
    x = position.sub_(cell)
    rows = torch.arange(u.shape[0] * u.shape[1]).reshape(*u.shape[:2], 1)
    index = (cell.to(torch.int64) + rows * tables.shape[2]).flatten()
    x = x.flatten()
    c0, c1, c2, c3 = (
        part.flatten().index_select(0, index) for part in tables.unbind(3)
    )
    # Horner's rule for the cubic and its derivative.
    c2.addcmul_(c3, x)
    c1.addcmul_(c2, x)
    value = c0.addcmul_(c1, x).exp_().neg_()
    c2.addcmul_(c3, x)
    slope = c1.addcmul_(c2, x).mul_(value).div_(_STEP)
    return value.reshape(u.shape), slope.reshape(u.shape)


def _row_tables(shape: torch.Tensor) -> torch.Tensor:
    """Cubic coefficients, (m, K, U, 4), between tabulated shapes, (m, K)."""
    table = _table()
    position = shape.clamp(0, 1) * (_N_SHAPES - 1)
    cell = position.floor().clamp(1, _N_SHAPES - 3)
    x = (position - cell)[..., None]
    index = cell.to(torch.int64)[..., None] + torch.arange(-1, 3)
    # Lagrange's cubic through the four shapes around.
    weights = torch.cat(
        [
            -x * (x - 1) * (x - 2) / 6,
            (x + 1) * (x - 1) * (x - 2) / 2,
            -(x + 1) * x * (x - 2) / 2,
            (x + 1) * x * (x - 1) / 6,
        ],
        -1,
    )
    select = torch.zeros(*shape.shape, _N_SHAPES, dtype=table.dtype)
    select.scatter_(2, index, weights)
    return (select @ table.flatten(1)).reshape(*shape.shape, -1, 4)


@lru_cache(maxsize=1)
def _table() -> torch.Tensor:
    """Cubic coefficients, (shapes, U, 4), of log(-log cdf) of G + s Z, standardised.

    The cdf is E exp(-exp(-(x - s Z))). Its iterated logarithm is smooth: a straight
    line for the Gumbel, and log(-log Phi) for the normal.
    """
    u = np.arange(_LOW - _STEP, _HIGH + 1.5 * _STEP, _STEP)
    z = np.linspace(-13, 13, 1301)
    log_w = -0.5 * z**2
    log_w -= np.logaddexp.reduce(log_w)
    values = np.empty((_N_SHAPES, len(u)))
    values[0] = np.log(-log_ndtr(u))
    for i in range(1, _N_SHAPES):
        total = _GUMBEL_STD / (i / (_N_SHAPES - 1))
        s = math.sqrt(max(total**2 - _GUMBEL_STD**2, 0.0))
        values[i] = _iterated_log(EULER + total * u, s, z, log_w)
    v = torch.from_numpy(values)
    before, left, right, after = v[:, :-3], v[:, 1:-2], v[:, 2:-1], v[:, 3:]
    # Lagrange's cubic through four points, as a polynomial on the middle cell.
    return torch.stack(
        [
            left,
            -before / 3 - left / 2 + right - after / 6,
            before / 2 - left + right / 2,
            -before / 6 + left / 2 - right / 2 + after / 6,
        ],
        -1,
    )


def _iterated_log(
    x: np.ndarray, s: float, z: np.ndarray, log_w: np.ndarray
) -> np.ndarray:
    rate = np.exp(np.minimum(s * z - x[:, None], 700))
    log_cdf = np.logaddexp.reduce(log_w - rate, 1)
    # In the right tail from the complement, which keeps its digits.
    complement = -np.expm1(-rate) @ np.exp(log_w)
    tail = np.log(-np.log1p(-np.clip(complement, 0, 0.5)))
    return np.where(complement < 0.5, tail, np.log(-np.minimum(log_cdf, -1e-300)))
