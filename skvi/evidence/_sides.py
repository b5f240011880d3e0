"""Two sets of log weights: for the lower and the upper bound."""

from dataclasses import dataclass

import torch

from skvi._sampling._chains import Chains

__all__ = [
    "MIN_DRAWS",
    "NEARLY_CONSTANT",
    "Sides",
    "error_of",
    "is_loose",
    "n_draws_for",
]

DEFAULT_PRECISION = 0.03
MIN_DRAWS = 2**12
# Requested precision in nats from which few draws suffice.
LOOSE, FEW_DRAWS = 0.1, 2**9
#: Weights are nearly constant if none exceeds this multiple of their mean.
NEARLY_CONSTANT = 2.0


@dataclass(frozen=True, eq=False)
class Sides:
    """Log weights for the lower and the upper bound."""

    method: str
    forward: torch.Tensor  # (S,), of independent draws
    reverse: torch.Tensor  # of posterior draws, (n_chains, n_iterations)
    bridge: torch.Tensor  # those under the proposal of the forward draws
    k_below: int  # draws per block of the lower bound
    k_above: int  # and of the upper bound
    chains: Chains  # the posterior draws
    error: float  # target standard error, in nats
    is_cut: bool = False  # by the clock, before the planned draws
    is_block_larger: bool = False  # `k_below` may exceed `block_size`


def error_of(precision: float | None) -> float:
    """Target standard error: the bias is two of it, and the noise two more."""
    return (DEFAULT_PRECISION if precision is None else precision) / 4


def is_loose(precision: float | None) -> bool:
    """Whether the requested precision is so low that pilot runs may be short, too."""
    return precision is not None and precision >= LOOSE


def n_draws_for(
    variance: float, precision: float | None, limit: int, least: int = MIN_DRAWS
) -> int:
    """Draws that a relative variance of weights needs."""
    if is_loose(precision):
        least = min(least, FEW_DRAWS)
    return int(min(max(variance / error_of(precision) ** 2, least), limit))
