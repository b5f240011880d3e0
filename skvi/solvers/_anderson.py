"""Acceleration of fixed-point iterations (Anderson 1965; Walker and Ni 2011)."""

from collections.abc import Sequence

import torch

__all__ = ["combined"]


def combined(
    images: Sequence[torch.Tensor], residuals: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Combination of images whose residuals cancel as far as possible, (D,).

    The last image and residual are at the present point. It is the last image itself
    where there is no other, or residuals cannot be told apart.
    """
    image, stacked = images[-1], torch.stack(list(residuals))
    products = stacked @ stacked.T
    # Of the differences of the last residual to the earlier ones.
    lead = products[-1, -1] - products[-1, :-1]
    gram = products[:-1, :-1] - products[-1, -1] + lead + lead[:, None]
    gram.diagonal().mul_(1 + 1e-13)
    factor, info = torch.linalg.cholesky_ex(gram)
    if int(info) or not len(gram):
        return image
    weights = torch.cholesky_solve(lead[:, None], factor)[:, 0].tolist()
    found = (1 - sum(weights)) * image
    for weight, other in zip(weights, images[:-1], strict=True):
        found.add_(other, alpha=weight)
    return found
