"""Sums over rows with their derivatives: what losses and networks exchange."""

from typing import NamedTuple

import torch

__all__ = ["RowSums"]


class RowSums(NamedTuple):
    """Weighted sums over draws and rows for M members, beside their slopes in f.

    Parameters
    ----------
    value : Tensor of shape (M,)
    hyper : Tensor of shape (M, H)
        Derivative in the hyperparameters.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import BernoulliLikelihood
    >>> f, y = torch.zeros(1, 1, 2, 1), torch.tensor([[[0.0, 1.0]]])
    >>> hyper, weight, slope = torch.zeros(1, 0), torch.ones(1, 1, 2), f.clone()
    >>> BernoulliLikelihood().log_loss_sums(hyper, f, y, weight, out=slope).value
    tensor([1.3863])
    >>> slope[0, 0, :, 0]
    tensor([ 0.5000, -0.5000])
    """

    value: torch.Tensor
    hyper: torch.Tensor
