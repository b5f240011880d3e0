"""A standard normal score for the log of an unknown scale, or of another number."""

import math
from typing import Any

import torch

from skvi.utils._device import Movable
from skvi.utils._log_space import LOG_2PI

__all__ = ["ScaleScore"]

# Points between two nodes at which the distribution function is known.
N_FINE = 32
# Left and right ends of the gaps between nodes.
BEFORE, AFTER = slice(None, -1), slice(1, None)


class ScaleScore(Movable):
    """Monotone map from a score u, N(0, 1), to a log scale z of given density.

    The log density of z is cubic between nodes (K,), with values and slopes (K,) or (M,
    K) of M densities, and falls like ``exp(-|z|)`` beyond: no posterior of z has a
    heavier tail if the likelihood is bounded.
    """

    def __init__(
        self, log_scales: torch.Tensor, values: torch.Tensor, slopes: torch.Tensor
    ) -> None:
        part = torch.arange(N_FINE, dtype=values.dtype, device=values.device) / N_FINE
        gap = log_scales.diff()[:, None]
        z = (log_scales[:-1, None] + part * gap).flatten()
        value = _cubic(part, gap, values, slopes)[0].flatten(-2)
        self.z = torch.cat([z, log_scales[-1:]]).expand(*values.shape[:-1], -1)
        value = torch.cat([value, values[..., -1:]], -1)
        value = value - values.amax(-1, keepdim=True)
        density = value.exp()
        mass = 0.5 * (density[..., 1:] + density[..., :-1]) * self.z.diff()
        below = torch.cat([density[..., :1], mass], -1).cumsum(-1)
        above = torch.cat([mass, density[..., -1:]], -1).flip(-1).cumsum(-1).flip(-1)
        total = below[..., -1:] + density[..., -1:]
        first = below < 0.5 * total
        self.score = torch.where(
            first,
            torch.special.ndtri(below / total),
            -torch.special.ndtri(above / total),
        )
        # dz / du: the ratio of the densities.
        log_normal = -0.5 * (self.score.square() + LOG_2PI)
        self.slope = torch.exp(log_normal - value + total.log())

    def map(self, score: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log scale z at scores u, and log dz/du, (S,) or (M, S), with gradients."""
        return _Map.apply(score, self)

    def at(
        self, score: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log scale z at scores u, log dz/du, and its derivative, (S,) or (M, S)."""
        size = self.score.shape[-1]
        score = score.expand(*self.score.shape[:-1], -1).contiguous()
        right = torch.searchsorted(self.score, score).clamp(1, size - 1)

        def near(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return values.gather(-1, right - 1), values.gather(-1, right)

        (start, stop), z, slope = near(self.score), near(self.z), near(self.slope)
        part = ((score - start) / (stop - start)).clamp(0, 1)
        value, slope, curvature = _hermite(part, stop - start, *z, *slope)
        log_slope, change = slope.log(), curvature / slope
        for sign, end in ((-1, 0), (1, size - 1)):
            last = self.score[..., end, None]
            out = sign * (score - last) > 0
            far = torch.where(out, sign * score, 0.0)
            # Mills's ratio, without cancellation however far out.
            log_ratio = -torch.log(math.sqrt(math.pi / 2) * _scaled_tail(far))
            log_tail = torch.log(0.5 * _scaled_tail(far)) - 0.5 * far.square()
            log_start = torch.special.log_ndtr(-sign * last)
            beyond = self.z[..., end, None] + sign * (log_start - log_tail)
            value = torch.where(out, beyond, value)
            log_slope = torch.where(out, log_ratio, log_slope)
            change = torch.where(out, sign * (log_ratio.exp() - far), change)
        return value, log_slope, change


class _Map(torch.autograd.Function):
    """A `ScaleScore` with its known derivatives: a tape is three times slower."""

    @staticmethod
    def forward(ctx: Any, score: torch.Tensor, score_map: ScaleScore) -> Any:
        """Values, and what backward needs."""
        z, log_slope, change = score_map.at(score)
        ctx.save_for_backward(log_slope.exp(), change)
        return z, log_slope

    @staticmethod
    def backward(ctx: Any, by_z: torch.Tensor, by_slope: torch.Tensor) -> Any:
        """Chain rule, summed over the M maps of one score."""
        slope, change = ctx.saved_tensors
        total = by_z * slope + by_slope * change
        return total.reshape(-1, total.shape[-1]).sum(0), None


def _scaled_tail(x: torch.Tensor) -> torch.Tensor:
    """``2 exp(x^2 / 2) P(U > x)`` of a standard normal U."""
    return torch.special.erfcx(x / math.sqrt(2))


def _cubic(
    part: torch.Tensor, gap: torch.Tensor, values: torch.Tensor, slopes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hermite's cubic between neighboring nodes, (..., K - 1, N)."""
    values, slopes = values[..., None], slopes[..., None]
    ends = (x[..., some, :] for x in (values, slopes) for some in (BEFORE, AFTER))
    return _hermite(part, gap, *ends)


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
