"""Softmax functions of normal f: the nodes, and log probabilities for predictions."""

from collections.abc import Iterator

import torch

from skvi.expectations._conditioning import log_expect_conditioned
from skvi.expectations._rules import (
    FEW,
    N_POINTS,
    contrasts,
    factorize_rows,
    node_groups,
    quasi_random_rule,
    reduce_covariance,
)
from skvi.utils._arrays import row_chunks

# Exponentials of deviations in this range, and ratios of them, do not overflow.
MAX_RANGE = 300.0


def softmax_nodes(
    mean: torch.Tensor, covariance: torch.Tensor, refine: int = 1
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield rows, (m,), f ~ N(mean_i, covariance_i) at nodes, (m, K, N), and weights.

    f is up to a constant added to all K, and is the caller's to change.
    """
    for rows, factor, nodes, weights in node_groups(covariance, refine):
        f = (factor.reshape(-1, len(nodes)) @ nodes).reshape(*factor.shape[:2], -1)
        f += mean[rows, :, None]
        yield rows, f, weights


def log_expect_softmax(mean: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    """Log of the expected softmax of f ~ N(mean_i, covariance_i), (n, K), in nats.

    Each row has its own rule. Small values keep their digits as far as nodes reach.
    """
    if mean.shape[1] <= FEW:
        return torch.log_softmax(log_expect_conditioned(mean, covariance), 1)
    out = mean - mean.amax(1, keepdim=True)
    for rows, factor, nodes, weights in node_groups(covariance):
        g = (factor.reshape(-1, len(nodes)) @ nodes).reshape(*factor.shape[:2], -1)
        out[rows] += _log_expect_ratio(out[rows], g, weights)
    return torch.log_softmax(out, 1)


def _log_expect_ratio(
    mean: torch.Tensor, g: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Log of E[exp(g_k) / sum_j exp(mean_j + g_j)] from g at nodes, (m, K, N)."""
    low, high = g.aminmax()
    if float(high - low) < MAX_RANGE:
        ratio = g.exp_()
        inverse = (mean.exp()[:, None] @ ratio).reciprocal_() * weights
        return (ratio @ inverse.mT)[..., 0].log_()
    total = torch.logsumexp(g + mean[..., None], 1, keepdim=True)
    return torch.logsumexp(g - total + weights.log(), 2)


def softmax_at_points(
    mean: torch.Tensor, covariance: torch.Tensor, log_weights: torch.Tensor
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield rows, and softmax probabilities of a mixture of M normal f, (S, n, K)."""
    n_normals, n, k = mean.shape
    basis = contrasts(k, mean.device)
    centered = mean - mean.mean(2, keepdim=True)
    root = factorize_rows(reduce_covariance(covariance.flatten(0, 1)))
    root = (basis @ root).reshape(n_normals, n, k, -1)
    groups = _shared_points(basis.shape[1], log_weights)
    for rows in row_chunks(n, N_POINTS * basis.shape[1]):
        p = [
            torch.softmax(
                centered[m, rows] + torch.einsum("nkd,sd->snk", root[m, rows], points),
                2,
            )
            for m, points in enumerate(groups)
        ]
        yield rows, torch.cat(p)


def _shared_points(dimension: int, log_weights: torch.Tensor) -> list[torch.Tensor]:
    """Standard normal points for each normal, as many as its weight demands."""
    several = len(log_weights) > 1
    device = log_weights.device
    points = quasi_random_rule(dimension + several, N_POINTS, device=device)[0].T
    if not several:
        return [points]
    # The last coordinate of a point decides which normal it belongs to.
    ends = log_weights.exp().cumsum(0)[:-1].contiguous()
    owner = torch.searchsorted(ends, torch.special.ndtr(points[:, -1]).contiguous())
    return [points[owner == m, :-1] for m in range(len(log_weights))]
