"""Products over the rows of a dense matrix in the CPU's memory, for one column of f.

Rows pass through a buffer that stays in the cache, from which symmetric and triangular
products of BLAS need half of the multiplications. Elementwise work is numpy's, in one
thread: torch's threads would still wait actively while those of BLAS want the cores.
"""

from collections.abc import Iterator
from typing import Any, TypeGuard

import numpy as np
import torch
from scipy.linalg.blas import dtrmm

__all__ = ["dense_gram", "dense_moments", "is_dense"]

# Numbers in the buffer, and rows below which products of wide matrices are slow.
BUFFER_ELEMENTS, MIN_ROWS = 2**17, 512


def is_dense(X: Any) -> TypeGuard[torch.Tensor]:
    """Whether X is a matrix in the CPU's memory."""
    return isinstance(X, torch.Tensor) and X.is_cpu


def dense_gram(X: torch.Tensor, h: torch.Tensor, with_ones: bool) -> torch.Tensor:
    """Return ``A' diag(h) A`` with A = X, or ``[X, 1]``.

    Parameters
    ----------
    X : Tensor of shape (n, d)
    h : Tensor of shape (n,)
        Not negative, in float64.
    with_ones : bool

    Returns
    -------
    Tensor of shape (P, P)
        In float64.
    """
    root, out = np.sqrt(h.numpy()), None
    for rows, chunk, buffer in _chunks(X, with_ones):
        d, r = chunk.shape[1], root[rows]
        np.multiply(chunk, r[:, None], out=buffer[:, :d])
        buffer[:, d:] = r[:, None]
        part = np.matmul(buffer.T, buffer)
        out = part if out is None else np.add(out, part, out=out)
    return torch.from_numpy(out)


def dense_moments(
    X: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, with_ones: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``A @ mean``, and the squared norms of the rows of ``A @ scale``.

    Parameters
    ----------
    X : Tensor of shape (n, d)
    mean : Tensor of shape (P,)
    scale : Tensor of shape (P, P)
        Lower triangular.
    with_ones : bool
        Whether A is ``[X, 1]``, or X.

    Returns
    -------
    mean, variance : Tensor of shape (n,)
        In float64.
    """
    center, factor = mean.numpy(), scale.numpy().T
    found = np.empty((2, X.shape[0]))
    for rows, chunk, buffer in _chunks(X, with_ones):
        d = chunk.shape[1]
        buffer[:, :d], buffer[:, d:] = chunk, 1.0
        np.matmul(buffer, center, out=found[0, rows])
        # Columns of the transpose are rows: it is multiplied in place.
        root = dtrmm(1.0, factor, buffer.T, overwrite_b=1)
        np.einsum("ij,ij->j", root, root, out=found[1, rows])
    return torch.from_numpy(found[0]), torch.from_numpy(found[1])


def _chunks(
    X: torch.Tensor, with_ones: bool
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Rows, what X has there, and a buffer with a column more for ones."""
    values = X.numpy()
    n_rows, width = len(values), values.shape[1] + with_ones
    step = min(n_rows, max(BUFFER_ELEMENTS // width, MIN_ROWS))
    buffer = np.empty((step, width))
    for start in range(0, n_rows, step):
        chunk = values[start : start + step]
        yield slice(start, start + step), chunk, buffer[: len(chunk)]
