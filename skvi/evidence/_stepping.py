"""Estimates of log Z from draws at all temperatures of a ladder.

Between neighbors the ratio of integrals is an expectation under either of them. Each
function sums the logarithms of all these ratios; `log_weights` has the shape (L, M, T):
L densities, M independent systems, T draws of each.
"""

import math

import torch

from skvi._sampling._diagnostics import effective_sample_size, khat_limit, pareto_khat
from skvi.evidence._estimates import Estimate, bridge_estimate
from skvi.utils._log_space import log_mean_exp

__all__ = ["ladder_bridge", "ladder_lower", "ladder_upper", "tail_shape"]

# Ratio of neighbors up to which weights have finite variances, plus rounding.
SAFE_RATIO = 2.0 * (1 + 1e-9)


def ladder_upper(
    log_weights: torch.Tensor, betas: torch.Tensor, n_blocks: int = 1
) -> torch.Tensor:
    """Upper bounds on log Z, (M,), in nats, from log weights of systems, (L, M, T).

    By Jensen's inequality above log Z in expectation, if each draw is exact, even if
    draws are dependent; farther above with more blocks, with hardly more noise.
    """
    increments = betas.diff()[:, None, None] * log_weights[1:]
    return -_mean_of_blocks(-increments, n_blocks)


def ladder_lower(
    log_weights: torch.Tensor, betas: torch.Tensor, n_blocks: int = 1
) -> torch.Tensor:
    """Lower bounds on log Z, (M,), one for each system; see `ladder_upper`."""
    increments = betas.diff()[:, None, None] * log_weights[:-1]
    return _mean_of_blocks(increments, n_blocks)


def _mean_of_blocks(increments: torch.Tensor, n_blocks: int) -> torch.Tensor:
    """Sum over the ladder of log mean exp, averaged over blocks of draws, (M,)."""
    size, n_systems, n_draws = increments.shape
    length = n_draws // n_blocks
    used = increments[..., : length * n_blocks]
    blocks = used.reshape(size, n_systems, n_blocks, length)
    return log_mean_exp(blocks).mean(2).sum(0)


def ladder_bridge(log_weights: torch.Tensor, betas: torch.Tensor) -> Estimate:
    """Bridge estimate of every ratio, consistent if the chains have mixed.

    The error is that of the mean over systems of the midpoint between the bounds.
    """
    total = 0.0
    for k, width in enumerate(betas.diff()):
        below, above = width * log_weights[k], width * log_weights[k + 1]
        ess = [float(effective_sample_size(w[..., None])[0]) for w in (below, above)]
        # Draws at both ends have the same autocorrelation: only their ratio matters.
        n_above = below.numel() * max(ess[1], 1.0) / max(ess[0], 1.0)
        total += bridge_estimate(below.flatten(), above, n_above).value
    bounds = ladder_upper(log_weights, betas) + ladder_lower(log_weights, betas)
    return Estimate(total, float(bounds.std()) / 2 / math.sqrt(len(bounds)))


def tail_shape(log_weights: torch.Tensor, betas: torch.Tensor) -> float:
    """Largest Pareto k of weights behind both bounds whose variance may be infinite.

    Left out are nearly constant weights, and those back to a beta of at least half:
    their second moment is an integral of another density of the path.
    """
    worst = -math.inf
    for k, width in enumerate(betas.diff()):
        sides = [width * log_weights[k].flatten()]
        if float(betas[k + 1]) > SAFE_RATIO * float(betas[k]):
            sides.append(-width * log_weights[k + 1].flatten())
        for signed in sides:
            largest = float(signed.max() - log_mean_exp(signed, 0))
            if not largest < math.log(2.0):
                worst = max(worst, pareto_khat(signed))
    return worst


def tail_limit(log_weights: torch.Tensor) -> float:
    """Largest Pareto k at which this number of draws is reliable."""
    return khat_limit(log_weights[0].numel())
