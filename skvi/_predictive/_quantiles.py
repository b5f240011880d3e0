"""Quantiles of mixtures, by one search in a bracket."""

import numpy as np
import torch
from scipy.optimize.elementwise import find_root

from skvi.expectations._poisson import smallest_counts
from skvi.likelihoods import (
    GaussianLikelihood,
    HurdleLikelihood,
    Likelihood,
    RoundedLikelihood,
)

__all__ = ["mixture_quantiles", "normal_mixture_quantiles", "quantiles_of"]

# Relative error of quantiles, and of the probability of their tails.
ROUNDING = 1e-15
# Smallest deviation, whose square is not 0.
TINY = 1e-150


def quantiles_of(
    p: Likelihood, f: torch.Tensor, levels: np.ndarray, w: torch.Tensor
) -> torch.Tensor:
    """Quantiles, (n, q), of a mixture of one target; the smallest where it is discrete.

    Those of a rounded number spread its probability evenly over its interval, as
    its density does: the next number on the grid covers too much.
    """
    if isinstance(p, RoundedLikelihood):
        y = p.rounded(mixture_quantiles(p.smooth, f, levels, w)).T
        below, upto = (
            torch.stack([w @ p.cdf(f, x) for x in g]) for g in (y - p.step, y)
        )
        share = (torch.as_tensor(levels).to(y)[:, None] - below) / (upto - below)
        return (y + p.step * (share.clamp(0, 1) - 0.5)).T
    if p.is_discrete:
        start = torch.expm1(w @ torch.log1p(p.mean(f))) + 1  # about the median
        cdf = lambda k: w @ p.cdf(f, k)
        found = [smallest_counts(cdf, start, level) for level in levels.tolist()]
        return torch.stack(found, 1)
    found = mixture_quantiles(p, f, levels, w)
    if isinstance(p, HurdleLikelihood):
        upto = w @ p.cdf(f, f.new_full(f.shape[1:2], p.value))
        below, level = upto - w @ p.mass(f), torch.as_tensor(levels).to(upto)[:, None]
        found = found.where(((level < below) | (level > upto)).T, p.value)
    return found


def mixture_quantiles(
    likelihood: Likelihood,
    f: torch.Tensor,
    levels: np.ndarray,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Quantiles, (n, q), of the mixture of distributions given draws f, (S, n, C)."""
    levels = np.asarray(levels, dtype=np.float64)
    w = f.new_full((len(f),), 1 / len(f)) if weights is None else weights
    # A mixture's quantile lies between those of its components.
    own = [likelihood.quantile(f, level) for level in levels.tolist()]
    # Lengths over which the probability of a tail changes.
    density = torch.stack([w @ likelihood.log_prob(f, y).exp() for y in own])
    unit = torch.from_numpy(np.minimum(levels, 1 - levels)[:, None]).to(f) / density
    # The bracket may be many orders wider: by powers of it, around a likely place.
    middle = torch.stack([x[w.argmax()] for x in own])
    low, high = (
        ((torch.stack(ends) - middle) / unit).asinh().cpu().numpy().ravel()
        for ends in ([x.amin(0) for x in own], [x.amax(0) for x in own])
    )
    found = low.reshape(unit.shape).copy()

    def excess(x: np.ndarray, index: np.ndarray) -> np.ndarray:
        found.flat[index] = x
        y = middle + torch.from_numpy(found).to(unit).sinh() * unit
        cdf = torch.stack([w @ likelihood.cdf(f, row) for row in y])
        value = (cdf.cpu().numpy() - levels[:, None]).flat[index]
        # Rounding must not take the root out of its bracket.
        value = np.where(x <= low[index], np.minimum(value, 0), value)
        return np.where(x >= high[index], np.maximum(value, 0), value)

    tolerances = {"xatol": ROUNDING, "xrtol": ROUNDING}
    index = np.arange(len(low))
    root = find_root(excess, (low, high), args=(index,), tolerances=tolerances)
    return (
        middle + torch.from_numpy(root.x.reshape(unit.shape)).to(unit).sinh() * unit
    ).T


def normal_mixture_quantiles(
    means: torch.Tensor,
    stds: torch.Tensor | float,
    levels: np.ndarray,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Quantiles, (n, q), of mixtures of normals, (S, n)."""
    # A function that no data can change, as in an empty row, is its own quantile.
    stds = torch.as_tensor(stds).to(means).clamp(min=TINY)
    normal = GaussianLikelihood()._at_scale(stds)
    return mixture_quantiles(normal, means[..., None], levels, weights)
