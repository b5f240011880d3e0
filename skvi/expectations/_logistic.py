"""Expectations of logistic and of narrow functions of one normal f.

A standard logistic variable is normal given its scale, which is twice a variable with
Kolmogorov's distribution (Andrews and Mallows 1974, Stefanski 1991). A Gauss rule for
the logarithm of this scale makes the softplus and its derivatives sums of a few normal
integrals, whose expectations under another normal are of the same form. Where f is
narrow, a few nodes for f are faster.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from scipy.stats import kstwobign
from torch.nn.functional import logsigmoid, softplus

from skvi.expectations._rules import Expectations, normal_rule, scalar_derivatives
from skvi.utils._tables import table
from skvi.utils._tensors import CPU, LOG_2PI
from skvi.utils._validation import exp_, log_, row_chunks

# Errors of softplus, of its first and of its second derivative are at most 4e-8, 9e-8
# and 2e-7 with this number of scales, 3e-9, 7e-9 and 2e-8 with two more, and 1e-8 in
# the log of a probability with four more.
N_SCALES = 8
# Standard deviations of f above which the mixture takes no more time than nodes.
WIDE = 2.18

Moments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@table(maxsize=8)
def logistic_scales(
    n_scales: int, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared scales of centered normals, and their weights, (n_scales,) each."""
    x = np.linspace(math.log(0.15), math.log(6.0), 600)
    mass = kstwobign.pdf(np.exp(x)) * np.exp(x)
    mass /= mass.sum()
    # Lanczos: the Jacobi matrix of the polynomials that are orthogonal under this mass.
    diagonal, beside = np.empty(n_scales), np.empty(n_scales)
    last, current, edge = np.zeros_like(x), np.ones_like(x), 0.0
    for i in range(n_scales):
        diagonal[i] = mass @ (x * current**2)
        following = (x - diagonal[i]) * current - edge * last
        edge = beside[i] = math.sqrt(mass @ following**2)
        last, current = current, following / edge
    nodes, vectors = eigh_tridiagonal(diagonal, beside[:-1])
    squares, weights = 4 * np.exp(2 * nodes), vectors[0] ** 2
    return torch.from_numpy(squares).to(device), torch.from_numpy(weights).to(device)


def mixture_softplus(
    mean: torch.Tensor, variance: torch.Tensor, n_scales: int = N_SCALES
) -> Moments:
    """Expected softplus, sigmoid and sigmoid' of f ~ N(mean, variance >= 0)."""
    squares, weights = logistic_scales(n_scales, mean.device)
    shape = -1, *[1] * max(mean.ndim, variance.ndim)
    weights = weights.reshape(shape)
    std = (squares.reshape(shape) + variance).sqrt_()
    u = mean / std
    cdf = torch.erf(u * math.sqrt(0.5)).add_(1)
    pdf = exp_(u.square_().mul_(-0.5))
    first = (cdf * (0.5 * weights)).sum(0)
    weights = weights / math.sqrt(2 * math.pi)
    value = torch.addcmul((pdf * (weights * std)).sum(0), mean, first)
    return value, first, (pdf * (weights / std)).sum(0)


