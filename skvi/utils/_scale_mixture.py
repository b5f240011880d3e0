"""Predictive distributions of normal f with normal noise of uncertain precision.

Given the precision of the noise everything is normal; the Gamma-distributed precision
is integrated out by a trapezoidal sum over its logarithm, which converges
exponentially.
"""

import math

import numpy as np
import torch
from scipy.special import gammainccinv, gammaincinv, gammaln, ndtri

from skvi.utils._log_space import LOG_2PI

# Nodes, and the truncated probability on each side.
N_NODES, TAIL = 64, 1e-15
# From these shapes on: nodes, and their range relative to the default.
FEW = ((200.0, 9, 0.7), (40.0, 12, 0.75), (10.0, 24, 1.0))
# Newton's method needs about five; halvings alone would leave 2**-50 of a bracket.
MAX_STEPS = 50
ROUNDING = 1e-14


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


def mixture_log_density(
    z: torch.Tensor, variance: torch.Tensor, noise: torch.Tensor, log_w: torch.Tensor
) -> torch.Tensor:
    """Log density of deviations z, (n,), from the mean, in nats."""
    total = variance[:, None] + noise
    parts = log_w - 0.5 * (z.square()[:, None] / total + total.log())
    return torch.logsumexp(parts, 1) - 0.5 * LOG_2PI


def mixture_quantiles(
    variance: torch.Tensor, noise: torch.Tensor, log_w: torch.Tensor, levels: np.ndarray
) -> torch.Tensor:
    """Deviations from the mean at probabilities, (n, q), by Newton's method.

    With a single node they are normal quantiles.
    """
    scales, w = (variance[:, None] + noise).sqrt(), log_w.exp()
    ends = scales.aminmax(dim=1)
    columns = []
    for level in levels:
        # The distribution is symmetric: lower quantiles suffice.
        sign, tail = (1.0, level) if level <= 0.5 else (-1.0, 1.0 - level)
        unit = float(ndtri(tail))
        # The quantile lies between those of the components.
        low, high = unit * ends.max, unit * ends.min
        columns.append(sign * _bracketed_quantile(scales, w, float(tail), low, high))
    return torch.stack(columns, 1)


def _bracketed_quantile(
    scales: torch.Tensor,
    w: torch.Tensor,
    level: float,
    low: torch.Tensor,
    high: torch.Tensor,
) -> torch.Tensor:
    """Newton steps within a bracket, halved if they would leave it."""
    z = (low + high) / 2
    if len(w) == 1:
        return z
    for _ in range(MAX_STEPS):
        units = z[:, None] / scales
        excess = torch.special.ndtr(units) @ w - level
        low, high = torch.where(excess < 0, z, low), torch.where(excess < 0, high, z)
        slope = (torch.exp(-0.5 * units.square()) / scales) @ w / math.sqrt(2 * math.pi)
        step = excess / slope
        inside = (z - step >= low) & (z - step <= high)
        moved = torch.where(inside, z - step, (low + high) / 2)
        done = (moved - z).abs() <= ROUNDING * torch.maximum(low.abs(), high.abs())
        z = moved
        if done.all():
            break
    return z
