"""The scaled exponential integral."""

from typing import Any

import torch
from scipy.special import exp1

__all__ = ["log_scaled_e1", "log_scaled_e1_slope"]

# Beyond it the asymptotic series is exact to rounding.
FAR, SMALLEST = 500.0, 1e-300


def _evaluate(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and derivative 1 - 1 / (t exp(t) E1(t))."""
    t = t.detach().double().clamp(min=SMALLEST)
    near = t.clamp(max=FAR)
    value = near.exp() * torch.from_numpy(exp1(near.cpu().numpy())).to(t.device)
    # t exp(t) E1(t) = 1 - lack.
    r, far = 1 / t, t > FAR
    lack = r * (1 - r * (2 - r * (6 - r * (24 - r * (120 - 720 * r)))))
    slope = torch.where(far, -lack / (1 - lack), 1 - r / value)
    return torch.where(far, torch.log1p(-lack) - t.log(), value.log()), slope


class _LogScaledE1(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
        value, slope = _evaluate(t)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


def log_scaled_e1(t: torch.Tensor) -> torch.Tensor:
    """Log of ``exp(t) E1(t)`` for t >= 0, in float64; differentiable once."""
    return _LogScaledE1.apply(t)


def log_scaled_e1_slope(t: torch.Tensor) -> torch.Tensor:
    """Return the derivative of `log_scaled_e1`, a tensor of the same shape."""
    return _evaluate(t)[1]
