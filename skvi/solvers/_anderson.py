"""Acceleration of fixed-point iterations (Anderson 1965; Walker and Ni 2011)."""

import torch

__all__ = ["combined"]


def combined(images: torch.Tensor, residuals: torch.Tensor) -> torch.Tensor:
    """Combination of images whose residuals cancel as far as possible, (D,).

    Of m images and residuals, (m, D) and (m, R), the last one at the present point. The
    last image itself where there is no other, or residuals cannot be told apart.
    """
    image, last = images[-1], residuals[-1]
    apart = last - residuals[:-1]
    gram = apart @ apart.T
    gram.diagonal().mul_(1 + 1e-13)
    factor, info = torch.linalg.cholesky_ex(gram)
    if int(info) or not len(gram):
        return image
    weights = torch.cholesky_solve((apart @ last)[:, None], factor)[:, 0]
    return image + weights @ (images[:-1] - image)
