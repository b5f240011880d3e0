"""Linear models."""

from collections.abc import Iterator
from functools import reduce

import torch

from skvi.base import Layout, NormalForm
from skvi.utils._arrays import row_chunks

__all__ = ["LinearPredictor"]

# Rows are visited in chunks so that temporaries stay near this many elements.
CHUNK_ELEMENTS = 2**21


class LinearPredictor:
    """A linear model, f = X coef + intercept, with K columns.

    The design matrix A is ``[X, 1]`` without ever being built: `project`,
    `pull_back` and `gram` apply A, its transpose and ``A' diag(h) A``.

    Parameters
    ----------
    n_features, n_outputs : int
        d and K.
    fit_intercept : bool, default=True
        Whether theta has a block "intercept" of shape (K,) after "coef".

    Examples
    --------
    >>> import torch
    >>> from skvi.predictors import LinearPredictor
    >>> predictor = LinearPredictor(2, 1)
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]])
    >>> predictor.forward(theta, torch.ones(1, 2))
    tensor([[[3.5000]]])
    """

    def __init__(
        self, n_features: int, n_outputs: int = 1, fit_intercept: bool = True
    ) -> None:
        shapes: dict[str, tuple[int, ...]] = {"coef": (n_outputs, n_features)}
        if fit_intercept:
            shapes["intercept"] = (n_outputs,)
        self.layout = Layout(shapes)
        self.n_features, self.n_outputs = n_features, n_outputs
        self.fit_intercept = fit_intercept

    @property
    def is_scalar_linear(self) -> bool:
        """Whether f is one linear function of theta per row (Newton applies)."""
        return self.n_outputs == 1

    def forward(self, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """Evaluate f.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        X : Tensor of shape (n, d)

        Returns
        -------
        Tensor of shape (S, n, K)
            In the dtype of `theta`.
        """
        blocks = self.layout.unpack(theta)
        n_draws, n_outputs, n_features = blocks["coef"].shape
        coef = blocks["coef"].reshape(-1, n_features)
        f = (coef @ X.T.to(theta.dtype)).reshape(n_draws, n_outputs, -1)
        if self.fit_intercept:
            f = f + blocks["intercept"][..., None]
        return f.transpose(1, 2)

    def project(self, X: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """Return ``A @ matrix``; K = 1.

        Parameters
        ----------
        X : Tensor of shape (n, d)
        matrix : Tensor of shape (P, m)

        Returns
        -------
        Tensor of shape (n, m)
            In float64.
        """
        width = max(self.n_features, matrix.shape[1])
        parts = [self._project_chunk(chunk, matrix) for _, chunk in _chunks(X, width)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _project_chunk(self, X: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        d = self.n_features
        if not self.fit_intercept:
            return X @ matrix
        return torch.addmm(matrix[d:], X, matrix[:d])

    def pull_back(self, X: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return ``A' rows``; K = 1.

        Parameters
        ----------
        X : Tensor of shape (n, d)
        rows : Tensor of shape (n,)
            One number for each row, such as dloss_i / df_i.

        Returns
        -------
        Tensor of shape (P,)
            In float64.
        """
        return self.pull_back_draws(X, rows[None])[0]

    def pull_back_draws(self, X: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ A``: `pull_back` for S vectors at once; K = 1.

        Parameters
        ----------
        X : Tensor of shape (n, d)
        rows : Tensor of shape (S, n)

        Returns
        -------
        Tensor of shape (S, P)
            In float64.
        """
        parts = [rows[:, i] @ chunk for i, chunk in _chunks(X, self.n_features)]
        out = reduce(torch.add, parts)
        return torch.cat([out, rows.sum(1, True)], 1) if self.fit_intercept else out

    def gram(self, X: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """Return ``A' diag(h) A``; K = 1.

        Parameters
        ----------
        X : Tensor of shape (n, d)
        h : Tensor of shape (n,)
            Weights of the rows, of any sign.

        Returns
        -------
        Tensor of shape (P, P)
            In float64.
        """
        chunks = _chunks(X, self.n_features)
        parts = [self._gram_of_chunk(chunk, h[rows]) for rows, chunk in chunks]
        return reduce(torch.add, parts)

    def _gram_of_chunk(self, X: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        weighted = X * h[:, None]
        if not self.fit_intercept:
            return X.T @ weighted
        d = self.n_features
        out = torch.empty(d + 1, d + 1, dtype=torch.float64)
        torch.mm(X.T, weighted, out=out[:d, :d])
        out[d, :d] = out[:d, d] = weighted.sum(0)
        out[d, d] = h.sum()
        return out

    def gram_diagonal(self, X: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """Diagonal of `gram`, without the matrix; K = 1.

        Parameters
        ----------
        X : Tensor of shape (n, d)
        h : Tensor of shape (n,)
            Weights of the rows, of any sign.

        Returns
        -------
        Tensor of shape (P,)
            In float64.
        """
        d = self.n_features
        out = torch.zeros(self.layout.size, dtype=torch.float64)
        for rows, chunk in _chunks(X, d):
            out[:d] += h[rows] @ chunk.square()
        if self.fit_intercept:
            out[d] = h.sum()
        return out

    def moments(
        self, X: torch.Tensor, normal: NormalForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of f when theta is normal; f is then normal too.

        Parameters
        ----------
        X : Tensor of shape (n, d)
        normal : NormalForm
            Over theta; K = 1.

        Returns
        -------
        mean, variance : Tensor of shape (n,)
            Marginal moments of each row's f, exact, in float64.
        """
        mean = self.project(X, normal.mean[:, None])[:, 0]
        parts = []
        for _, chunk in _chunks(X, self.layout.size):
            if normal.is_diagonal:
                parts.append(self._project_squared(chunk, normal.variance))
            else:
                parts.append(self._project_chunk(chunk, normal.scale).square().sum(1))
        return mean, parts[0] if len(parts) == 1 else torch.cat(parts)

    def _project_squared(self, X: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        d = self.n_features
        out = X.square() @ v[:d]
        return out + v[d] if self.fit_intercept else out


def _chunks(X: torch.Tensor, width: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """Rows in chunks, as float64: float32 features are kept, not computed with."""
    for rows in row_chunks(len(X), width, CHUNK_ELEMENTS):
        yield rows, X[rows].to(torch.float64)
