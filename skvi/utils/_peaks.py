"""Intervals around peaks."""

import math
from collections.abc import Callable

import torch

__all__ = ["zoom_to_peak"]

# Truncation: exp(-40) of the peak.
POINTS, ROUNDS, DROP = 33, 6, 40.0


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
