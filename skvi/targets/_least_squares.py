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
    """Sum of squares of a linear model as a function of its coefficients.

    ``sum_i w_i (y_i - b - x_i' coef)^2 = residual + n (b - mean)^2
    + sum_k values_k (vectors_k' coef - solution_k)^2``, exactly, for features whose
    weighted mean is zero. There is no cancellation.

    Parameters
    ----------
    n : float
        Sum of the weights.
    values : Tensor of shape (k,)
        Positive eigenvalues of the Gram matrix; k is at most min(n, d).
    vectors : Tensor of shape (d, k)
    solution : Tensor of shape (k,)
        Least squares coefficients in the directions of `vectors`.
    residual : float
        Smallest sum of squares.
    mean : float
        Weighted mean of y, or 0 without an intercept.
    gram : Tensor of shape (d, d) or None
        Only if it was computed.
    diagonal : Tensor of shape (d,)
        Diagonal of the Gram matrix.

    Examples
    --------
    >>> import torch
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.targets import summarize
    >>> X, y = torch.tensor([[-1.0], [1.0]]).double(), torch.tensor([0.0, 2.0]).double()
    >>> found = summarize(LinearPredictor(1), X, y, None)
    >>> found.mean, found.residual, found.values
    (1.0, 0.0, tensor([2.], dtype=torch.float64))
    """

    n: float
    values: torch.Tensor
    vectors: torch.Tensor
    solution: torch.Tensor
    residual: float
    mean: float
    gram: torch.Tensor | None
    diagonal: torch.Tensor

    @property
    def n_features(self) -> int:
        """Number of coefficients, d."""
        return len(self.diagonal)

    def full_gram(self) -> torch.Tensor:
        """Gram matrix of the features.

        Returns
        -------
        Tensor of shape (d, d)
            Weighted by rows, in float64.
        """
        if self.gram is not None:
            return self.gram
        return (self.vectors * self.values) @ self.vectors.T

    def sum_of_squares(
        self, coef: torch.Tensor, intercept: torch.Tensor | None
    ) -> torch.Tensor:
        """Weighted sum of squared residuals.

        Parameters
        ----------
        coef : Tensor of shape (S, d)
        intercept : Tensor of shape (S,) or None

        Returns
        -------
        Tensor of shape (S,)
            In squared units of y, differentiable.
        """
        shift = coef @ self.vectors - self.solution
        total = self.residual + shift.square() @ self.values
        if intercept is not None:
            total = total + self.n * (intercept - self.mean).square()
        return total


def summarize(
    predictor: Any, X: Any, y: torch.Tensor, weight: torch.Tensor | None
) -> LeastSquares:
    """Summarize data whose features have weighted mean zero if there is an intercept.

    Parameters
    ----------
    predictor : LinearPredictor
        With a single column.
    X : Tensor or SparseRows of shape (n, d)
    y : Tensor of shape (n,)
    weight : Tensor of shape (n,) or None

    Returns
    -------
    LeastSquares

    Examples
    --------
    >>> import torch
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.targets import summarize
    >>> X, y = torch.eye(2).double(), torch.tensor([1.0, 3.0]).double()
    >>> found = summarize(LinearPredictor(2, fit_intercept=False), X, y, None)
    >>> found.sum_of_squares(torch.zeros(1, 2).double(), None)
    tensor([10.], dtype=torch.float64)
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

    R, with d + 1 rows, has the same singular values, right vectors and projections of
    y. It is updated by chunks of rows, so that large data are never copied as a whole.
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
