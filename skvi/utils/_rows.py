"""Passes over rows of sparse and dense features, in buffers.

Rows pass through a buffer that stays in the cache, from which symmetric and triangular
products of BLAS need half of the multiplications. Elementwise operations use numpy, in
one thread: threads of torch would still wait actively while those of BLAS need the
cores.
"""

import math
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from scipy import sparse
from scipy.linalg.blas import dtrmm
from torch.autograd.function import once_differentiable

from skvi.utils._interrupts import over_threads
from skvi.utils._tensors import Movable
from skvi.utils._validation import as_tensor

# Number of weightings above which products of all pairs of features pay off.
MANY_WEIGHTS = 20


class SparseRows(Movable):
    """Rows of a sparse matrix, never made dense: scipy's CSR inside, tensors outside.

    Products with dense matrices are differentiable. `shift` is added to every row.
    """

    def __init__(self, matrix: Any, shift: np.ndarray | None = None) -> None:
        matrix = matrix.tocsr()
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        self.matrix, self.shift, self.shape = matrix, shift, matrix.shape

    @classmethod
    def standardized(cls, matrix: Any, origin: np.ndarray, scale: Any) -> "SparseRows":
        """Rows of ``(matrix - origin) / scale``, with the zeros of the matrix.

        A column without zeros is changed itself: two large products would cancel.
        """
        found = cls(matrix)
        rows, columns = found.matrix, found.matrix.indices
        n_stored = np.bincount(columns, minlength=rows.shape[1])
        own = np.where(n_stored == rows.shape[0], origin, 0.0)
        if own.any() or np.any(scale != 1.0):
            scale = np.broadcast_to(np.asarray(scale, np.float64), origin.shape)
            values = (rows.data.astype(np.float64) - own[columns]) / scale[columns]
            found.matrix = _with_values(rows, values)
        found.shift = (own - origin) / scale
        return found

    def _like(self, matrix: Any, shift: np.ndarray | None) -> "SparseRows":
        """Wrap a matrix that is in canonical form."""
        out = object.__new__(type(self))
        out.matrix, out.shift, out.shape = matrix, shift, matrix.shape
        return out

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: Any) -> "SparseRows":
        """Select rows, by a slice or a tensor of indices."""
        if isinstance(rows, slice) and rows.indices(len(self)) == (0, len(self), 1):
            return self
        rows = rows if isinstance(rows, slice) else np.asarray(rows)
        return self._like(self.matrix[rows], self.shift)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return torch.from_numpy(self.matrix.data[:0]).dtype

    @property
    def width(self) -> int:
        """Average number of stored values per row, at least 1."""
        return max(1, math.ceil(self.matrix.nnz / max(len(self), 1)))

    @property
    def T(self) -> "_Transposed":
        """The transpose, which supports products only."""
        return _Transposed(self)

    def to(self, kind: torch.dtype | torch.device) -> "SparseRows":
        """Values in another dtype, or on the CPU, where they are."""
        if isinstance(kind, torch.device):
            if kind.type == "cpu":
                return self
            raise ValueError(
                f"Sparse features stay on the CPU; got device='{kind}'. Use "
                "device='cpu' or device='auto', or give a dense X."
            )
        name = str(kind).removeprefix("torch.")
        if self.matrix.dtype == name:
            return self
        return self._like(self.matrix.astype(name), self.shift)

    def square(self) -> "SparseRows":
        """Elementwise square."""
        if self.shift is None:
            return self._like(self.matrix.power(2), None)
        values = self.matrix.data * (
            self.matrix.data + 2 * self.shift[self.matrix.indices]
        )
        return self._like(_with_values(self.matrix, values), self.shift**2)

    def dense(self) -> torch.Tensor:
        """Return a tensor, (n, d): for few rows."""
        values = self.matrix.toarray()
        return torch.from_numpy(values if self.shift is None else values + self.shift)

    def __matmul__(self, dense: torch.Tensor) -> torch.Tensor:
        """Multiply by a dense vector or matrix, differentiable in it."""
        return _Product.apply(dense, self.times, self.t_times)

    def times(self, right: np.ndarray) -> np.ndarray:
        """Return ``X @ right``."""
        out = self.matrix @ right
        return out if self.shift is None else out + self._shift_as(right) @ right

    def t_times(self, left: np.ndarray) -> np.ndarray:
        """Return ``X.T @ left``."""
        out = self.matrix.T @ left
        if self.shift is None:
            return out
        return out + np.multiply.outer(self._shift_as(left), left.sum(0))

    def _shift_as(self, other: np.ndarray) -> np.ndarray:
        return np.asarray(self.shift).astype(other.dtype, copy=False)

    def gram(self, weights: torch.Tensor) -> torch.Tensor:
        """Return ``X' diag(weights) X``, dense, (d, d)."""
        h = weights.numpy()
        scaled = sparse.diags_array(h) @ self.matrix
        out = np.ascontiguousarray((self.matrix.T @ scaled).toarray())
        if self.shift is not None:
            edge = np.multiply.outer(self.matrix.T @ h, self.shift)
            out += edge + edge.T + h.sum() * np.multiply.outer(self.shift, self.shift)
        return torch.from_numpy(out)


