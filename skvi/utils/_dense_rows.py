"""Rows of dense matrices, shifted when read, and products that BLAS does in half.

Rows pass through a buffer that stays in the cache, from which symmetric and triangular
products of BLAS need half of the multiplications. Elementwise operations use numpy, in
one thread: threads of torch would still wait actively while those of BLAS need the
cores.
"""

from collections.abc import Iterator
from functools import reduce
from typing import Any, TypeGuard

import numpy as np
import torch
from scipy.linalg.blas import dtrmm

from skvi.utils._device import Movable
from skvi.utils._threads import over_threads

__all__ = [
    "ShiftedRows",
    "congruence",
    "dense_gram",
    "dense_moments",
    "is_dense",
    "times_transpose",
]

# Elements in the buffer, and rows below which products of wide matrices are slow.
BUFFER_ELEMENTS, MIN_ROWS = 2**17, 512
# Block size of a triangular matrix: larger blocks waste products with zeros, smaller
# ones are slow.
BLOCK_COLUMNS = 48


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


Dense = torch.Tensor | ShiftedRows


def is_dense(X: Any) -> TypeGuard[Dense]:
    """Whether X is a matrix in the CPU's memory."""
    return isinstance(X, torch.Tensor | ShiftedRows) and X.is_cpu


def dense_gram(X: Dense, h: torch.Tensor, with_ones: bool) -> torch.Tensor:
    """Return ``A' diag(h) A`` in float64 with A = X, or ``[X, 1]``, and h >= 0."""
    root, width = np.sqrt(h.numpy()), X.shape[1] + with_ones

    def gram_of(rows: slice) -> np.ndarray:
        out = np.zeros((width, width))
        for at, buffer in _chunks(X, rows, width):
            buffer *= root[at, None]
            out += np.matmul(buffer.T, buffer)
        return out

    parts = over_threads(gram_of, len(X), len(X) * width**2)
    return torch.from_numpy(reduce(np.add, parts))


def dense_moments(
    X: Dense, mean: torch.Tensor, scale: torch.Tensor, with_ones: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``A @ mean`` and squared norms of the rows of ``A @ scale``, in float64.

    A is X, or ``[X, 1]`` if `with_ones`; the scale is lower triangular.
    """
    center, factor = mean.numpy(), scale.numpy()
    n_rows, width = len(X), len(center)
    found = np.empty((2, n_rows))

    def moments_of(rows: slice) -> None:
        is_all = rows == slice(0, n_rows)
        for at, buffer in _chunks(X, rows, width):
            np.matmul(buffer, center, out=found[0, at])
            times = _times_triangular if is_all else _times_blocks
            root = times(buffer, factor)
            np.einsum("ij,ij->i", root, root, out=found[1, at])

    over_threads(moments_of, n_rows, n_rows * width**2)
    return torch.from_numpy(found[0]), torch.from_numpy(found[1])


def _times_triangular(rows: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Product with a lower triangular matrix, overwriting `rows`."""
    # The transpose has the memory order of BLAS. This blocks other threads.
    return dtrmm(1.0, factor.T, rows.T, overwrite_b=1).T


def _times_blocks(rows: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Product with a lower triangular matrix, block by block of its columns."""
    out = np.empty(rows.shape)
    for start in range(0, len(factor), BLOCK_COLUMNS):
        block = slice(start, start + BLOCK_COLUMNS)
        np.matmul(rows[:, start:], factor[start:, block], out=out[:, block])
    return out


def _chunks(X: Dense, rows: slice, width: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Slices of rows, and a buffer with them and with ones up to that width."""
    n_rows, d = rows.stop - rows.start, X.shape[1]
    step = min(n_rows, max(BUFFER_ELEMENTS // width, MIN_ROWS))
    buffer = np.empty((step, width))
    for start in range(rows.start, rows.stop, step):
        at = slice(start, min(start + step, rows.stop))
        part = buffer[: at.stop - at.start]
        part[:, d:] = 1.0
        if isinstance(X, ShiftedRows):
            X.fill(at, part[:, :d])
        else:
            part[:, :d] = X[at].numpy()
        yield at, part


def congruence(scale: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return ``scale' @ matrix @ scale``: lower triangular scale, symmetric matrix."""
    if not scale.is_cpu or scale.requires_grad or matrix.requires_grad:
        return scale.T @ matrix @ scale
    # Transposes have the order that BLAS takes.
    upper = scale.numpy().T
    left = dtrmm(1.0, upper, matrix.numpy().T)
    return torch.from_numpy(dtrmm(1.0, upper, left, side=1, trans_a=1, overwrite_b=1))


def times_transpose(scale: torch.Tensor) -> torch.Tensor:
    """Return ``scale @ scale'`` for a lower triangular scale in double precision."""
    if not scale.is_cpu or scale.requires_grad:
        return scale @ scale.T
    upper = scale.numpy().T
    return torch.from_numpy(dtrmm(1.0, upper, upper, trans_a=1))
