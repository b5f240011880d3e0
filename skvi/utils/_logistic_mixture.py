"""Expectations of logistic functions as sums over a mixture of normals.

A standard logistic variable is normal given its scale, which is twice a variable with
Kolmogorov's distribution (Andrews and Mallows 1974, Stefanski 1991). A Gauss rule for
the logarithm of this scale makes the softplus and its derivatives sums of a few normal
integrals, whose expectations under another normal are of the same form.
"""

import math

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from scipy.stats import kstwobign

from skvi.utils._arrays import exp_, log_
from skvi.utils._device import CPU
from skvi.utils._tables import table

__all__ = ["log_mixture_sigmoid", "logistic_scales", "mixture_softplus"]

# Errors of softplus, of its first and of its second derivative are at most 4e-8, 9e-8
# and 2e-7 with this number of scales, and 3e-9, 7e-9 and 2e-8 with two more.
N_SCALES = 8

Moments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@table(maxsize=8)
def logistic_scales(
    n_scales: int, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared scales of centered normals, and their weights, (n_scales,) each."""
    x = np.linspace(math.log(0.15), math.log(6.0), 600)
    mass = kstwobign.pdf(np.exp(x)) * np.exp(x)
    mass /= mass.sum()
    # Lanczos: the Jacobi matrix of the polynomials that are orthogonal under this mass.
    diagonal, beside = np.empty(n_scales), np.empty(n_scales)
    last, current, edge = np.zeros_like(x), np.ones_like(x), 0.0
    for i in range(n_scales):
        diagonal[i] = mass @ (x * current**2)
        following = (x - diagonal[i]) * current - edge * last
        edge = beside[i] = math.sqrt(mass @ following**2)
        last, current = current, following / edge
    nodes, vectors = eigh_tridiagonal(diagonal, beside[:-1])
    squares, weights = 4 * np.exp(2 * nodes), vectors[0] ** 2
    return torch.from_numpy(squares).to(device), torch.from_numpy(weights).to(device)


def mixture_softplus(
    mean: torch.Tensor, variance: torch.Tensor, n_scales: int = N_SCALES
) -> Moments:
    """Expected softplus, sigmoid and sigmoid' of f ~ N(mean, variance >= 0)."""
    squares, weights = logistic_scales(n_scales, mean.device)
    shape = -1, *[1] * max(mean.ndim, variance.ndim)
    weights = weights.reshape(shape)
    std = (squares.reshape(shape) + variance).sqrt_()
    u = mean / std
    cdf = torch.erf(u * math.sqrt(0.5)).add_(1)
    pdf = exp_(u.square_().mul_(-0.5))
    first = (cdf * (0.5 * weights)).sum(0)
    weights = weights / math.sqrt(2 * math.pi)
    value = torch.addcmul((pdf * (weights * std)).sum(0), mean, first)
    return value, first, (pdf * (weights / std)).sum(0)


def log_mixture_sigmoid(
    mean: torch.Tensor, variance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logs of E sigmoid(f) and E sigmoid(-f), f ~ N(mean, variance), to 1e-6.

    For mean < -variance / 2: ``E sigmoid(f) = exp(mean + variance / 2) E sigmoid(-g)``,
    g ~ N(mean + variance, variance). Values below 1e-300 are wrong by up to 0.5 nats.
    """
    squares, weights = logistic_scales(N_SCALES, mean.device)
    distance = mean.abs()
    is_tail = distance > variance / 2
    u = torch.where(is_tail, variance - distance, distance)
    small = torch.zeros_like(u)
    for square, weight in zip(squares, weights, strict=True):
        small += weight / 2 * torch.erfc(u * (2 * (square + variance)).rsqrt())
    is_zero = small < 1e-300
    log_(small)
    if bool(is_zero.any()):
        std = variance.sqrt().expand_as(u)[is_zero]
        small[is_zero] = torch.special.log_ndtr(-u[is_zero] / std)
    small += torch.where(is_tail, variance / 2 - distance, 0.0)
    large = torch.log1p(-torch.exp(small))
    is_positive = mean > 0
    return (
        torch.where(is_positive, large, small),
        torch.where(is_positive, small, large),
    )
