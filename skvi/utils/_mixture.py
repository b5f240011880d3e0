"""Quantiles of mixtures."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from scipy.special import ndtri

# Halvings of the bracket: 2**-50 of its width is left.
N_HALVINGS = 50
# Newton's method needs ten or so.
MAX_STEPS, ROUNDING = 100, 1e-14
# Relative rounding of a number.
ULPS = 4 * float(np.finfo(float).eps)


class Distribution(Protocol):
    """Interface of likelihoods of one target for `mixture_quantiles`."""

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor: ...

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor: ...

    def quantile(self, f: torch.Tensor, level: float) -> torch.Tensor: ...


def mixture_quantiles(
    likelihood: Distribution,
    f: torch.Tensor,
    levels: np.ndarray,
    weights: torch.Tensor | None = None,
    rounding: float = ROUNDING,
) -> torch.Tensor:
    """Quantiles, (n, q), of the mixture of distributions given draws f, (S, n, C).

    Newton's method within a bracket. Its `rounding` is relative to the widths.
    """
    columns = []
    w = f.new_full((len(f),), 1 / len(f)) if weights is None else weights
    for level in levels.tolist():
        # A mixture's quantile lies between those of its components.
        own = likelihood.quantile(f, level)
        low, high = own.min(0).values, own.max(0).values
        y, width = w @ own, high - low
        last = width
        done = torch.zeros_like(low, dtype=torch.bool)
        # Near 0 the rounding of probabilities, over the density, is what remains.
        least = 1 / (w @ (1 / (own - f[..., 0]).abs()))
        for _ in range(MAX_STEPS):
            excess = w @ likelihood.cdf(f, y) - level
            low, high = (
                torch.where(excess < 0, y, low),
                torch.where(excess < 0, high, y),
            )
            step = excess / (w @ likelihood.log_prob(f, y).exp())
            digits = ULPS * torch.maximum(low.abs(), high.abs())
            enough = torch.maximum(digits, rounding * torch.maximum(width, least))
            done |= torch.minimum(step.abs(), high - low) <= enough
            moved = y - step
            # Steps that do not shrink go to and fro across a steep place.
            inside = (moved > low) & (moved < high) & (step.abs() < 0.5 * last)
            moved = torch.where(inside, moved, (low + high) / 2)
            y, last = torch.where(done, y, moved), (moved - y).abs()
            if bool(done.all()):
                break
        columns.append(y)
    return torch.stack(columns, 1)


def smallest_counts(
    cdf: Callable[[torch.Tensor], torch.Tensor], level: float, start: torch.Tensor
) -> torch.Tensor:
    """Smallest counts, (n,), whose cumulative probability is at least a level."""
    low, high = torch.full_like(start, -1.0), (start + 1).ceil()
    while bool((short := cdf(high) < level).any()):
        low = torch.where(short, high, low)
        high = torch.where(short, 2 * high + 1, high)
    # Above 2^53 consecutive counts are not representable.
    while bool((gap := high - low > 1 + high * 1e-15).any()):
        middle = torch.floor((low + high) / 2)
        below = gap & (cdf(middle.clamp(min=0)) < level)
        low = torch.where(below, middle, low)
        high = torch.where(gap & ~below, middle, high)
    return high


def normal_mixture_quantiles(
    means: torch.Tensor,
    scale: torch.Tensor | float,
    levels: Sequence[float] | np.ndarray,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Quantiles, (n, q), of mixtures of normals, means (S, n), by bisection.

    The normals' weights, (S,), have sum 1; None is equal weights.
    """
    columns = []
    for level in levels:
        # A mixture's quantile lies between those of its components.
        own = means + scale * float(ndtri(level))
        low, high = own.min(0).values, own.max(0).values
        for _ in range(N_HALVINGS):
            middle = (low + high) / 2
            cdf = torch.special.ndtr((middle - means) / scale)
            below = (cdf.mean(0) if weights is None else weights @ cdf) < level
            low = torch.where(below, middle, low)
            high = torch.where(below, high, middle)
        columns.append((low + high) / 2)
    return torch.stack(columns, 1)
