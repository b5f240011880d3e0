"""Expectations of a loss and its derivatives under a normal f of any dimension."""

from typing import Any

import torch

from skvi.utils._derivatives import scalar_derivatives, vector_derivatives
from skvi.utils._normal_points import node_groups
from skvi.utils._quadrature import normal_rule

Expectations = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


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
    `length_scale`. For K > 1 it must not change if a constant is added to all columns.
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
