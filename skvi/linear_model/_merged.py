"""Rows with the same sums as many others, on which alone a linear regression depends.

With normal noise and log loss the likelihood is a function of the weighted number of
rows, their means and cross products. Few rows can have the same as all.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import helmert, qr

from skvi.base._units import Units
from skvi.solvers._exact import MixtureOverPrecisions
from skvi.utils._arrays import row_chunks

__all__ = ["MergedRows"]

# Rows are merged by blocks of so many elements.
ELEMENTS = 2**20


@dataclass(frozen=True, eq=False)
class MergedRows:
    """Features (m, d), targets (m,) or (m, K), and weights of few rows."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, X: Any, y: np.ndarray, weight: np.ndarray | None) -> "MergedRows":
        """Merge rows, of which sparse ones become dense block by block."""
        w = np.ones(len(y)) if weight is None else weight
        found = cls(np.zeros((0, X.shape[1])), y[:0], w[:0])
        for rows in row_chunks(*X.shape, ELEMENTS):
            block = X[rows].toarray() if sparse.issparse(X) else X[rows]
            kept = w[rows] > 0
            found = found.with_rows(cls(block[kept], y[rows][kept], w[rows][kept]))
        return found

    @classmethod
    def of_posterior(cls, exact: MixtureOverPrecisions, units: Units) -> "MergedRows":
        """Rows with the sums of those that an exact posterior has seen."""
        data = exact.form.data
        sizes = np.sqrt(data.values.numpy())
        root = np.zeros((len(sizes) + 1, data.n_features + 1))
        root[:-1, :-1] = sizes[:, None] * data.vectors.numpy().T
        root[:-1, -1] = sizes * data.solution.numpy()
        root[-1, -1] = np.sqrt(max(data.residual, 0.0))
        rows, weight = _spread(root, data.n)
        X = rows[:, :-1] * units.x_scale
        X = X if units.x_mean is None else X + units.x_mean
        y = units.y_mean + units.y_scale * (data.mean + rows[:, -1])
        return cls(X, y, weight)

    def discounted(self, factor: float) -> "MergedRows":
        """The same rows, of a smaller weight."""
        return replace(self, weight=factor * self.weight)

    def with_rows(self, other: "MergedRows") -> "MergedRows":
        """Rows with the sums of both, at most one more than there are columns."""
        if other.y.shape[1:] != self.y.shape[1:]:
            raise ValueError(
                f"y must have the shape (n_samples, *{self.y.shape[1:]}), as in the "
                f"batches before. Got {other.y.shape}."
            )
        w = np.concatenate([self.weight, other.weight])
        table = np.column_stack(
            [np.concatenate([self.X, other.X]), np.concatenate([self.y, other.y])]
        ).astype(np.float64)
        if len(w) > table.shape[1] + 1:
            # Relative to a row, so that constant columns stay constant.
            origin = table[0].copy()
            table -= origin
            mean = w @ table / w.sum()
            table -= mean
            table *= np.sqrt(w)[:, None]
            root = qr(table, mode="r", overwrite_a=True, check_finite=False)[0]
            table, w = _spread(root[: table.shape[1]], float(w.sum()))
            table += origin + mean
        d = self.X.shape[1]
        y = table[:, d] if self.y.ndim == 1 else table[:, d:]
        return MergedRows(np.ascontiguousarray(table[:, :d]), y.copy(), w)


def _spread(root: np.ndarray, total: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows of mean 0 and equal weights, the weighted cross products being root' root.

    Contrasts (Helmert's) are orthogonal to each other and to a constant.
    """
    n = len(root) + 1
    return np.sqrt(n / total) * helmert(n).T @ root, np.full(n, total / n)
