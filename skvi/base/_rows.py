"""Rows of data, independent of how they are stored."""

import zlib
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from skvi.utils._rows import (
    Features,
    SparseRows,
    as_rows,
    is_dense,
    row_width,
    rows_to_start,
)
from skvi.utils._tensors import Movable
from skvi.utils._validation import CACHE_ELEMENTS, as_tensor, row_chunks

# Elements of a copy of features in double precision.
CHUNK_ELEMENTS = 2**21
# Rows of a chunk for which more is computed than fits: calls have a cost of their own.
FEWEST_ROWS = 64
# Rows of X that a fingerprint reads.
SAMPLED_ROWS = 32


@dataclass(frozen=True, eq=False)
class Rows(Movable):
    """Features (n, ...), targets, weights and offsets (n,) of n rows.

    X is kept as it is given: it is never converted from float32, or read from a memory
    map, as a whole. Code that needs every row iterates over `chunks`. Without weights
    each is 1; offsets are added to f.
    """

    X: Features
    y: torch.Tensor
    weight: torch.Tensor | None = None
    offset: torch.Tensor | None = None

    @classmethod
    def of(cls, X: Any, y: Any, weight: Any = None, offset: Any = None) -> Self:
        """Rows of numpy arrays, or of a sparse matrix; memory is shared if possible."""
        optional = [None if v is None else as_tensor(v) for v in (weight, offset)]
        return cls(as_rows(X), as_tensor(y), *optional)

    def __len__(self) -> int:
        """Return the number of rows, n."""
        return self.y.shape[0]

    @property
    def width(self) -> int:
        """Number of stored elements per row; on average if X is sparse."""
        return row_width(self.X)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the features."""
        return self.X.dtype

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.y.device

    @property
    def start(self) -> Self:
        """Rows that a fit starts from, with the weight of all of them."""
        index = rows_to_start(len(self), self.X.shape[-1])
        n_first = len(index)
        if not is_dense(self.X) or n_first in (len(self), 0):
            return self
        part = self.take(torch.from_numpy(index))
        weight = torch.ones_like(part.y) if part.weight is None else part.weight
        weight = weight * (self.total_weight / float(weight.sum()))
        return replace(part, weight=weight)

    @property
    def total_weight(self) -> float:
        """Rows, or the sum of their weights."""
        return float(len(self) if self.weight is None else self.weight.sum())

    def take(self, index: slice | torch.Tensor | None) -> Self:
        """Some of the rows, all for None; a slice shares memory."""
        is_slice = isinstance(index, slice)
        if index is None or (is_slice and index == slice(0, self.y.shape[0])):
            return self
        beside = (self.weight, self.offset)
        taken = [None if v is None else _take(v, index) for v in beside]
        return type(self)(_take(self.X, index), _take(self.y, index), *taken)

    def chunks(self, width: int = 1) -> list[slice]:
        """Cut the rows into slices; `width` numbers are computed for each row.

        Those of a chunk fit into the cache, if that takes 64 rows, and a copy of its
        features in double precision takes at most 16 MiB.
        """
        width = min(width, CACHE_ELEMENTS // FEWEST_ROWS)
        per_row = max(width, self.width * CACHE_ELEMENTS // CHUNK_ELEMENTS)
        return row_chunks(len(self), per_row, CACHE_ELEMENTS)

    def fingerprint(self) -> tuple[int, ...]:
        """Checksums that distinguish data, cheaply.

        The number of rows, then sums of the features of 32 of them, of targets, weights
        and offsets: the same for a dense and a sparse matrix of the same values, in
        single and double precision.
        """
        sampled = np.linspace(0, len(self) - 1, SAMPLED_ROWS).astype(int)
        X = self.X[torch.from_numpy(sampled)].to(torch.float64)
        columns = (self.y, self.weight, self.offset)
        parts = [*_stored(X), *(v.cpu().numpy() for v in columns if v is not None)]
        sums = (zlib.crc32(np.ascontiguousarray(part).data) for part in parts)
        return len(self), *sums


def deal(n_rows: int, n_batches: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Partition rows at random, on the device of the generator.

    Sizes differ by at most one: a small last batch would be very noisy.
    """
    order = torch.randperm(n_rows, generator=generator, device=generator.device)
    return list(order.tensor_split(n_batches))


def _take(values: Any, index: slice | torch.Tensor) -> Any:
    """Some rows, by the fastest available method."""
    if isinstance(values, torch.Tensor) and not isinstance(index, slice):
        if index.dtype == torch.int64:
            return values.index_select(0, index)
    return values[index]


def _stored(X: Features) -> tuple[np.ndarray, ...]:
    """Nonzero values, their columns, and their number per row."""
    if isinstance(X, SparseRows):
        sample = X.matrix.copy()
        sample.eliminate_zeros()
        columns = sample.indices.astype(np.int64)
        return sample.data, columns, np.diff(sample.indptr).astype(np.int64)
    dense = X.reshape(len(X), -1).cpu().numpy()
    filled = dense != 0
    return dense[filled], np.nonzero(filled)[1], filled.sum(1)