class _Transposed:
    """The transpose of `SparseRows`, for products."""

    def __init__(self, rows: SparseRows) -> None:
        self.rows = rows

    def __matmul__(self, dense: torch.Tensor) -> torch.Tensor:
        return _Product.apply(dense, self.rows.t_times, self.rows.times)


def _with_values(matrix: Any, values: np.ndarray) -> Any:
    """Matrix with other values in the same places, which it shares."""
    return type(matrix)((values, matrix.indices, matrix.indptr), matrix.shape)


Features = torch.Tensor | SparseRows
Times = Callable[[np.ndarray], np.ndarray]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: torch.Tensor, times: Times, back: Times) -> Any:
        ctx.back = back
        return torch.from_numpy(times(dense.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        return torch.from_numpy(ctx.back(gradient.numpy())), None, None


def as_rows(X: Any) -> Features:
    """Return a tensor, or `SparseRows` for a sparse matrix."""
    return SparseRows(X) if sparse.issparse(X) else as_tensor(X)


def row_width(X: Features) -> int:
    """Return the number of stored elements per row: all of them for a tensor."""
    return X.width if isinstance(X, SparseRows) else math.prod(X.shape[1:])


def affine(
    X: Features, matrix: torch.Tensor, shift: torch.Tensor | None
) -> torch.Tensor:
    """Return ``X @ matrix + shift``."""
    if shift is None:
        return X @ matrix
    if isinstance(X, SparseRows):
        return (X @ matrix) + shift
    return torch.addmm(shift, X, matrix)


def times_rows(
    matrix: torch.Tensor, X: Features, shift: torch.Tensor | None = None
) -> torch.Tensor:
    """Return ``matrix @ X.T + shift``."""
    if shift is not None and not isinstance(X, SparseRows):
        return torch.addmm(shift, matrix, X.T)
    product = (X @ matrix.T).T if isinstance(X, SparseRows) else matrix @ X.T
    return product if shift is None else product + shift


def rows_times(rows: torch.Tensor, X: Features) -> torch.Tensor:
    """Return ``rows @ X``."""
    return (X.T @ rows.T).T if isinstance(X, SparseRows) else rows @ X


def weighted_gram(X: Features, h: torch.Tensor, with_ones: bool) -> torch.Tensor:
    """Return ``A' diag(h) A`` with A = X, or ``[X, 1]`` without building it."""
    if isinstance(X, SparseRows):
        gram, edge = X.gram(h), X.T @ h
    else:
        weighted = X * h[:, None]
        gram, edge = X.T @ weighted, weighted.sum(0)
    if not with_ones:
        return gram
    last = torch.cat([edge, h.sum()[None]])
    return torch.cat([torch.cat([gram, edge[None]]), last[:, None]], 1)


def weighted_grams(X: Features, h: torch.Tensor, with_ones: bool) -> torch.Tensor:
    """`weighted_gram` for every row of h, (m, n): of shape (D, m, D)."""
    if isinstance(X, SparseRows) or len(h) < MANY_WEIGHTS:
        return torch.stack([weighted_gram(X, row, with_ones) for row in h], 1)
    columns = torch.nn.functional.pad(X.T, (0, 0, 0, int(with_ones)), value=1.0)
    out = h.new_empty(len(columns), len(h), len(columns))
    # Products of two features do not depend on the weights.
    for i, column in enumerate(columns):
        torch.mm(h, (columns[: i + 1] * column).T, out=out[i, :, : i + 1])
        out[:i, :, i] = out[i, :, :i].T
    return out


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


def times_transpose(scale: torch.Tensor) -> torch.Tensor:
    """Return ``scale @ scale'`` for a lower triangular scale in double precision."""
    if not scale.is_cpu or scale.requires_grad:
        return scale @ scale.T
    upper = scale.numpy().T
    return torch.from_numpy(dtrmm(1.0, upper, upper, trans_a=1))


# A fit starts from one row in so many, at least so many rows, at most 128 MiB.
ONE_IN, LEAST_ROWS, MOST_ELEMENTS = 100, 20_000, 2**24


def rows_to_start(n_rows: int, width: int) -> np.ndarray:
    """Numbers of the rows from which a fit starts: few that are typical, or all."""
    most = max(LEAST_ROWS, n_rows // ONE_IN)
    return spread(n_rows, min(n_rows, most, MOST_ELEMENTS // max(width, 1)))


# Number of evenly spaced rows that are looked at.
SOME_ROWS = 2000


def spaced_rows(n_rows: int, most: int = SOME_ROWS) -> np.ndarray:
    """Indices of at most `most` rows, evenly spaced."""
    return np.unique(np.linspace(0, n_rows - 1, min(n_rows, most)).astype(int))


def spread(n_rows: int, count: int) -> np.ndarray:
    """Numbers of some rows, at random places between those of others, ascending."""
    if count >= n_rows:
        return np.arange(n_rows)
    places = np.arange(count) + np.random.default_rng(0).random(count)
    return np.ceil(places / count * n_rows).astype(int).clip(1) - 1


class RowBuffers(NamedTuple):
    """Buffers of a pass, for M members with S draws of n rows each."""

    f: torch.Tensor  # (M, S, n, K)
    slope: torch.Tensor  # as f; receives derivatives of the weighted sum over rows
    hyper: torch.Tensor  # (M, H), of the likelihood
    for_hyper: torch.Tensor  # (M, H); receives the derivatives in them


class RowPass:
    """The weighted sum of a loss over rows and draws, with its derivatives.

    Buffers stay the same, so that views of them are made only once.
    """

    def __init__(self) -> None:
        self._found: list[tuple[torch.Tensor, ...]] = []

    def __call__(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> None:
        """Process some rows with y and weights (M, 1, n), in the dtype of f.

        The count (M,) is the sum of the weights over rows and draws.
        """
        self._found.append(self._visit(y, weight, count))

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Fill the buffers; return what `_values` needs for the step, (M,) each."""
        raise NotImplementedError

    def values(self, hyper: torch.Tensor) -> torch.Tensor:
        """Sums in nats, (T, M), of T passes since the last call, hyper (T, M, H)."""
        columns = [torch.stack(column) for column in zip(*self._found, strict=True)]
        self._found = []
        return self._values(columns, hyper)

    def _values(self, found: list[torch.Tensor], hyper: torch.Tensor) -> torch.Tensor:
        return found[0]
