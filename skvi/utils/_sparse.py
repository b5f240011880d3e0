"""Sparse feature matrices with the few operations that linear models need."""

import math
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch.autograd.function import once_differentiable

from skvi.utils._arrays import as_tensor
from skvi.utils._device import Movable

# Number of weightings above which products of all pairs of features pay off.
MANY_WEIGHTS = 20


class SparseRows(Movable):
    """Rows of a sparse matrix: scipy's CSR inside, dense tensors outside.

    It behaves like a two-dimensional tensor for ``len``, ``shape``, selection of rows,
    ``to``, ``square``, ``T`` and products with dense matrices, which are differentiable
    in the dense factor. It is never converted to a dense matrix.

    Parameters
    ----------
    matrix : sparse matrix or array of shape (n, d)
        Not changed; its values are shared if possible.
    """

    def __init__(self, matrix: Any) -> None:
        matrix = matrix.tocsr()
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        self.matrix, self.shape = matrix, matrix.shape

    @classmethod
    def _of(cls, matrix: Any) -> "SparseRows":
        """Wrap a matrix that is in canonical form."""
        out = object.__new__(cls)
        out.matrix, out.shape = matrix, matrix.shape
        return out

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: Any) -> "SparseRows":
        """Select rows, by a slice or a tensor of indices."""
        if isinstance(rows, slice) and rows.indices(len(self)) == (0, len(self), 1):
            return self
        return self._of(
            self.matrix[rows if isinstance(rows, slice) else np.asarray(rows)]
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return torch.from_numpy(self.matrix.data[:0]).dtype

    @property
    def width(self) -> int:
        """Average number of stored values per row, at least 1."""
        return max(1, math.ceil(self.matrix.nnz / max(len(self), 1)))

    @property
    def T(self) -> "SparseRows":
        """The transpose, which supports products only."""
        return self._of(self.matrix.T)

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
        return self._of(self.matrix.astype(name))

    def square(self) -> "SparseRows":
        """Elementwise square."""
        return self._of(self.matrix.power(2))

    def __matmul__(self, dense: torch.Tensor) -> torch.Tensor:
        """Multiply by a dense vector or matrix, differentiable in it."""
        return _Product.apply(dense, self.matrix)

    def gram(self, weights: torch.Tensor) -> torch.Tensor:
        """Return ``X' diag(weights) X``, dense, (d, d)."""
        scaled = sparse.diags_array(weights.numpy()) @ self.matrix
        return torch.from_numpy(
            np.ascontiguousarray((self.matrix.T @ scaled).toarray())
        )


Features = torch.Tensor | SparseRows


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: torch.Tensor, matrix: Any) -> torch.Tensor:
        ctx.matrix = matrix
        return torch.from_numpy(matrix @ dense.detach().numpy())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        return torch.from_numpy(ctx.matrix.T @ gradient.numpy()), None


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
