"""Covariances of f as independent parts and the rest.

Only differences of f matter: covariances are equivalent if they give every difference
of two f the same variance.
"""

import math

import torch


def pairwise_split(
    mean: torch.Tensor, covariance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Split covariances, (n, K, K), into a diagonal, (n, K), and a small remainder.

    The diagonal alone gives the right variance of each difference to the class with the
    largest mean. The remainder has a zero diagonal and can be indefinite.
    """
    n = len(mean)
    each = covariance.diagonal(dim1=1, dim2=2)
    between = each[:, :, None] + each[:, None] - 2 * covariance
    rows, pivot = torch.arange(n, device=mean.device), mean.argmax(1)
    variance = between[rows, pivot].clamp(min=0)
    joint = 0.5 * (variance[:, :, None] + variance[:, None] - between)
    odds = (mean - mean.amax(1, keepdim=True)) / (1 + math.pi / 8 * variance).sqrt()
    weight = torch.sigmoid(odds) + 1e-9
    weight[rows, pivot] = 0
    weight = weight[:, :, None] * weight[:, None]
    if mean.shape[1] > 2:
        weight.diagonal(dim1=1, dim2=2).zero_()
    own = (weight * joint).sum((1, 2)) / weight.sum((1, 2))
    own = torch.minimum(own.clamp(min=0), 0.5 * variance.amax(1))
    diagonal = torch.maximum(variance - own[:, None], 0.05 * variance)
    diagonal[rows, pivot] = own
    rest = 0.5 * (diagonal[:, :, None] + diagonal[:, None] - between)
    rest.diagonal(dim1=1, dim2=2).zero_()
    return diagonal, rest
