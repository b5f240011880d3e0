"""A compact summary of the log weights behind the bounds."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from skvi.sampling import pareto_khat
from skvi.sampling._diagnostics import khat_limit

__all__ = ["WeightSummary", "summarize_weights"]

N_BINS, MOST_TAIL = 60, 512
# Fractions of the log weights omitted from the histogram: small weights of the proposal
# do not matter, small ones of posterior draws do.
OUTSIDE, SMALL = 0.001, 0.05


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
    edges : ndarray of shape (61,)
        Edges of a histogram of log weights, in nats; the same for both sides.
    density : ndarray of shape (60,)
        Density of the log weights, per nat.

    Examples
    --------
    >>> import torch
    >>> from skvi.evidence import summarize_weights
    >>> draws = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    >>> found = summarize_weights(draws[0], draws[1][None], draws[1][None])
    >>> sorted(found), found["lower"].n_draws, len(found["lower"].edges)
    (['bridge', 'lower', 'upper'], 1000, 61)
    """

    n_draws: int
    khat: float
    khat_limit: float
    ess: float
    tail: np.ndarray
    ranks: np.ndarray
    edges: np.ndarray
    density: np.ndarray


def summarize_weights(
    forward: torch.Tensor, reverse: torch.Tensor, bridge: torch.Tensor
) -> dict[str, WeightSummary]:
    """Summarize log weights for plots: "lower", "upper" and "bridge", about 20 kB.

    `forward` (S,) are of independent draws, `reverse` (n_chains, n_iterations) of
    posterior draws; `bridge` are the latter under the proposal of the former.
    """
    forward, reverse, bridge = forward.flatten(), reverse.flatten(), bridge.flatten()
    edges = _edges((forward, SMALL), (bridge, OUTSIDE))
    return {
        "lower": _summary(forward, 1, edges),
        "upper": _summary(reverse, -1, _edges((reverse, OUTSIDE))),
        "bridge": _summary(bridge, -1, edges),
    }


def _edges(*sides: tuple[torch.Tensor, float]) -> np.ndarray:
    """Bins for log weights, given the omitted fractions of small ones."""
    ends = []
    for log_weights, small in sides:
        values = log_weights[torch.isfinite(log_weights)].double().numpy()
        if len(values):
            ends.append(np.quantile(values, [small, 1 - OUTSIDE]))
    low, high = (min(e[0] for e in ends), max(e[1] for e in ends)) if ends else (0, 0)
    # Constant weights still get distinct bin edges.
    margin = 0.02 * (high - low) + 1e-9 * max(1.0, abs(low))
    return np.linspace(low - margin, high + margin, N_BINS + 1)


def _summary(log_weights: torch.Tensor, sign: int, edges: np.ndarray) -> WeightSummary:
    signed = torch.nan_to_num(sign * log_weights.double(), nan=-math.inf)
    n = len(signed)
    fractions = torch.softmax(signed, 0)
    # The number that Pareto k is fitted to.
    n_tail = math.ceil(min(0.2 * n, 3 * math.sqrt(n)))
    tail = torch.topk(fractions, n_tail).values.numpy()
    ranks = np.unique(np.geomspace(1, n_tail, MOST_TAIL).round().astype(int))
    values = log_weights[torch.isfinite(log_weights)].double().numpy()
    counts, _ = np.histogram(values, edges)
    return WeightSummary(
        n_draws=n,
        khat=pareto_khat(signed),
        khat_limit=khat_limit(n),
        ess=float(1 / fractions.square().sum()),
        tail=tail[ranks - 1],
        ranks=ranks,
        edges=edges,
        density=counts / max(len(values), 1) / np.diff(edges),
    )
