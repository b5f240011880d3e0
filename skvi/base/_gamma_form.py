"""Gamma distributions: the common representation of distributions of precisions."""

from typing import NamedTuple

import torch

__all__ = ["GammaForm"]


class GammaForm(NamedTuple):
    """Independent Gamma distributions of positive parameters, (P,)."""

    shape: torch.Tensor
    rate: torch.Tensor

    @property
    def mean(self) -> torch.Tensor:
        """Means, (P,)."""
        return self.shape / self.rate
