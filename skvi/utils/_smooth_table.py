"""Smooth functions of one variable, tabulated with their derivatives."""

from collections.abc import Callable

import torch

from skvi.utils._derivatives import scalar_derivatives
from skvi.utils._device import CPU

__all__ = ["SmoothTable"]

# Grid points evaluated at once.
CHUNK = 512


class SmoothTable:
    """Quintic Hermite interpolation of an elementwise function, linear outside.

    The error is ``step^6 / 46080`` times the sixth derivative.
    """

    def __init__(
        self,
        function: Callable[[torch.Tensor], torch.Tensor],
        low: float,
        high: float,
        step: float,
        device: torch.device = CPU,
    ) -> None:
        n_steps = max(1, round((high - low) / step))
        grid = torch.linspace(
            low, high, n_steps + 1, dtype=torch.float64, device=device
        )
        self.low, self.step = low, (high - low) / n_steps
        parts = [
            torch.stack(scalar_derivatives(lambda t: function(t[..., 0]), x[:, None]))
            for x in grid.split(CHUNK)
        ]
        value, first, second = torch.cat(parts, 1)
        first, second = first * self.step, second * self.step**2
        a, b, c = value[:-1], first[:-1], second[:-1] / 2
        # Remainders at the right end for the three highest powers.
        p = value[1:] - a - b - c
        q = first[1:] - b - 2 * c
        r = second[1:] - 2 * c
        cubic = 10 * p - 4 * q + r / 2
        quartic = -15 * p + 7 * q - r
        quintic = 6 * p - 3 * q + r / 2
        self.coefs = torch.stack([quintic, quartic, cubic, c, b, a])
        self.n_steps = n_steps
        self.slopes = first[0] / self.step, first[-1] / self.step

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Evaluate, elementwise and differentiably."""
        position = ((x - self.low) / self.step).to(torch.float64)
        inside = position.clamp(0, self.n_steps)
        index = inside.detach().to(torch.int64).clamp(max=self.n_steps - 1)
        t = inside - index
        out = self.coefs[0][index]
        for coef in self.coefs[1:]:
            out = out * t + coef[index]
        outside = (position - inside) * self.step
        slope = torch.where(outside < 0, *self.slopes)
        return (out + slope * outside).to(x.dtype)
