"""A compact summary of the log weights behind the bounds."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from skvi._sampling._diagnostics import khat_limit, pareto_khat

__all__ = ["WeightSummary", "summarize_weights"]

MOST_TAIL = 512


@dataclass(frozen=True, eq=False)
class WeightSummary:
    """Summary of the log weights ``log p(D, theta) - log r(theta)`` of one bound.

    Parameters
    ----------
    n_draws : int
    khat : float
        Pareto k of the weights (lower side) or of their inverses (upper side).
    khat_limit : float
        Largest Pareto k at which errors from this number of draws are reliable; weights
        that never exceed twice their mean are exempt, see `EvidenceBounds.reliable`.
    ess : float
        Effective sample size; draws of chains count as independent.
    tail : ndarray of shape (m,)
        The largest weights, which k is fitted to, in descending order, as fractions of
        the sum. At most 512 of them, spaced over all ranks.
    ranks : ndarray of shape (m,)
        Ranks of the tail, from 1.

    Examples
    --------
    >>> import torch
    >>> from skvi.evidence._weights import summarize_weights
    >>> draws = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    >>> found = summarize_weights(draws[0], draws[1][None])
    >>> sorted(found), found["lower"].n_draws, len(found["lower"].tail)
    (['lower', 'upper'], 1000, 95)
    """

    n_draws: int
    khat: float
    khat_limit: float
    ess: float
    tail: np.ndarray
    ranks: np.ndarray


def summarize_weights(
    forward: torch.Tensor, reverse: torch.Tensor
) -> dict[str, WeightSummary]:
    """Summarize log weights for plots: "lower" and "upper".

    `forward` (S,) are of independent draws, `reverse` (n_chains, n_iterations) of
    posterior draws.
    """
    return {
        "lower": _summary(forward.flatten(), 1),
        "upper": _summary(reverse.flatten(), -1),
    }


def _summary(log_weights: torch.Tensor, sign: int) -> WeightSummary:
    signed = torch.nan_to_num(sign * log_weights.double(), nan=-math.inf)
    n = len(signed)
    fractions = torch.softmax(signed, 0)
    # The number that Pareto k is fitted to.
    n_tail = math.ceil(min(0.2 * n, 3 * math.sqrt(n)))
    tail = torch.topk(fractions, n_tail).values.numpy()
    ranks = np.unique(np.geomspace(1, n_tail, MOST_TAIL).round().astype(int))
    return WeightSummary(
        n_draws=n,
        khat=pareto_khat(signed),
        khat_limit=khat_limit(n),
        ess=float(1 / fractions.square().sum()),
        tail=tail[ranks - 1],
        ranks=ranks,
    )
