"""Quadrature rules for expectations under a one-dimensional normal."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import logsigmoid, softplus

from skvi.utils._arrays import exp_, log_
from skvi.utils._device import CPU
from skvi.utils._tables import table

# Largest standard deviation of f for which Gauss-Hermite with this number of nodes is
# exact to 1e-9 for the logistic loss and its first two derivatives (poles at distance
# pi).
_HERMITE = ((3, 0.068), (5, 0.22), (7, 0.37), (9, 0.5), (12, 0.65))
MAX_NODES = 1025


def normal_rule(
    std: float, refine: int = 1, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return nodes and weights for z ~ N(0, 1), fine enough for f = m + std z.

    std: in lengths over which the slope of the integrand changes. The trapezoidal rule
    for large ones needs nodes in proportion to std, Gauss-Hermite to its square.
    """
    if std == 0 or not math.isfinite(std):
        return hermite_rule(
            1, device
        )  # non-finite values stay non-finite in the result
    for n_nodes, limit in _HERMITE:
        if std <= limit:
            return hermite_rule(n_nodes * refine, device)
    step = 1.1 / math.sqrt(1 + std**2) / refine
    # Steps are rounded down to powers of 2^(1/8): few distinct rules, all cached.
    step = 2.0 ** (math.floor(8 * math.log2(step)) / 8)
    return trapezoid_rule(max(step, 12.8 / (MAX_NODES * refine)), device)


