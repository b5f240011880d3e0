"""A standard normal score for the log of an unknown scale."""

import torch

from skvi.utils._device import Movable
from skvi.utils._log_space import LOG_2PI

__all__ = ["ScaleScore"]

# Points between two nodes at which the distribution function is known.
N_FINE = 32


class ScaleScore(Movable):
    """Monotone map from a score u, N(0, 1), to a log scale z of given density.

    The log density of z is cubic between nodes (K,) and falls like ``exp(-|z|)``
    beyond: no posterior of z has a heavier tail if the likelihood is bounded.
    """

    def __init__(
        self, log_scales: torch.Tensor, values: torch.Tensor, slopes: torch.Tensor
    ) -> None:
        part = torch.arange(N_FINE, dtype=values.dtype, device=values.device) / N_FINE
        gap = log_scales.diff()[:, None]
        z = (log_scales[:-1, None] + part * gap).flatten()
        value = _cubic(part, gap, values, slopes)[0].flatten()
        self.z = torch.cat([z, log_scales[-1:]])
        value = torch.cat([value, values[-1:]]) - values.max()
        density = value.exp()
        mass = 0.5 * (density[1:] + density[:-1]) * self.z.diff()
        below = torch.cat([density[:1], mass]).cumsum(0)
        above = torch.cat([mass, density[-1:]]).flip(0).cumsum(0).flip(0)
        total = below[-1] + density[-1]
        first = below < 0.5 * total
        self.score = torch.where(
            first,
            torch.special.ndtri(below / total),
            -torch.special.ndtri(above / total),
        )
        # dz / du: the ratio of the densities.
        log_normal = -0.5 * (self.score.square() + LOG_2PI)
        self.slope = torch.exp(log_normal - value + total.log())

    def at(
        self, score: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log scale z at scores u, log dz/du, and its derivative in u, (S,) each."""
        last = len(self.score) - 1
        right = torch.searchsorted(self.score, score.contiguous()).clamp(1, last)
        left, gap = right - 1, self.score[right] - self.score[right - 1]
        part = ((score - self.score[left]) / gap).clamp(0, 1)
        ends = self.z[left], self.z[right], self.slope[left], self.slope[right]
        z, slope, curvature = _hermite(part, gap, *ends)
        log_slope, change = slope.log(), curvature / slope
        for sign, end in ((-1, 0), (1, last)):
            out = sign * (score - self.score[end]) > 0
            far = torch.where(out, sign * score, 0.0)
            log_tail = torch.special.log_ndtr(-far)
            log_start = torch.special.log_ndtr(-sign * self.score[end])
            log_ratio = -0.5 * (far.square() + LOG_2PI) - log_tail  # Mills's
            z = torch.where(out, self.z[end] + sign * (log_start - log_tail), z)
            log_slope = torch.where(out, log_ratio, log_slope)
            change = torch.where(out, sign * (log_ratio.exp() - far), change)
        return z, log_slope, change


def _cubic(
    part: torch.Tensor, gap: torch.Tensor, values: torch.Tensor, slopes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hermite's cubic between neighboring nodes, (K - 1, N)."""
    values, slopes = values[:, None], slopes[:, None]
    return _hermite(part, gap, values[:-1], values[1:], slopes[:-1], slopes[1:])


def _hermite(
    t: torch.Tensor,
    gap: torch.Tensor,
    first: torch.Tensor,
    last: torch.Tensor,
    slope: torch.Tensor,
    end_slope: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Value, first and second derivative of the cubic at a part t of a gap."""
    secant = (last - first) / gap
    # Newton's form: slope at the start, and two divided differences.
    second, third = secant - slope, slope + end_slope - 2 * secant
    value = first + gap * t * (slope + t * (second + (t - 1) * third))
    derivative = slope + t * (2 * second + (3 * t - 2) * third)
    return value, derivative, (2 * second + (6 * t - 2) * third) / gap
