"""Quantiles of mixtures."""

from typing import Protocol

import numpy as np
import torch
from scipy.special import ndtri

# Halvings of the bracket: 2**-50 of its width is left.
N_HALVINGS = 50
# Newton's method needs ten or so.
MAX_STEPS, ROUNDING = 100, 1e-14


class Distribution(Protocol):
    """What `mixture_quantiles` needs of a likelihood of one target."""

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor: ...

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor: ...

    def quantile(self, f: torch.Tensor, level: float) -> torch.Tensor: ...


def mixture_quantiles(
    likelihood: Distribution, f: torch.Tensor, levels: np.ndarray
) -> torch.Tensor:
    """Quantiles of the mixture of what equally weighted draws predict.

    Parameters
    ----------
    likelihood : Distribution
    f : Tensor of shape (S, n, C)
    levels : ndarray of shape (q,)
        Probabilities.

    Returns
    -------
    Tensor of shape (n, q)
        By Newton's method within a bracket, each row on its own.
    """
    columns = []
    for level in levels.tolist():
        # A mixture's quantile lies between those of its components.
        own = likelihood.quantile(f, level)
        low, high = own.min(0).values, own.max(0).values
        y, done = (low + high) / 2, torch.zeros_like(low, dtype=torch.bool)
        for _ in range(MAX_STEPS):
            excess = likelihood.cdf(f, y).mean(0) - level
            low, high = (
                torch.where(excess < 0, y, low),
                torch.where(excess < 0, high, y),
            )
            moved = y - excess / likelihood.log_prob(f, y).exp().mean(0)
            inside = (moved > low) & (moved < high)
            moved = torch.where(inside, moved, (low + high) / 2)
            y, before = torch.where(done, y, moved), y
            done |= (moved - before).abs() <= ROUNDING * torch.maximum(
                low.abs(), high.abs()
            )
            if bool(done.all()):
                break
        columns.append(y)
    return torch.stack(columns, 1)


def normal_mixture_quantiles(
    means: torch.Tensor, scale: torch.Tensor | float, levels: np.ndarray
) -> torch.Tensor:
    """Quantiles of equally weighted normals, by bisection.

    Parameters
    ----------
    means : Tensor of shape (S, n)
    scale : Tensor of shape (S, 1) or float
        Of each of them, or of all.
    levels : ndarray of shape (q,)
        Probabilities.

    Returns
    -------
    Tensor of shape (n, q)
    """
    columns = []
    for level in levels:
        # A mixture's quantile lies between those of its components.
        own = means + scale * float(ndtri(level))
        low, high = own.min(0).values, own.max(0).values
        for _ in range(N_HALVINGS):
            middle = (low + high) / 2
            below = torch.special.ndtr((middle - means) / scale).mean(0) < level
            low = torch.where(below, middle, low)
            high = torch.where(below, high, middle)
        columns.append((low + high) / 2)
    return torch.stack(columns, 1)
