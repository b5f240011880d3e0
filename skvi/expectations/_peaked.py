"""Expectations of functions with one peak, however narrow, under a normal."""

import math
from collections.abc import Callable

import torch

from skvi.expectations._smooth import Expectations, scalar_derivatives
from skvi.utils._arrays import row_chunks
from skvi.utils._log_space import LOG_2PI

__all__ = ["expect_peaked", "log_expect_peaked", "zoom_to_peak"]

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
