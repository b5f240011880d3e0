"""Smooth functions: derivatives, expectations by nodes, interpolation."""

from collections.abc import Callable
from typing import Any

import torch

from skvi.expectations._rules import node_groups, normal_rule
from skvi.utils._device import CPU

Expectations = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

# Grid points of a table evaluated at once.
CHUNK = 512


def row_derivatives(
    function: Any, f: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Differentiate a row-wise function of f, (S, n, K) -> (S, n), twice.

    The derivatives have shapes (S, n) for K = 1, else (S, n, K) and (S, n, K, K).
    """
    if f.shape[-1] == 1:
        return scalar_derivatives(function, f)
    return vector_derivatives(function, f)


def scalar_derivatives(
    function: Any, f: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Differentiate an elementwise function of f, (S, n, 1) -> (S, n), twice."""
    with torch.inference_mode(False), torch.enable_grad():
        f = f.detach().clone().requires_grad_()
        value = function(f)
        first = _derivative(value, f)
        second = _derivative(first, f)
    return value.detach(), first[..., 0].detach(), second[..., 0].detach()


def vector_derivatives(
    function: Any, f: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Value, gradient and Hessian of a row-wise function, (S, n, K) -> (S, n)."""
    with torch.inference_mode(False), torch.enable_grad():
        f = f.detach().clone().requires_grad_()
        value = function(f)
        first = _derivative(value, f)
        columns = [_derivative(first[..., k], f) for k in range(f.shape[-1])]
    return value.detach(), first.detach(), torch.stack(columns, -1).detach()


def _derivative(value: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """Derivative of a sum of separate values, zero if it does not depend on f."""
    if not value.requires_grad:
        return torch.zeros_like(f)
    (gradient,) = torch.autograd.grad(
        value.sum(), f, create_graph=True, allow_unused=True
    )
    return torch.zeros_like(f) if gradient is None else gradient


def expect_derivatives(
    function: Any,
    mean: torch.Tensor,
    std_or_cov: torch.Tensor,
    y: torch.Tensor,
    length_scale: float = 1.0,
    refine: int = 1,
) -> Expectations:
    """Expected value, gradient and Hessian in f of ``function(f, y)``.

    The function maps f, (S, n, K), and y, (n,), to (S, n); its slope changes over
    `_length_scale`. For K > 1 it must not change if a constant is added to all columns.
    """
    if mean.ndim == 1:
        width = float(std_or_cov.max()) / length_scale
        nodes, weights = normal_rule(width, refine, std_or_cov.device)
        f = torch.addcmul(mean, nodes[:, None], std_or_cov)[..., None]
        parts = scalar_derivatives(lambda g: function(g, y), f)
        return weights @ parts[0], weights @ parts[1], weights @ parts[2]
    value, first = torch.empty_like(mean[:, 0]), torch.empty_like(mean)
    second = torch.empty_like(std_or_cov)
    for rows, factor, nodes, weights in node_groups(std_or_cov, refine):
        f = (mean[rows, :, None] + factor @ nodes).permute(2, 0, 1)
        found = vector_derivatives(lambda g, i=rows: function(g, y[i]), f)
        out = [torch.tensordot(weights, part, 1) for part in found]
        value[rows], first[rows], second[rows] = out
    return value, first, second


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
