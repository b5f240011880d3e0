"""Predictive distributions of normal f with normal noise of uncertain precision.

Given the precision of the noise everything is normal; the Gamma distributed precision
is integrated by a trapezoidal sum over its logarithm, which converges exponentially.
"""

import math

import numpy as np
import torch
from scipy.special import gammainccinv, gammaincinv, gammaln

# Nodes, and the probability that is left out on each side.
N_NODES, TAIL = 64, 1e-15
# Halvings of the bracket: 2**-50 of its width is left.
N_HALVINGS = 50


def noise_nodes(
    shape: float, rate: float, n_nodes: int = N_NODES, reach: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise variances and log weights, each (n_nodes,), of a Gamma precision.

    `reach` widens the range of the nodes.
    """
    low, high = gammaincinv(shape, TAIL), gammainccinv(shape, TAIL)
    # Tiny shapes underflow: there the density of the logarithm is exp(shape t).
    start = math.log(low) if low > 0 else (math.log(TAIL) + gammaln(shape + 1)) / shape
    stop = math.log(max(high, 1e-300))
    extra = 0.5 * (reach - 1) * (stop - start)
    t = np.linspace(start - extra, stop + extra, n_nodes)
    log_weight = torch.from_numpy(shape * t - np.exp(t))
    precision = torch.from_numpy(t) - math.log(rate)
    return torch.exp(-precision), log_weight - torch.logsumexp(log_weight, 0)


def mixture_log_density(
    z: torch.Tensor, variance: torch.Tensor, noise: torch.Tensor, log_w: torch.Tensor
) -> torch.Tensor:
    """Log density of deviations z, (n,), from the mean, in nats."""
    total = variance[:, None] + noise
    parts = log_w - 0.5 * (z.square()[:, None] / total + total.log())
    return torch.logsumexp(parts, 1) - 0.5 * math.log(2 * math.pi)


def mixture_quantiles(
    variance: torch.Tensor, noise: torch.Tensor, log_w: torch.Tensor, levels: np.ndarray
) -> torch.Tensor:
    """Deviations from the mean at probabilities, (n, q), by bisection.

    With a single node they are normal quantiles.
    """
    scales, w = (variance[:, None] + noise).sqrt(), log_w.exp()
    columns = []
    for level in levels:
        unit = float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))
        # The quantile lies between those of the components.
        ends = scales.aminmax(dim=1)
        low, high = sorted_ends(unit * ends.min, unit * ends.max)
        if len(w) > 1:
            for _ in range(N_HALVINGS):
                middle = (low + high) / 2
                below = torch.special.ndtr(middle[:, None] / scales) @ w < level
                low = torch.where(below, middle, low)
                high = torch.where(below, high, middle)
        columns.append((low + high) / 2)
    return torch.stack(columns, 1)


def sorted_ends(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Order two vectors elementwise."""
    return torch.minimum(a, b), torch.maximum(a, b)