@table(maxsize=64)
def hermite_rule(
    n_nodes: int, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gauss-Hermite nodes and weights for a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    weights = weights / weights.sum()
    return torch.from_numpy(nodes).to(device), torch.from_numpy(weights).to(device)


@table(maxsize=64)
def trapezoid_rule(
    step: float, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Trapezoidal nodes on [-6.4, 6.4] and weights for a standard normal."""
    half = math.ceil(6.4 / step)
    nodes = torch.arange(-half, half + 1, dtype=torch.float64, device=device) * step
    weights = torch.exp(-0.5 * nodes.square())
    return nodes, weights / weights.sum()


@table(maxsize=4)
def logistic_rule(
    refine: int = 1, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Trapezoidal nodes and weights for a standard logistic variable."""
    half = 22 * refine
    nodes = torch.arange(-half, half + 1, dtype=torch.float64, device=device) / refine
    weights = torch.sigmoid(nodes) * torch.sigmoid(-nodes)
    return nodes, weights / weights.sum()


Moments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def expect_softplus(
    mean: torch.Tensor, std: torch.Tensor, refine: int = 1, wide: float = 2.18
) -> Moments:
    """Expected softplus, sigmoid and sigmoid' of f ~ N(mean, std^2), (n,) each.

    Rows wider than `wide` swap the roles: softplus is the ramp smoothed by a logistic
    t, E softplus(f) = E_t E max(f - t, 0). 45 nodes are exact to 1e-7 for std > 2.
    """
    return _by_width(mean, std, refine, wide, _narrow_softplus, _wide_softplus)


def expect_sigmoid_power(
    mean: torch.Tensor, std: torch.Tensor, c: float, refine: int = 1, wide: float = 1.2
) -> Moments:
    """Expected sigmoid(f)^c, c > 0, and its first two derivatives, (n,) each.

    For std > `wide`: sigmoid^c is a step smoothed by ``c sigmoid^c (1 - sigmoid)``.
    """

    def narrow(
        mean: torch.Tensor, std: torch.Tensor, widest: float, refine: int
    ) -> Moments:
        nodes, weights = normal_rule(widest, refine, std.device)
        f = torch.addcmul(mean, nodes[:, None], std)
        value, q = torch.exp(c * logsigmoid(f)), torch.sigmoid(-f)
        first = c * value * q
        second = first * ((c + 1) * q - 1)
        return weights @ value, weights @ first, weights @ second

    def smoothed(mean: torch.Tensor, std: torch.Tensor, refine: int) -> Moments:
        nodes, weights = step_rule(c, refine, std.device)
        u = (mean - nodes[:, None]) / std
        pdf = torch.exp(-0.5 * u.square()) / (math.sqrt(2 * math.pi) * std)
        value = weights @ torch.special.ndtr(u)
        return value, weights @ pdf, -(weights @ (u * pdf)) / std

    return _by_width(mean, std, refine, wide, narrow, smoothed)


@table(maxsize=16)
def step_rule(
    c: float, refine: int = 1, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Trapezoidal nodes and weights for the density c sigmoid^c (1 - sigmoid)."""
    # It falls like exp(c t) on the left and exp(-t) on the right.
    step = 0.6 / refine
    left, right = math.ceil(22 / min(1.0, max(c, 0.01)) / step), math.ceil(22 / step)
    nodes = torch.arange(-left, right + 1, dtype=torch.float64, device=device) * step
    weights = torch.exp(c * logsigmoid(nodes) + logsigmoid(-nodes))
    return nodes, weights / weights.sum()


def _by_width(
    mean: torch.Tensor,
    std: torch.Tensor,
    refine: int,
    wide: float,
    narrow_rule: Callable[..., Moments],
    wide_rule: Callable[..., Moments],
) -> Moments:
    """Apply one rule to narrow rows and another one to wide rows."""
    widest = float(std.max())
    if not widest > wide:
        return narrow_rule(mean, std, widest, refine)
    is_wide = std > wide
    rows, n_rows = is_wide.nonzero()[:, 0], mean.shape[0]
    if rows.shape[0] == n_rows:
        return wide_rule(mean, std, refine)
    if rows.shape[0] < n_rows / 4:  # wasted work takes less time than indexing
        out = list(narrow_rule(mean, std.clamp(max=wide), wide, refine))
    else:
        others = (~is_wide).nonzero()[:, 0]
        parts = narrow_rule(mean[others], std[others], wide, refine)
        out = [torch.empty_like(mean).index_copy_(0, others, x) for x in parts]
    for part, found in zip(out, wide_rule(mean[rows], std[rows], refine), strict=True):
        part.index_copy_(0, rows, found)
    return out[0], out[1], out[2]


def _narrow_softplus(
    mean: torch.Tensor, std: torch.Tensor, widest: float, refine: int
) -> Moments:
    if widest == 0:
        p = torch.sigmoid(mean)
        return _softplus(mean, p), p, p - p.square()
    nodes, weights = normal_rule(widest, refine, std.device)
    f = torch.addcmul(mean, nodes[:, None], std)
    p = torch.sigmoid(f)
    # The weights multiply from the left: one matrix-vector product each.
    value = weights @ _softplus(f, p)
    first = weights @ p
    return value, first, first - weights @ p.square_()


def _softplus(f: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Softplus, to 1e-16 of the larger of it and 1, from p = sigmoid(f)."""
    if f.requires_grad:
        return softplus(f, threshold=40)
    larger = torch.sub(p, 0.5).abs_().add_(0.5)  # of p and 1 - p
    return f.clamp(min=0).sub_(log_(larger))


def _wide_softplus(mean: torch.Tensor, std: torch.Tensor, refine: int) -> Moments:
    nodes, weights = logistic_rule(refine, std.device)
    u = (mean - nodes[:, None]) / std
    cdf = torch.special.ndtr(u)
    pdf = weights @ exp_(u.square().mul_(-0.5)) / math.sqrt(2 * math.pi)
    return std * (weights @ (u * cdf) + pdf), weights @ cdf, pdf / std


def expect_sigmoid(mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Expected sigmoid of f ~ N(mean, std^2), (n,).

    Each row has its own rule, so that predictions do not depend on the batch.
    """
    out = torch.full_like(mean, math.nan)
    lower = -1.0
    for upper in (0.3, 1.0, 2.5, math.inf):
        rows = ((std > lower) & (std <= upper)).nonzero()[:, 0]
        lower = upper
        if len(rows) == 0:
            continue
        if upper == math.inf:
            nodes, weights = logistic_rule(2, std.device)
            # erfc, not ndtr: it keeps its relative accuracy far in the tail.
            u = (nodes[:, None] - mean[rows]) / (math.sqrt(2) * std[rows])
            out[rows] = weights @ (0.5 * torch.special.erfc(u))
        else:
            nodes, weights = normal_rule(upper, device=std.device)
            f = torch.addcmul(mean[rows], nodes[:, None], std[rows])
            out[rows] = weights @ torch.sigmoid(f)
    return out


def log_expect_sigmoid(mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Log of `expect_sigmoid` for mean <= 0, accurate far in the tail.

    ``E sigmoid(f) = exp(mean + std^2 / 2) E sigmoid(-g)``, g ~ N(mean + std^2, std^2),
    if mean + std^2 < 0. Otherwise the integrand is concentrated near f = 0.
    """
    variance = std.square()
    tilted = mean + variance < 0
    center = torch.where(tilted, -(mean + variance), mean)
    value = expect_sigmoid(center, std)
    slow = (std > 2.5) & (center < -0.3 * variance)
    for row in slow.nonzero()[:, 0]:
        value[row] = _slow_tail(float(center[row]), float(std[row]))
    log_value = value.clamp(min=1e-300).log()
    # If even that underflows only the normal tail remains.
    tail = torch.special.log_ndtr(center / std.clamp(min=1e-300))
    log_value = torch.where(value > 1e-300, log_value, tail)
    return torch.where(tilted, mean + variance / 2 + log_value, log_value)


def _slow_tail(mean: float, std: float) -> float:
    """E sigmoid(f) if both tails of the product decay at about the same rate.

    With a mean near -std^2 nodes must cover the range of the normal.
    """
    half = math.ceil(22 + min(8 * std, 10_000))
    nodes = torch.arange(-half, 23, dtype=torch.float64, device=CPU)
    log_weights = logsigmoid(nodes) + logsigmoid(-nodes)
    log_cdf = torch.special.log_ndtr((mean - nodes) / std)
    return float(torch.exp(torch.logsumexp(log_weights + log_cdf, 0)))
