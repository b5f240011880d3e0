"""Features minus an offset, which is subtracted when they are read."""

from typing import Any

import torch

from skvi.utils._device import Movable


class ShiftedRows(Movable):
    """Dense rows minus an offset, without a copy of them.

    It behaves like a two-dimensional tensor for ``len``, ``shape`` and selection of
    rows, which gives a tensor in double precision.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        Not changed; it can be a memory map.
    offset : Tensor of shape (d,)
    """

    def __init__(self, X: torch.Tensor, offset: torch.Tensor) -> None:
        self.X, self.offset = X, offset.double()
        self.shape, self.dtype = X.shape, X.dtype

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.X)

    def __getitem__(self, rows: Any) -> torch.Tensor:
        """Select rows, by a slice or a tensor of indices."""
        return self.X[rows].double() - self.offset

    def to(self, target: Any) -> Any:
        """All rows in a dtype, as a tensor; or the same rows on a device."""
        if isinstance(target, torch.dtype):
            return self[:].to(target)
        return super().to(target)
