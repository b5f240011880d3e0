"""Structures of precisions: a diagonal, a full matrix, or a diagonal with a border.

Leading axes are those of a batch of normals.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, cast

import numpy as np
import torch
from scipy import sparse

from skvi.base import NormalForm
from skvi.divergences._forms import precision_of
from skvi.posteriors import Posterior
from skvi.predictors import LinearPredictor
from skvi.solvers._mode import (
    DENSE_LIMIT,
    LARGEST,
    factorize,
    lower_of_inverse,
    solve_newton,
)
from skvi.targets import SupervisedTarget
from skvi.targets._blocks import KnownSums, RowSums, convex_part
from skvi.utils._rows import SparseRows
from skvi.utils._tensors import CPU
from skvi.utils._validation import row_chunks

# Deviation of a border's own part, of that given all others: a factor has all the rest.
OWN = 1e-4
# History of the acceleration by elements of a precision, which entries hold.
DEPTHS = ((1_210_000, 10), (2**24, 2))
# Elements of a chunk of rows of which the columns beside a border are taken.
CHUNK_ELEMENTS = 2**22


class Structure(ABC):
    """Algebra of precisions of one structure."""

    is_diagonal = is_full = False

    def depth(self, size: int) -> int:
        """Steps that the acceleration remembers, of precisions of this size."""
        return next((d for limit, d in DEPTHS if size <= limit), 0)

    @abstractmethod
    def normal(
        self, mean: torch.Tensor, precision: torch.Tensor
    ) -> tuple[NormalForm, torch.Tensor]:
        """Normals, and whether they exist, of the shape of the batch."""

    def precision_of(self, normal: NormalForm) -> torch.Tensor:
        """Precision of a normal of this structure."""
        return precision_of(normal)

    @abstractmethod
    def add(self, matrix: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Sum of a matrix of this structure and another one, or a diagonal."""

    @abstractmethod
    def gram(self, target: SupervisedTarget, h: torch.Tensor) -> torch.Tensor:
        """``A' diag(h) A`` of the rows of a target."""

    @abstractmethod
    def solve(self, matrix: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Solve for one right side, (..., P)."""

    def newton(
        self, sums: Any, curvature: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of the rows' curvatures, and steps of the means, of K normals."""
        grams = [self.gram(sums.target, h) for h in sums.curvature]
        parts = zip(sums.curvature, grams, strict=True)
        own = [(convex_part(sums.target, h), h, gram) for h, gram in parts]
        convex = [g if c is h else self.gram(sums.target, c) for c, h, g in own]
        hessian = self.add(torch.stack(convex), curvature)
        return torch.stack(grams), -self.solve(hessian, gradient)

    @abstractmethod
    def whitened(
        self, normal: NormalForm, step: torch.Tensor, move: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Steps of means and precisions in units of the normals, (K, ...) each.

        Squared norms are ``step' precision step`` and ``tr (covariance move)^2``.
        """


class Full(Structure):
    """Full matrices."""

    is_full = True

    def normal(
        self, mean: torch.Tensor, precision: torch.Tensor
    ) -> tuple[NormalForm, torch.Tensor]:
        scale, exists = lower_of_inverse(precision)
        return NormalForm(mean, scale), exists

    def add(self, matrix: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if matrix.ndim == other.ndim:
            return matrix + other
        out = matrix.clone()
        out.diagonal(dim1=-2, dim2=-1).add_(other)
        return out

    def gram(self, target: SupervisedTarget, h: torch.Tensor) -> torch.Tensor:
        return target.predictor.gram(target.X, h)

    def solve(self, matrix: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return _solve(matrix, right)

    def newton(
        self,
        sums: RowSums | KnownSums,
        curvature: torch.Tensor,
        gradient: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gram = sums.gram()
        hessian = _full.add(sums.convex(gram), curvature)
        factor, info = torch.linalg.cholesky_ex(hessian)
        for k in info.nonzero()[:, 0].tolist():
            try:
                factor[k] = factorize(hessian[k])
            except ValueError:
                # Errors of integrals over many classes can destroy their convexity.
                if (clipped := sums.clipped(k)) is None:
                    raise
                factor[k] = factorize(_full.add(clipped, curvature[k]))
        return gram, -torch.cholesky_solve(gradient[:, :, None], factor)[:, :, 0]

    def whitened(
        self, normal: NormalForm, step: torch.Tensor, move: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        solve, scale = torch.linalg.solve_triangular, normal.scale
        first = solve(scale, step[:, :, None], upper=False)[:, :, 0]
        return first, (scale.mT @ move @ scale).flatten(1)


class Diagonal(Structure):
    """Diagonals, as vectors: steps of the means still take the full curvature."""

    is_diagonal = True

    def depth(self, size: int) -> int:
        return 10

    def normal(
        self, mean: torch.Tensor, precision: torch.Tensor
    ) -> tuple[NormalForm, torch.Tensor]:
        exists = (precision > LARGEST**-2).all(-1)
        return NormalForm(mean, precision.rsqrt()), exists

    def add(self, matrix: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if matrix.ndim == other.ndim:
            return matrix + other
        return matrix + other.diagonal(dim1=-2, dim2=-1)

    def gram(self, target: SupervisedTarget, h: torch.Tensor) -> torch.Tensor:
        return target.predictor.gram_diagonal(target.X, h)

    def solve(self, matrix: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return right / matrix

    def newton(
        self,
        sums: RowSums | KnownSums,
        curvature: torch.Tensor,
        gradient: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if gradient.shape[1] <= DENSE_LIMIT or not isinstance(sums, RowSums):
            gram, step = _full.newton(sums, curvature, gradient)
            return gram.diagonal(dim1=1, dim2=2), step
        target, each = sums.target, sums.curvature
        steps = [
            solve_newton(target, convex_part(target, h), c, g, dense=False)
            for h, c, g in zip(each, curvature, gradient, strict=True)
        ]
        return torch.stack([self.gram(target, h) for h in each]), -torch.stack(steps)

    def whitened(
        self, normal: NormalForm, step: torch.Tensor, move: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return step / normal.scale, move * normal.scale.square()


class Bordered(Structure):
    """A diagonal with a border of p rows and columns, as of labels beside features.

    Matrices are (..., P, 1 + p): diagonals, 0 in the border, then columns of the
    border. The rows of the diagonal are columns of X of which each row has one at most.
    """

    def __init__(self, target: SupervisedTarget, border: torch.Tensor) -> None:
        size, X, predictor = target.layout.size, target.X, target.predictor
        self.border = border.to(CPU)
        is_alone = torch.ones(size, dtype=torch.bool, device=CPU)
        is_alone[self.border] = False
        self.alone = is_alone.nonzero()[:, 0]
        columns = self.border[self.border < predictor.n_features].numpy()
        self.own = _columns(X, self.alone.numpy()).T.tocsr()
        self.squares = self.own.power(2)
        if isinstance(X, SparseRows):
            shift = None if X.shift is None else X.shift[columns]
            self.rest: Any = SparseRows(X.matrix[:, columns], shift)
        else:
            self.rest = X[:][:, columns].double()
        self.small = LinearPredictor(len(columns), 1, predictor.fit_intercept)

    def normal(
        self, mean: torch.Tensor, precision: torch.Tensor
    ) -> tuple[NormalForm, torch.Tensor]:
        diagonal, edge, corner = self._parts(precision)
        ratio = edge / diagonal[..., None]
        inner = corner - edge.mT @ ratio
        root, exists = lower_of_inverse(inner)
        scale, factor = torch.empty_like(mean), torch.empty_like(precision[..., 1:])
        scale[..., self.alone] = diagonal.rsqrt()
        scale[..., self.border] = OWN * inner.diagonal(dim1=-2, dim2=-1).rsqrt()
        factor[..., self.alone, :], factor[..., self.border, :] = -ratio @ root, root
        exists = exists & (diagonal > LARGEST**-2).all(-1)
        return NormalForm(mean, scale, factor), exists

    def precision_of(self, normal: NormalForm) -> torch.Tensor:
        if normal.factor is None:
            shape = (*normal.mean.shape, 1 + len(self.border))
            return self.add(normal.mean.new_zeros(shape), 1 / normal.variance)
        factor = normal.factor
        diagonal = normal.scale[..., self.alone].square().reciprocal()
        root = factor[..., self.border, :]
        inner = torch.linalg.inv(root @ root.mT)
        edge = torch.linalg.solve(root.mT, factor[..., self.alone, :].mT).mT
        edge = -diagonal[..., None] * edge
        corner = inner + edge.mT @ (edge / diagonal[..., None])
        return self._joined(diagonal, edge, corner)

    def add(self, matrix: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if matrix.ndim == other.ndim:
            return matrix + other
        out = matrix.clone()
        out[..., self.alone, 0] += other[..., self.alone]
        places = torch.arange(len(self.border), device=CPU) + 1
        out[..., self.border, places] += other[..., self.border]
        return out

    def gram(self, target: SupervisedTarget, h: torch.Tensor) -> torch.Tensor:
        if len(h) != self.own.shape[1]:  # the rows that a fit starts from
            return Bordered(target, self.border).gram(target, h)
        weighted = self.own @ sparse.diags_array(h.numpy())
        if isinstance(self.rest, SparseRows):
            edge = (weighted @ self.rest.matrix).toarray()
            if self.rest.shift is not None:
                edge += np.multiply.outer(self.own @ h.numpy(), self.rest.shift)
        else:
            edge = weighted @ self.rest.numpy()
        parts = [edge]
        if self.small.fit_intercept:
            parts.append((self.own @ h.numpy())[:, None])
        diagonal = torch.from_numpy(self.squares @ h.numpy())
        edge = torch.from_numpy(np.concatenate(parts, 1))
        return self._joined(diagonal, edge, self.small.gram(self.rest, h))

    def solve(self, matrix: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        diagonal, edge, corner = self._parts(matrix)
        ratio = edge / diagonal[..., None]
        alone, out = right[..., self.alone], torch.empty_like(right)
        inner = right[..., self.border] - (ratio.mT @ alone[..., None])[..., 0]
        found = _solve(corner - edge.mT @ ratio, inner)
        out[..., self.border] = found
        out[..., self.alone] = alone / diagonal - (ratio @ found[..., None])[..., 0]
        return out

    def whitened(
        self, normal: NormalForm, step: torch.Tensor, move: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        factor = cast(torch.Tensor, normal.factor)
        deviation = normal.scale[..., self.alone]
        root, own = factor[..., self.border, :], factor[..., self.alone, :]
        inner = torch.linalg.solve_triangular(
            root, step[..., self.border, None], upper=False
        )
        away = step[..., self.alone] - (own @ inner)[..., 0]
        first = torch.cat([away / deviation, inner[..., 0]], -1)
        diagonal, edge, corner = self._parts(move)
        beside = diagonal[..., None] * own + edge @ root
        within = own.mT @ beside + root.mT @ (edge.mT @ own + corner @ root)
        parts = [diagonal * deviation.square()]
        parts += [
            (math.sqrt(2) * deviation[..., None] * beside).flatten(-2),
            within.flatten(-2),
        ]
        return first, torch.cat(parts, -1)

    def _parts(
        self, matrix: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Diagonal, (..., m), edge, (..., m, p), and corner, (..., p, p)."""
        alone = matrix[..., self.alone, :]
        return alone[..., 0], alone[..., 1:], matrix[..., self.border, 1:]

    def _joined(
        self, diagonal: torch.Tensor, edge: torch.Tensor, corner: torch.Tensor
    ) -> torch.Tensor:
        size = len(self.alone) + len(self.border)
        shape = (*diagonal.shape[:-1], size, 1 + len(self.border))
        out = diagonal.new_zeros(shape)
        out[..., self.alone, 0], out[..., self.alone, 1:] = diagonal, edge
        out[..., self.border, 1:] = corner
        return out


_full = Full()


def structure_of(posterior: Posterior, target: SupervisedTarget) -> Structure:
    """The structure of the precisions of a family of normals."""
    if posterior.is_diagonal:
        return Diagonal()
    border = posterior.border
    return _full if border is None else Bordered(target, border)


def _solve(matrix: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Solve by Cholesky factors, with a jitter where rounding requires it."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if bool(info.any()):
        each = [factorize(one) for one in matrix.reshape(-1, *matrix.shape[-2:])]
        factor = torch.stack(each).reshape(matrix.shape)
    return torch.cholesky_solve(right[..., None], factor)[..., 0]


def _columns(X: Any, columns: np.ndarray) -> Any:
    """Some columns of rows, as a sparse matrix."""
    if isinstance(X, SparseRows):
        return X.matrix[:, columns]
    chunks = row_chunks(len(X), X.shape[1], CHUNK_ELEMENTS)
    return sparse.vstack([sparse.csr_matrix(X[i][:, columns].numpy()) for i in chunks])
