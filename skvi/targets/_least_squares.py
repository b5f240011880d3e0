"""Sufficient statistics of a linear model with normal noise."""

from dataclasses import dataclass
from typing import Any

import torch

from skvi.utils._arrays import row_chunks
from skvi.utils._device import Movable
from skvi.utils._sparse import SparseRows

__all__ = ["LeastSquares", "summarize"]

# Eigenvalues below this fraction of the largest are rounding errors.
SINGULAR = 1e-15
# A Gram matrix squares condition numbers: eigenvalues below this fraction of the
# largest are inaccurate, and the features themselves are decomposed.
SQUARED = 1e-9
# Larger data are decomposed in chunks of this number of elements.
QR_ELEMENTS = 2**21


@dataclass(frozen=True, eq=False)
class LeastSquares(Movable):
    """Sum of squares of a linear model, exactly and without cancellation.

    ``residual + n (b - mean)^2 + sum_k values_k (vectors_k' coef - solution_k)^2``, if
    the weighted mean of the features is zero.
    """

    n: float  # sum of the weights
    values: torch.Tensor  # (k,), positive eigenvalues of the Gram matrix
    vectors: torch.Tensor  # (d, k)
    solution: torch.Tensor  # (k,), coefficients along `vectors`
    residual: float  # smallest sum of squares
    mean: float  # weighted mean of y, or 0 without an intercept
    gram: torch.Tensor | None  # (d, d), only if it was computed
    diagonal: torch.Tensor  # (d,), of the Gram matrix

    @property
    def n_features(self) -> int:
        """Number of coefficients, d."""
        return len(self.diagonal)

    def full_gram(self) -> torch.Tensor:
        """Weighted Gram matrix of the features, (d, d)."""
        if self.gram is not None:
            return self.gram
        return (self.vectors * self.values) @ self.vectors.T

    def sum_of_squares(
        self, coef: torch.Tensor, intercept: torch.Tensor | None
    ) -> torch.Tensor:
        """Weighted sum of squared residuals, (S,), of coefficients (S, d)."""
        shift = coef @ self.vectors - self.solution
        total = self.residual + shift.square() @ self.values
        if intercept is not None:
            total = total + self.n * (intercept - self.mean).square()
        return total


def summarize(
    predictor: Any, X: Any, y: torch.Tensor, weight: torch.Tensor | None
) -> LeastSquares:
    """Least squares of features (n, d) of weighted mean zero, if there is an intercept.

    For a predictor with a single output.
    """
    d, weight = predictor.n_features, torch.ones_like(y) if weight is None else weight
    n, is_dense = float(weight.sum()), not isinstance(X, SparseRows)
    mean = float(weight @ y) / n if predictor.fit_intercept else 0.0
    centered = y - mean
    if is_dense and len(y) < d:
        gram, diagonal = None, predictor.gram_diagonal(X, weight)[:d]
        values, vectors, solution = _from_features(X, weight, centered)
    else:
        gram = predictor.gram(X, weight)[:d, :d]
        diagonal = gram.diagonal()
        values, vectors = torch.linalg.eigh(gram)
        if is_dense and float(values[0]) < SQUARED * values[-1]:
            values, vectors, solution = _from_features(X, weight, centered)
        else:
            keep = values > SINGULAR * max(len(y), d) * values[-1]
            values, vectors = values[keep], vectors[:, keep]
            moment = predictor.pull_back(X, weight * centered)[:d]
            solution = (vectors.T @ moment) / values
    coef = y.new_zeros(predictor.layout.size, 1)
    coef[:d, 0] = vectors @ solution
    rest = centered - predictor.project(X, coef)[:, 0]
    residual = float(weight @ rest.square())
    return LeastSquares(n, values, vectors, solution, residual, mean, gram, diagonal)


def _from_features(
    X: torch.Tensor, weight: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Eigenvalues, eigenvectors and least squares by singular values."""
    A = _triangle(X, weight.sqrt(), y)
    left, size, right = torch.linalg.svd(A[:, :-1], full_matrices=False)
    keep = size > SINGULAR * max(X.shape) * size[0]
    size, left, right = size[keep], left[:, keep], right[keep]
    return size.square(), right.T.contiguous(), (left.T @ A[:, -1]) / size


def _triangle(X: torch.Tensor, root: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``[X, y]`` times roots of weights, or R of their QR decomposition.

    R has the same singular values and right vectors; it is updated by chunks of rows.
    """
    chunks = row_chunks(len(y), X.shape[1] + 1, max(QR_ELEMENTS, 4 * X.shape[1] ** 2))
    found: torch.Tensor | None = None
    for rows in chunks:
        block = torch.cat([X[rows].double(), y[rows, None]], 1) * root[rows, None]
        if len(chunks) == 1:
            return block
        block = block if found is None else torch.cat([found, block])
        found = torch.linalg.qr(block, mode="r").R
    return found
