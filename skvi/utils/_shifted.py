"""Standardized features, which are computed when they are read."""

from typing import Any

import numpy as np
import torch

from skvi.utils._device import Movable


class ShiftedRows(Movable):
    """Dense rows minus an offset and divided by a scale, without a copy of them.

    Selecting rows gives a tensor in float64. X can be a memory map.
    """

    def __init__(
        self, X: torch.Tensor, offset: torch.Tensor, scale: torch.Tensor | None = None
    ) -> None:
        self.X, self.offset = X, offset.double()
        self.scale = torch.ones_like(self.offset) if scale is None else scale.double()
        self.shape, self.dtype = X.shape, X.dtype

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.X)

    @property
    def is_cpu(self) -> bool:
        """Whether the rows are in the CPU's memory."""
        return self.X.is_cpu

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.X.device

    def __getitem__(self, rows: Any) -> torch.Tensor:
        """Select rows, by a slice or a tensor of indices."""
        return (self.X[rows].double() - self.offset) / self.scale

    def fill(self, rows: slice, out: np.ndarray) -> None:
        """Write some rows into an array in double precision."""
        np.subtract(self.X[rows].numpy(), self.offset.numpy(), out=out)
        out /= self.scale.numpy()

    def to(self, target: Any) -> Any:
        """All rows in a dtype, as a tensor; or the same rows on a device."""
        if isinstance(target, torch.dtype):
            return self[:].to(target)
        return super().to(target)
