"""The curvature of the objective in the mean, and roots of its inverse.

Two forms of ``A' H A + diag(prior precision)``: a matrix, and, if that is too large,
products with a few leading directions.
"""

import torch

from skvi.base import NormalForm
from skvi.solvers._mode import DENSE_LIMIT, factorize
from skvi.targets import SupervisedTarget
from skvi.utils._random import randn

__all__ = [
    "Curvature",
    "curvature_of",
    "rank_of",
    "starting_normal",
]

# Above this number of parameters their matrix is too large (300 MB).
MAX_DENSE = 6000
# Products of a block Krylov space.
KRYLOV_DEPTH = 6


def curvature_of(
    target: SupervisedTarget, h: torch.Tensor, precision: torch.Tensor, rank: int
) -> "Curvature":
    """Choose the form of the curvature of a linear model by the sizes.

    h: second derivatives of the losses in f, positive semi-definite, (n,) or (n, K, K);
    precision (P,) of a normal prior; rank of the posterior: 0 if factorized, P if full.
    """
    size, n_values = len(precision), len(h) * (h.shape[1] if h.ndim > 1 else 1)
    # With fewer values of f than parameters the prior alone decides most directions.
    limit = MAX_DENSE if n_values >= size else DENSE_LIMIT
    if size <= limit or rank == size:
        return _Dense(target, h, precision)
    return _Products(target, h, precision, rank)


class Curvature:
    """Products with the curvature and a root of its inverse, and its diagonal, (P,)."""

    diagonal: torch.Tensor

    def __init__(
        self, target: SupervisedTarget, h: torch.Tensor, precision: torch.Tensor
    ) -> None:
        self.target, self.h, self.precision = target, h, precision

    def times(self, matrix: torch.Tensor) -> torch.Tensor:
        """Curvature times (P, m)."""
        f = _project(self.target, matrix)
        f = self.h[:, None] * f if f.ndim == 2 else self.h @ f
        return _pull_back(self.target, f) + self.precision[:, None] * matrix

    def root(self, matrix: torch.Tensor) -> torch.Tensor:
        """R times (P, m), where R R' approximates the inverse."""
        raise NotImplementedError

    def root_transposed(self, matrix: torch.Tensor) -> torch.Tensor:
        """R' times (P, m)."""
        raise NotImplementedError

    def soft_directions(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Smallest eigenvalues, (rank,), and vectors, (P, rank), at a unit diagonal.

        Rayleigh quotients in a Krylov space if the matrix is not available.
        """
        d = self.diagonal.rsqrt()[:, None]
        generator = torch.Generator(d.device).manual_seed(0)
        block = randn(generator, len(d), rank, dtype=d.dtype)
        blocks = [torch.linalg.qr(block).Q]
        for _ in range(KRYLOV_DEPTH):
            blocks.append(torch.linalg.qr(self._power(blocks[-1])).Q)
        basis = torch.linalg.qr(torch.cat(blocks, 1)).Q
        small = basis.T @ (d * self.times(d * basis))
        values, vectors = torch.linalg.eigh(0.5 * (small + small.T))
        return values[:rank], basis @ vectors[:, :rank]

    def _power(self, block: torch.Tensor) -> torch.Tensor:
        """Operator that spans the Krylov space: the inverse, if available."""
        d = self.diagonal.sqrt()[:, None]
        return d * self.root(self.root_transposed(d * block))


class _Dense(Curvature):
    def __init__(
        self, target: SupervisedTarget, h: torch.Tensor, precision: torch.Tensor
    ) -> None:
        super().__init__(target, h, precision)
        self.matrix = target.predictor.gram(target.X, h) + torch.diag(precision)
        self.factor, self.diagonal = factorize(self.matrix), self.matrix.diagonal()

    def root(self, matrix: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(self.factor.T, matrix, upper=True)

    def root_transposed(self, matrix: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(self.factor, matrix, upper=False)

    def soft_directions(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        if len(self.diagonal) > DENSE_LIMIT and rank < len(self.diagonal):
            return super().soft_directions(rank)
        d = self.diagonal.rsqrt()
        values, vectors = torch.linalg.eigh(d[:, None] * self.matrix * d)
        return values[:rank], vectors[:, :rank]


class _Products(Curvature):
    """The root is that of the low-rank covariance along the soft directions."""

    def __init__(
        self,
        target: SupervisedTarget,
        h: torch.Tensor,
        precision: torch.Tensor,
        rank: int,
    ) -> None:
        super().__init__(target, h, precision)
        self.diagonal = target.predictor.gram_diagonal(target.X, h) + precision
        self.d = self.diagonal.rsqrt()[:, None]
        self.found = super().soft_directions(max(rank, 1))

    def _power(self, block: torch.Tensor) -> torch.Tensor:
        return self.d * self.times(self.d * block)

    def soft_directions(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.found

    def _half(self, matrix: torch.Tensor) -> torch.Tensor:
        values, vectors = self.found
        factor = (values.rsqrt() - 1)[:, None]
        return matrix + vectors @ (factor * (vectors.T @ matrix))

    def root(self, matrix: torch.Tensor) -> torch.Tensor:
        return self.d * self._half(matrix)

    def root_transposed(self, matrix: torch.Tensor) -> torch.Tensor:
        return self._half(self.d * matrix)


def rank_of(normal: NormalForm) -> int:
    """Columns of a normal's factor: 0 if it is factorized, P if it is full."""
    if normal.factor is not None:
        return normal.factor.shape[1]
    return 0 if normal.is_diagonal else len(normal.mean)


def starting_normal(
    mean: torch.Tensor, curvature: Curvature, shape: NormalForm
) -> NormalForm:
    """Normal close to ``N(mean, curvature^-1)``, with the shape of another one.

    Low rank spans the soft directions at a unit diagonal, uniquenesses average the rest
    (Tipping and Bishop 1999, eqs. 7 and 8, with the two normals exchanged).
    """
    size, d = len(mean), curvature.diagonal.rsqrt()
    if shape.is_diagonal:
        return NormalForm(mean, d)
    if shape.factor is None:
        identity = torch.eye(size, dtype=d.dtype, device=d.device)
        covariance = curvature.root(curvature.root_transposed(identity))
        return NormalForm(mean, torch.linalg.cholesky(covariance))
    rank = rank_of(shape)
    values, vectors = curvature.soft_directions(rank)
    if rank == size:
        own = 0.5 / values.max()
    else:
        own = (size - rank) / (size - values.sum())
    # Never zero, which is a saddle point.
    factor = (1 / values - own).clamp(min=1e-4 * own).sqrt()
    return NormalForm(mean, d * own.sqrt(), d[:, None] * vectors * factor)


def _project(target: SupervisedTarget, matrix: torch.Tensor) -> torch.Tensor:
    return target.predictor.project(target.X, matrix)


def _pull_back(target: SupervisedTarget, f: torch.Tensor) -> torch.Tensor:
    """A' f for (n, m) or (n, K, m)."""
    return target.predictor.pull_back_draws(target.X, f.movedim(-1, 0)).T
