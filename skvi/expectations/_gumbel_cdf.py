"""Distribution function of a normal plus Gumbel noise, as one smooth polynomial.

For G standard Gumbel and Z standard normal, ``log(-log P(G + s Z <= x))`` is a line
for s = 0 and nearly a parabola for large s. Standardized, and with its range mapped to
[-1, 1], a polynomial of degree 26 whose coefficients are polynomials in the shape
gives probabilities to 5e-7 for every s.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev
from scipy.special import log_ndtr

from skvi.utils._tables import table

_GUMBEL_STD = math.pi / math.sqrt(6)
_DEGREE, _SHAPE_DEGREE = 26, 40


class LogCdf:
    """Polynomials in x for the log distribution functions of G + std Z, std (m, K)."""

    def __init__(self, std: torch.Tensor) -> None:
        total = (std.square() + _GUMBEL_STD**2).sqrt()
        shape = (2 * _GUMBEL_STD / total - 1).clamp_(-1, 1)
        powers = _coefficients(std.device) @ _chebyshev(shape.reshape(-1))
        self.coefficients = powers.reshape(-1, *shape.shape)
        middle, half = _range(_GUMBEL_STD / total)
        self.middle, self.half = np.euler_gamma + total * middle, total * half

    def derivatives(self, x: torch.Tensor, order: int) -> list[torch.Tensor]:
        """Log distribution function at x, (m, K, T), and its first derivatives."""
        scale = 1 / self.half[..., None]
        v = ((x - self.middle[..., None]) * scale).clamp_(-1, 1)
        columns = self.coefficients[..., None].unbind()
        # Horner's rule, for Taylor coefficients at v.
        taylor = [columns[-1].expand_as(v).clone()]
        taylor += [torch.zeros_like(v) for _ in range(order)]
        for column in columns[-2::-1]:
            for j in range(order, 0, -1):
                torch.addcmul(taylor[j - 1], taylor[j], v, out=taylor[j])
            torch.addcmul(column, taylor[0], v, out=taylor[0])
        log_cdf = taylor[0].exp_().neg_()
        # Bell polynomials: derivatives of - exp(g).
        g1 = taylor[1].mul_(scale)
        out = [log_cdf, log_cdf * g1]
        if order > 1:
            g2 = taylor[2].mul_(2 * scale.square())
            out.append(log_cdf * torch.addcmul(g2, g1, g1))
        if order > 2:
            g3 = taylor[3].mul_(6 * scale**3)
            out.append(log_cdf * (g3 + 3 * g1 * g2 + g1**3))
        return out


def _range(shape: Any) -> tuple[Any, Any]:
    """Middle and half of the range: probabilities of about 1e-9 to 1 - 3e-9."""
    low, high = -6.1 + 3.28 * shape**4, (36 + 196 * shape**2) ** 0.5
    return (low + high) / 2, (high - low) / 2


@table(maxsize=4)
def _coefficients(device: torch.device) -> torch.Tensor:
    """Chebyshev coefficients in the shape, (P, Q), of powers of v."""
    nodes = chebyshev.chebpts1(_SHAPE_DEGREE + 1)
    rows = np.array([_fit((node + 1) / 2) for node in nodes])
    found = chebyshev.chebfit(nodes, rows, _SHAPE_DEGREE)
    return torch.from_numpy(found).T.contiguous().to(device)


def _chebyshev(x: torch.Tensor) -> torch.Tensor:
    """Chebyshev polynomials at x, (Q, N), by their recurrence."""
    out = x.new_ones(_SHAPE_DEGREE + 1, len(x))
    out[1], double = x, 2 * x
    for k in range(2, len(out)):
        torch.mul(double, out[k - 1], out=out[k]).sub_(out[k - 2])
    return out


def _fit(shape: float) -> np.ndarray:
    total = _GUMBEL_STD / shape
    s = math.sqrt(max(total**2 - _GUMBEL_STD**2, 0.0))
    middle, half = _range(shape)
    v = chebyshev.chebpts1(150)
    values = _iterated_log(np.euler_gamma + total * (middle + half * v), s)
    # Errors count as far as they move the probability.
    weight = np.exp(values - np.exp(values)) + 1e-4
    return chebyshev.cheb2poly(chebyshev.chebfit(v, values, _DEGREE, w=weight))


def _iterated_log(x: np.ndarray, s: float) -> np.ndarray:
    """``log(-log E exp(-exp(s Z - x)))``: by Z, or for wide s by the Gumbel noise."""
    if s > 3:
        t = np.linspace(-4, 36, 401)
        log_w = -t - np.exp(-t)
        log_f, log_g = (log_ndtr(sign * (x[:, None] - t) / s) for sign in (1, -1))
    else:
        z = np.linspace(-13, 13, 521)
        log_w = -0.5 * z**2
        log_f = -np.exp(np.minimum(s * z - x[:, None], 700))
        log_g = np.log(-np.expm1(log_f))
    log_w -= np.logaddexp.reduce(log_w)
    log_cdf = np.logaddexp.reduce(log_w + log_f, 1)
    # In the right tail from the complement, which keeps its digits.
    other = np.logaddexp.reduce(log_w + log_g, 1)
    tail = np.log(-np.log1p(-np.exp(np.minimum(other, math.log(0.5)))))
    return np.where(other < math.log(0.5), tail, np.log(-np.minimum(log_cdf, -1e-300)))
