"""Derivatives of elementwise and row-wise functions."""

from typing import Any

import torch


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
