"""Linear models of centered features, without centering a sparse matrix."""

import torch

from skvi.base import NormalForm
from skvi.predictors._linear import CHUNK_ELEMENTS, LinearPredictor
from skvi.utils._arrays import row_chunks
from skvi.utils._sparse import Features

__all__ = ["CenteredLinearPredictor"]


class CenteredLinearPredictor(LinearPredictor):
    """A linear model of features minus an offset, with one column and an intercept.

    ``f = (X - offset) coef' + intercept``: the intercept is the value at the offset.
    X itself is never changed, so that a sparse matrix stays sparse.

    Parameters
    ----------
    offset : Tensor of shape (d,)

    Examples
    --------
    >>> import torch
    >>> from skvi.predictors import CenteredLinearPredictor
    >>> predictor = CenteredLinearPredictor(torch.tensor([1.0, 2.0]).double())
    >>> theta = torch.tensor([[3.0, 4.0, 0.5]]).double()
    >>> predictor.forward(theta, torch.tensor([[1.0, 3.0]]).double())
    tensor([[[4.5000]]], dtype=torch.float64)
    """

    def __init__(self, offset: torch.Tensor) -> None:
        super().__init__(len(offset), 1, fit_intercept=True)
        self.offset = offset

    def forward(self, theta: torch.Tensor, X: Features) -> torch.Tensor:
        """Evaluate f, (S, n, 1); see `LinearPredictor.forward`."""
        d = self.n_features
        shift = theta[:, :d] @ self.offset.to(theta.dtype)
        return super().forward(theta, X) - shift[:, None, None]

    def design(self, X: torch.Tensor) -> torch.Tensor:
        """Build A, (n, P); see `LinearPredictor.design`."""
        return super().design(X - self.offset)

    def project(self, X: Features, matrix: torch.Tensor) -> torch.Tensor:
        """Return ``A @ matrix``; see `LinearPredictor.project`."""
        return super().project(X, self._raw(matrix))

    def _raw(self, matrix: torch.Tensor) -> torch.Tensor:
        """Coefficients and intercepts, (P, m), for the uncentered features."""
        moved = matrix.clone()
        moved[-1] = matrix[-1] - self.offset @ matrix[:-1]
        return moved

    def pull_back_draws(self, X: Features, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ A``; see `LinearPredictor.pull_back_draws`."""
        out = super().pull_back_draws(X, rows)
        out[:, :-1] -= out[:, -1:] * self.offset
        return out

    def gram(self, X: Features, h: torch.Tensor) -> torch.Tensor:
        """Return ``A' H A``; see `LinearPredictor.gram`."""
        out, c = super().gram(X, h), self.offset
        edge = out[:-1, -1].clone()
        out[:-1, :-1] += out[-1, -1] * torch.outer(c, c)
        out[:-1, :-1] -= torch.outer(edge, c) + torch.outer(c, edge)
        out[:-1, -1] = out[-1, :-1] = edge - out[-1, -1] * c
        return out

    def gram_diagonal(self, X: Features, h: torch.Tensor) -> torch.Tensor:
        """Diagonal of `gram`; see `LinearPredictor.gram_diagonal`."""
        out, c = super().gram_diagonal(X, h), self.offset
        first = super().pull_back_draws(X, h[None])[0, :-1]
        out[:-1] += c * (c * out[-1] - 2 * first)
        out[:-1] = out[:-1].clamp(min=0)
        return out

    def moments(
        self, X: Features, normal: NormalForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of f; see `LinearPredictor.moments`."""
        mean = self.project(X, normal.mean[:, None])[:, 0]
        if normal.scale.ndim == 2:
            return mean, self._squares(X, normal.scale)
        variance = self._of_independent(X, normal.scale.square())
        if normal.factor is not None:
            variance = variance + self._squares(X, normal.factor)
        return mean, variance

    def _squares(self, X: Features, root: torch.Tensor) -> torch.Tensor:
        """Squared norms of the rows of ``A @ root``."""
        chunks = row_chunks(len(X), root.shape[1], CHUNK_ELEMENTS)
        return torch.cat([self.project(X[c], root).square().sum(1) for c in chunks])

    def _of_independent(self, X: Features, v: torch.Tensor) -> torch.Tensor:
        """``(x - c)^2 v`` without the dense difference."""
        c = self.offset
        squares = super().project(X.square(), _with_zero(v[:-1]))
        cross = super().project(X, _with_zero(c * v[:-1]))
        shift = v[-1] + c.square() @ v[:-1]
        return ((squares - 2 * cross)[:, 0] + shift).clamp(min=0)


def _with_zero(coef: torch.Tensor) -> torch.Tensor:
    """Append an intercept of 0, (d + 1, 1)."""
    return torch.nn.functional.pad(coef, (0, 1))[:, None]
