"""Derivatives of elementwise functions."""

from typing import Any

import torch


def scalar_derivatives(
    function: Any, f: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Differentiate an elementwise function of f, (S, n, 1) -> (S, n), twice."""
    with torch.enable_grad():
        f = f.detach().requires_grad_()
        value = function(f)
        first = _derivative(value, f)
        second = _derivative(first, f)
    return value.detach(), first[..., 0].detach(), second[..., 0].detach()


def _derivative(value: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """Derivative of an elementwise function, zero where it does not depend on f."""
    if not value.requires_grad:
        return torch.zeros_like(f)
    (gradient,) = torch.autograd.grad(
        value.sum(), f, create_graph=True, allow_unused=True
    )
    return torch.zeros_like(f) if gradient is None else gradient
