"""Poisson counts whose log rate is normal: distribution function and quantiles."""

import math
from collections.abc import Callable
from itertools import count

import numpy as np
import torch
from scipy.special import ndtri

from skvi.expectations._logistic import log_expect_peaked
from skvi.utils._tables import table
from skvi.utils._validation import row_chunks

# Trapezoidal nodes: of the normal, and of the log of a Gamma variable in units of its
# standard deviation, whose left tail is exponential if the count is 0.
STEP, NORMAL_REACH, GAMMA_REACH = 0.33, 8.25, (-38.0, 10.0)
# Relative error of large quantiles: that of the distribution functions; and the
# largest log rate and count.
ROUNDING, MAX_LOG_RATE, LARGEST = 1e-11, 690.0, 1e150

Cdf = Callable[[torch.Tensor], torch.Tensor]


def poisson_mixture_cdf(
    k: torch.Tensor, mean: torch.Tensor, std: torch.Tensor
) -> torch.Tensor:
    """P(Y <= k), Y ~ Poisson(exp(f)), f ~ N(mean, std^2), to about 1e-10; k >= -1.

    Y <= k if a Gamma(k + 1) variable T exceeds exp(f). The integral is over the
    narrower of f and log T, so that the rest is smooth; each row has its own rule.
    """
    out = torch.zeros_like(mean)
    width = (k + 1).clamp(min=1).rsqrt()
    for rule, rows in ((_over_f, std < width), (_over_t, std >= width)):
        index = (rows & (k >= 0)).nonzero()[:, 0]
        for chunk in row_chunks(len(index), 150):
            some = index[chunk]
            out[some] = rule(k[some], mean[some], std[some])
    return out


def poisson_mixture_log_mass(
    y: torch.Tensor, mean: torch.Tensor, std: torch.Tensor
) -> torch.Tensor:
    """Log P(Y = y), accurate even for very improbable y."""

    def log_mass(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        f = f[..., 0]
        return y * f - f.clamp(max=300).exp() - torch.lgamma(y + 1)

    # At the peak z = std (y - exp(f)), with f between the mean and log y.
    gap = y.clamp(min=1e-300).log() - mean
    peak = gap / std.clamp(min=1e-300)
    steepest = std * torch.maximum(y, mean.clamp(max=300).exp())
    peak = torch.maximum(torch.minimum(peak, steepest), -steepest)
    return log_expect_peaked(log_mass, mean, std, y, peak)


def poisson_mixture_quantiles(
    mean: torch.Tensor,
    std: torch.Tensor,
    weights: torch.Tensor,
    levels: np.ndarray,
) -> torch.Tensor:
    """Smallest counts whose distribution function reaches levels, (n, q).

    The log rate is a mixture of M normals, means (M, n), with weights (M,) of sum 1.
    """
    flat = mean.flatten(), std.flatten()

    def cdf(k: torch.Tensor) -> torch.Tensor:
        found = poisson_mixture_cdf(k.expand_as(mean).flatten(), *flat)
        return weights @ found.reshape(mean.shape)

    found = []
    for level in levels.tolist():
        far = (mean + std * max(float(ndtri(level)), 0.0)).amax(0)
        rate = torch.exp(far.clamp(max=MAX_LOG_RATE))
        found.append(smallest_counts(cdf, rate + 5 * (rate + 1).sqrt(), level))
    return torch.stack(found, 1)


def smallest_counts(cdf: Cdf, start: torch.Tensor, level: float) -> torch.Tensor:
    """Smallest counts, (n,), at which a distribution function reaches a level.

    From a guess; by secants in logarithms, since quantiles of wide rates have any size,
    that go too far by the square of the width, so that both ends close in, and every
    third time by bisection.
    """
    low, high = torch.full_like(start, -1.0), start.ceil().clamp(max=LARGEST)
    below = torch.full_like(start, -level)
    while True:
        less = (above := cdf(high) - level) < 0
        short = less & (high < LARGEST)
        if not bool(short.any()):
            break
        low, below = torch.where(short, high, low), torch.where(short, above, below)
        high = torch.where(short, (high + 2).square().clamp(max=LARGEST), high)
    for step in count():
        gap = ~less & (high - low > 1 + high * ROUNDING)
        if not bool(gap.any()):
            break
        a, b = (low + 2).log(), (high + 2).log()
        middle, most = (a + b) / 2, (b - a).square() / 5
        if step % 3 < 2:
            secant = (a * above - b * below) / (above - below)
            middle = secant + torch.minimum((middle - secant).clamp(min=-most), most)
        k = (middle.exp() - 2).floor().clamp(low + 1, high - 1)
        value = cdf(k) - level
        is_low, is_high = gap & (value < 0), gap & (value >= 0)
        low, below = torch.where(is_low, k, low), torch.where(is_low, value, below)
        high, above = torch.where(is_high, k, high), torch.where(is_high, value, above)
    return torch.where(less, math.inf, high)


def _over_f(k: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    z, weights = _normal_nodes(mean.device)
    rate = torch.exp((mean + std * z[:, None]).clamp(max=MAX_LOG_RATE))
    return weights @ torch.special.gammaincc((k + 1).expand_as(rate), rate)


def _over_t(k: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    shape = k + 1
    u = torch.arange(*GAMMA_REACH, STEP, dtype=torch.float64, device=mean.device)
    u = u[:, None]
    offset = u * shape.rsqrt()
    # Density of log T at log(shape) + offset, relative to its peak.
    weights = torch.exp(shape * (offset - torch.expm1(offset)))
    cdf = torch.special.ndtr((shape.log() + offset - mean) / std)
    return (weights * cdf).sum(0) / weights.sum(0)


@table(maxsize=4)
def _normal_nodes(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    half = round(NORMAL_REACH / STEP)
    z = torch.arange(-half, half + 1, dtype=torch.float64, device=device) * STEP
    weights = torch.exp(-0.5 * z.square())
    return z, weights / weights.sum()
