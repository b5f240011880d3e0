"""Gamma distributions: the common representation of distributions of precisions."""

from typing import NamedTuple

import torch

__all__ = ["GammaForm"]


class GammaForm(NamedTuple):
    """Independent Gamma distributions of positive parameters.

    Parameters
    ----------
    shape, rate : Tensor of shape (P,)

    Examples
    --------
    >>> import torch
    >>> from skvi.base._gamma_form import GammaForm
    >>> GammaForm(torch.tensor([3.0]), torch.tensor([6.0])).mean
    tensor([0.5000])
    """

    shape: torch.Tensor
    rate: torch.Tensor

    @property
    def mean(self) -> torch.Tensor:
        """Means, (P,)."""
        return self.shape / self.rate
