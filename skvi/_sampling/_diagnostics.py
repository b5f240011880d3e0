"""Diagnostics of weights and chains."""

import math

import numpy as np
import torch

__all__ = [
    "MAX_RHAT",
    "disagreement",
    "effective_sample_size",
    "khat_limit",
    "pareto_khat",
    "split_rhat",
]

#: R-hat above which chains are said to disagree.
MAX_RHAT = 1.05


def khat_limit(n_draws: int) -> float:
    """Largest Pareto k at which standard errors from this many draws are reliable.

    ``min(0.7, 1 - 1 / log10(n_draws))``, Vehtari et al. (2024), section 3.2.4.
    """
    return min(0.7, 1 - 1 / math.log10(max(n_draws, 11)))


def pareto_khat(log_weights: torch.Tensor) -> float:
    """Shape k of the generalized Pareto tail of weights; their logs up to a constant.

    Weights have about 1/k finite moments. ``inf`` with fewer than 5 weights in the
    tail, ``-inf`` if all are equal. Zhang and Stephens (2009); Vehtari et al. (2024).
    """
    n = len(log_weights)
    n_tail = math.ceil(min(0.2 * n, 3 * math.sqrt(n)))
    ordered = np.sort(log_weights.double().cpu().numpy())  # NaN come last
    if n_tail < 5 or not math.isfinite(ordered[-1]):
        return math.inf
    top = np.exp(ordered[-n_tail - 1 :] - ordered[-1])
    x = top[1:] - top[0]
    if x[-1] - x[0] <= 1e-12:
        return -math.inf
    return _fit_pareto_shape(x.clip(min=1e-300))


def _fit_pareto_shape(x: np.ndarray) -> float:
    """Posterior mean of the shape by Zhang and Stephens' profile likelihood."""
    n = len(x)
    n_grid = 30 + int(math.sqrt(n))
    quartile = x[int(n / 4 + 0.5) - 1]
    grid = np.arange(1, n_grid + 1)
    with np.errstate(all="ignore"):
        b = 1 / x[-1] + (1 - np.sqrt(n_grid / (grid - 0.5))) / (3 * quartile)
        k = np.log1p(-b[:, None] * x).mean(1)
        log_likelihood = n * (np.log(-b / k) - k - 1)
        weights = np.exp(log_likelihood - log_likelihood.max())
        b_mean = (weights @ b) / weights.sum()
        shape = float(np.log1p(-b_mean * x).mean())
    return (n * shape + 10 * 0.5) / (n + 10)


def split_rhat(values: torch.Tensor) -> float:
    """Largest rank-normalized split-R-hat of m quantities, (n_chains, n_iter, m).

    Of the ranks, and of the ranks of distances from the median; ``inf`` for fewer than
    4 iterations. Vehtari et al. (2021), equations 13 to 15 and section 4.2.
    """
    half = values.shape[1] // 2
    if half < 2 or not bool(torch.isfinite(values).all()):
        return math.inf
    split = _halves(values)
    folded = np.abs(split - np.median(split, (0, 1)))
    worst = max(_rhat_of_ranks(split), _rhat_of_ranks(folded))
    return worst if math.isfinite(worst) else math.inf


def disagreement(values: torch.Tensor) -> float:
    """Larger one of `split_rhat` and of the same without ranks.

    Ranks of many chains hide how far away a single chain is, in a mode of its own.
    """
    ranked = split_rhat(values)
    if not math.isfinite(ranked):
        return math.inf
    plain = _largest_ratio(_halves(values))
    return max(ranked, plain) if math.isfinite(plain) else math.inf


def _halves(values: torch.Tensor) -> np.ndarray:
    half = values.shape[1] // 2
    split = torch.cat([values[:, :half], values[:, -half:]])
    return split.cpu().double().numpy()


def _rhat_of_ranks(split: np.ndarray) -> float:
    """Largest R-hat of normal scores."""
    flat = split.reshape(-1, split.shape[2])
    ranks = np.stack([_ranks(column) for column in flat.T], 1)
    levels = torch.from_numpy((ranks - 0.375) / (len(flat) + 0.25))
    return _largest_ratio(torch.special.ndtri(levels).numpy().reshape(split.shape))


def _largest_ratio(scores: np.ndarray) -> float:
    """Largest R-hat; quantities that never change agree."""
    n = scores.shape[1]
    within = scores.var(1, ddof=1).mean(0)
    between = scores.mean(1).var(0, ddof=1)
    ratio = (n - 1) / n + between / within.clip(min=1e-300)
    return float(np.sqrt(np.where(within + between > 0, ratio, 1.0)).max())


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, which equal values share: rejected moves repeat some."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - 0.5 * (counts - 1))[where]


def effective_sample_size(values: torch.Tensor) -> torch.Tensor:
    """Effective number of independent draws of chains, (m,), at most all of them.

    Ratio of the pooled variance to that of the chain means: many chains are needed.
    """
    n_chains, n_iter = values.shape[:2]
    total = values.reshape(-1, values.shape[2]).var(0)
    between = values.mean(1).var(0)
    # Constants, such as weights of an exact posterior, are as good as independent.
    ess = torch.where(between > 0, n_chains * total / between, torch.inf)
    return ess.clamp(max=n_chains * n_iter)
