"""The scaled exponential integral."""

from typing import Any

import torch
from scipy.special import exp1

__all__ = ["log_scaled_e1"]

# Beyond it the asymptotic series is exact to rounding.
FAR, SMALLEST = 500.0, 1e-300


class _LogScaledE1(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
        t = t.double().clamp(min=SMALLEST)
        near = t.clamp(max=FAR)
        e1 = torch.from_numpy(exp1(near.detach().cpu().numpy())).to(t.device)
        value = near.exp() * e1
        # t exp(t) E1(t) = 1 - lack.
        r = 1 / t
        lack = r * (1 - r * (2 - r * (6 - r * (24 - r * (120 - 720 * r)))))
        far = t > FAR
        lack = torch.where(far, lack, 1 - near * value)
        log_value = torch.where(far, torch.log1p(-lack) - t.log(), value.log())
        # The derivative is 1 - 1 / (t exp(t) E1(t)).
        ctx.save_for_backward(torch.where(far, -lack / (1 - lack), 1 - r / value))
        return log_value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


def log_scaled_e1(t: torch.Tensor) -> torch.Tensor:
    """Log of ``exp(t) E1(t)``.

    Parameters
    ----------
    t : Tensor
        Not negative; values below 1e-300 count as 1e-300.

    Returns
    -------
    Tensor of the same shape
        In float64, accurate to rounding for every t; differentiable once.
    """
    return _LogScaledE1.apply(t)