def log_mixture_sigmoid(
    mean: torch.Tensor, variance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logs of E sigmoid(f) and E sigmoid(-f), f ~ N(mean, variance), to 1e-8.

    For mean < -variance / 2: ``E sigmoid(f) = exp(mean + variance / 2) E sigmoid(-g)``,
    g ~ N(mean + variance, variance). Values below 1e-300 are wrong by up to 0.5 nats.
    """
    squares, weights = logistic_scales(N_SCALES + 4, mean.device)
    distance = mean.abs()
    is_tail = distance > variance / 2
    u = torch.where(is_tail, variance - distance, distance)
    small = torch.zeros_like(u)
    for square, weight in zip(squares, weights, strict=True):
        small += weight / 2 * torch.erfc(u * (2 * (square + variance)).rsqrt())
    is_zero = small < 1e-300
    log_(small)
    if bool(is_zero.any()):
        std = variance.sqrt().expand_as(u)[is_zero]
        small[is_zero] = torch.special.log_ndtr(-u[is_zero] / std)
    small += torch.where(is_tail, variance / 2 - distance, 0.0)
    large = torch.log1p(-torch.exp(small))
    is_positive = mean > 0
    return (
        torch.where(is_positive, large, small),
        torch.where(is_positive, small, large),
    )


def expect_softplus(mean: torch.Tensor, std: torch.Tensor, refine: int = 1) -> Moments:
    """Expected softplus, sigmoid and sigmoid' of f ~ N(mean, std^2), (n,) each."""

    def mixture(mean: torch.Tensor, std: torch.Tensor, refine: int) -> Moments:
        return mixture_softplus(mean, std.square(), N_SCALES + 2 * refine)

    return _by_width(mean, std, refine, WIDE, _narrow_softplus, mixture)


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


# Range of integration, in standard deviations of the normal.
REACH = 8.6
# Trapezoidal steps: a fraction of the width of a normal peak, with a maximum in f,
# because the functions have singularities at a distance of pi.
MIN_NODES, MAX_NODES, STEP = 48, 4096, 0.35
# Truncation: exp(-40) of the peak.
POINTS, ROUNDS, DROP = 33, 6, 40.0


def expect_peaked(
    log_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    mean: torch.Tensor,
    std: torch.Tensor,
    y: torch.Tensor,
    refine: int = 1,
) -> Expectations:
    """Expected ``exp(log_function(f, y))`` and its derivatives in f, (n,) each.

    The product with the normal density must have one peak, and the function be analytic
    within pi of the real line. To 1e-9 of the peak for standard deviations below 80.
    """
    out = mean.new_empty(3, len(mean), dtype=torch.float64)
    for rows in row_chunks(len(mean), 4 * MIN_NODES):
        out[:, rows] = _expect_rows(
            log_function, mean[rows], std[rows], y[rows], refine
        )
    return out[0], out[1], out[2]


def log_expect_peaked(
    log_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    mean: torch.Tensor,
    std: torch.Tensor,
    y: torch.Tensor,
    peak: torch.Tensor,
) -> torch.Tensor:
    """Log of the value of `expect_peaked`, (n,), accurate even far in the tails.

    `peak` bounds the distance of the product's peak from the mean, in deviations of f.
    """
    out = torch.empty_like(mean)
    for rows in row_chunks(len(mean), 4 * MIN_NODES):
        some = mean[rows], std[rows], y[rows]
        side = peak[rows]
        ends = side.clamp(max=0) - REACH, side.clamp(min=0) + REACH
        f, log_weight = _nodes(log_function, *some, *ends, 1)
        out[rows] = torch.logsumexp(log_function(f, some[2]) + log_weight, 0)
    return out


def _expect_rows(
    log_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    mean: torch.Tensor,
    std: torch.Tensor,
    y: torch.Tensor,
    refine: int,
) -> torch.Tensor:
    reach = torch.full_like(mean, REACH)
    f, log_weight = _nodes(log_function, mean, std, y, -reach, reach, refine)
    with torch.inference_mode(False):  # it is part of graphs
        known = y.clone()
    value, slope, curvature = scalar_derivatives(lambda g: log_function(g, known), f)
    weighted = torch.exp(value + log_weight)
    # An infinite slope belongs to a value of zero.
    slope = torch.where(weighted > 0, slope, 0.0)
    second = torch.where(weighted > 0, curvature + slope.square(), 0.0)
    return torch.stack(
        [weighted.sum(0), (weighted * slope).sum(0), (weighted * second).sum(0)]
    )


def _nodes(
    log_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    mean: torch.Tensor,
    std: torch.Tensor,
    y: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    refine: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes f, (N, n, 1), between the ends, and the logarithms of their weights."""

    def log_product(z: torch.Tensor) -> torch.Tensor:
        return log_function((mean + std * z)[..., None], y) - 0.5 * z.square()

    low, high = zoom_to_peak(log_product, low, high)
    width = float(((high - low) * std).max())
    n_nodes = refine * max(MIN_NODES, min(math.ceil(width / STEP), MAX_NODES))
    grid = torch.linspace(0, 1, n_nodes + 1, dtype=torch.float64, device=low.device)[
        :, None
    ]
    z = low + (high - low) * grid
    log_weight = torch.log((high - low) / n_nodes) - 0.5 * z.square()
    log_weight = log_weight - 0.5 * LOG_2PI
    return (mean + std * z)[..., None], log_weight


@torch.no_grad()
def zoom_to_peak(
    log_function: Callable[[torch.Tensor], torch.Tensor],
    low: torch.Tensor,
    high: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shrink intervals to where a function with one peak is not negligible."""
    grid = torch.linspace(0, 1, POINTS, dtype=low.dtype, device=low.device)
    grid = grid.reshape([-1] + [1] * low.ndim)
    best = torch.full_like(low, -math.inf)
    for _ in range(ROUNDS):
        x = low + (high - low) * grid
        value = log_function(x)
        best = torch.maximum(best, value.amax(0))
        # The second part: a peak between the points.
        inside = (value >= best - DROP) | (value >= value.amax(0))
        inside = inside.to(torch.int64)
        start = (inside.argmax(0) - 1).clamp(min=0)
        stop = POINTS - 1 - inside.flip(0).argmax(0)
        stop = (stop + 1).clamp(max=POINTS - 1)
        low, high = x.gather(0, start[None])[0], x.gather(0, stop[None])[0]
    return low, high
