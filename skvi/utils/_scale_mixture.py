"""Predictive distributions of normal f with normal noise of uncertain precision.

Given the precision of the noise everything is normal; the Gamma-distributed precision
is integrated out by a trapezoidal sum over its logarithm, which converges
exponentially.
"""

import math

import numpy as np
import torch
from scipy.special import gammainccinv, gammaincinv, gammaln

# Nodes, and the truncated probability on each side.
N_NODES, TAIL = 64, 1e-15
# From these shapes on: nodes, and their range relative to the default.
FEW = ((200.0, 9, 0.7), (40.0, 12, 0.75), (10.0, 24, 1.0))


def noise_nodes(
    shape: float, rate: float, n_nodes: int = N_NODES, reach: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise variances and log weights, each (n_nodes,), of a Gamma precision.

    `reach` widens the range of the nodes.
    """
    low, high = gammaincinv(shape, TAIL), gammainccinv(shape, TAIL)
    # Tiny shapes underflow: the density of the logarithm is then exp(shape t).
    start = math.log(low) if low > 0 else (math.log(TAIL) + gammaln(shape + 1)) / shape
    stop = math.log(max(high, 1e-300))
    extra = 0.5 * (reach - 1) * (stop - start)
    t = np.linspace(start - extra, stop + extra, n_nodes)
    log_weight = torch.from_numpy(shape * t - np.exp(t))
    precision = torch.from_numpy(t) - math.log(rate)
    return torch.exp(-precision), log_weight - torch.logsumexp(log_weight, 0)


def gamma_nodes(shape: float, rate: float) -> tuple[torch.Tensor, torch.Tensor]:
    """As `noise_nodes`, but only as many as averages of smooth functions need.

    The log of a precision that many rows determine is nearly normal and narrow.
    """
    for least, n_nodes, reach in FEW:
        if shape > least:
            return noise_nodes(shape, rate, n_nodes, reach)
    return noise_nodes(shape, rate)
