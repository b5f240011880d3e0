"""Structures of precisions: a diagonal, a full matrix, or a diagonal with a border.

Leading axes are those of a batch of normals.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy import sparse

from skvi.base import NormalForm
from skvi.divergences._forms import precision_of
from skvi.posteriors import Posterior
from skvi.posteriors._bordered import BorderedForm, BorderedForms, Pattern
from skvi.solvers._mode import (
    DENSE_LIMIT,
    LARGEST,
    SINGULAR,
    factorize,
    lower_of_inverse,
    solve_newton,
)
from skvi.targets import SupervisedTarget
from skvi.targets._blocks import KnownSums, RowSums, convex_part
from skvi.utils._rows import SparseRows

# History of the acceleration by elements of a precision, which entries hold.
DEPTHS = ((1_210_000, 10), (2**24, 2))
# Most pairs of a row's columns beside the diagonal, on average; share of elements of an
# edge beyond which it is dense.
MOST_PAIRS, DENSE = 100, 0.2
# Relative difference of elements of precisions that only rounding makes.
SAME = 1e-9


class Structure(ABC):
    """Algebra of precisions of one structure."""

    is_diagonal = is_full = False

    def n_elements(self, precision: torch.Tensor) -> int:
        """Elements that a normal of this precision takes."""
        return precision.numel()

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
    def solve(
        self, matrix: torch.Tensor, right: torch.Tensor, near: Any = None
    ) -> torch.Tensor:
        """Solve for one right side, (..., P); `near` are normals of such precisions."""

    def newton(
        self,
        sums: Any,
        curvature: torch.Tensor,
        gradient: torch.Tensor,
        normal: NormalForm,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of the rows' curvatures, and steps of the means, of K normals."""
        grams = [self.gram(sums.target, h) for h in sums.curvature]
        parts = zip(sums.curvature, grams, strict=True)
        own = [(convex_part(sums.target, h), h, gram) for h, gram in parts]
        convex = [g if c is h else self.gram(sums.target, c) for c, h, g in own]
        hessian = self.add(torch.stack(convex), curvature)
        return torch.stack(grams), -self.solve(hessian, gradient, normal)

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

    def solve(
        self, matrix: torch.Tensor, right: torch.Tensor, near: Any = None
    ) -> torch.Tensor:
        return _solve(matrix, right)

    def newton(
        self,
        sums: RowSums | KnownSums,
        curvature: torch.Tensor,
        gradient: torch.Tensor,
        normal: NormalForm,
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

    def solve(
        self, matrix: torch.Tensor, right: torch.Tensor, near: Any = None
    ) -> torch.Tensor:
        return right / matrix

    def newton(
        self,
        sums: RowSums | KnownSums,
        curvature: torch.Tensor,
        gradient: torch.Tensor,
        normal: NormalForm,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if gradient.shape[1] <= DENSE_LIMIT or not isinstance(sums, RowSums):
            gram, step = _full.newton(sums, curvature, gradient, normal)
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
    """A diagonal with a border, as of labels beside other coefficients.

    Matrices are (..., L, 1): elements at a `Pattern`, where rows share columns. The
    diagonal has columns of X of which each row has one at most.
    """

    #: The structure of the rows that a fit starts from.
    start: "Bordered | None" = None

    def __init__(
        self, target: SupervisedTarget, border: torch.Tensor, like: Any = None
    ) -> None:
        self.X, self.border = target.X, border
        X, size = _with_ones(target.X, target.layout.size), target.layout.size
        plain = Pattern.plain(size, border.numpy()) if like is None else like
        own, rest = X[:, plain.alone].tocoo(), X[:, plain.border]
        label, value = np.zeros(len(self.X), int), np.zeros(len(self.X))
        label[own.row], value[own.row] = own.col, own.data
        width, p = np.diff(rest.indptr), len(plain.border)
        row = np.repeat(np.arange(len(self.X)), width)
        edge = _Elements(label[row] * p + rest.indices, row, value[row] * rest.data)
        # Pairs of elements of the same row.
        times = width[row]
        first = np.repeat(np.arange(len(row)), times) if _is_few(width, p) else None
        #: Columns beside the diagonal, if pairs of them are many.
        self.rest = torch.from_numpy(rest.toarray()) if first is None else None
        if first is None:
            every = np.ravel_multi_index(np.tril_indices(p), (p, p))
            corner = _Elements(*np.zeros((2, 0), int), np.zeros(0))
        else:
            every = np.arange(p) * (p + 1)
            start = np.repeat(np.cumsum(times) - times, times)
            second = rest.indptr[row[first]] + np.arange(len(first)) - start
            low, high = rest.indices[first], rest.indices[second]
            lower = low >= high
            both = (rest.data[first] * rest.data[second])[lower]
            corner = _Elements((low * p + high)[lower], row[first][lower], both)
        if like is None:
            keys = np.unique(edge.key[edge.value != 0])
            is_dense = len(keys) > DENSE * len(plain.alone) * p
            keys = np.arange(len(plain.alone) * p) if is_dense else keys
            beside = np.stack(np.divmod(keys, p))
            pairs = np.divmod(np.union1d(corner.key, every), p)
            plain = replace(plain, edge=beside, corner=np.stack(pairs))
        self.pattern = plain
        (a, b), (c, d) = plain.edge, plain.corner
        diagonal = _Elements(own.col, own.row, own.data**2)
        known = np.arange(len(plain.alone)), a * p + b, c * p + d
        found = [
            e.sums(k, len(self.X))
            for e, k in zip((diagonal, edge, corner), known, strict=True)
        ]
        #: What rows add to the elements, (L, n), and how often each is in a matrix.
        self.sums = sparse.vstack(found, format="csr")
        self.times = np.concatenate([known[0] * 0 + 1, 0 * a + 2, 1 + (c != d)])

    def n_elements(self, precision: torch.Tensor) -> int:
        return precision.numel() + len(self.border) ** 2

    def normal(
        self, mean: torch.Tensor, precision: torch.Tensor
    ) -> tuple[NormalForm, torch.Tensor]:
        if mean.ndim == 1:
            found = BorderedForm(mean, precision, self.pattern, self)
            own, _, factor = found.parts
            ends = torch.cat([own, factor.diagonal().square()])
            return found, (ends > LARGEST**-2).all()
        each = zip(mean, precision, strict=True)
        normals, exist = zip(*(self.normal(*one) for one in each), strict=True)
        return BorderedForms(normals), torch.stack(exist)

    def precision_of(self, normal: NormalForm) -> torch.Tensor:
        pattern = getattr(normal, "pattern", None)
        if pattern is not None and np.array_equal(pattern.pairs, self.pattern.pairs):
            return normal.precision
        zeros = normal.mean.new_zeros(len(self.times), 1)
        return self.add(zeros, 1 / normal.variance)

    def add(self, matrix: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if matrix.ndim == other.ndim:
            return matrix + other
        out = matrix.clone()
        out[..., self.pattern.diagonal, 0] += other
        return out

    def gram(self, target: SupervisedTarget, h: torch.Tensor) -> torch.Tensor:
        if target.X is not self.X:  # the rows that a fit starts from
            self.start = Bordered(target, self.border, self.pattern)
            return self.start.gram(target, h)
        out = torch.from_numpy(self.sums @ h.numpy())
        if self.rest is not None:
            corner = self.rest.T @ (h[:, None] * self.rest)
            low, high = self.pattern.corner
            out[len(out) - len(low) :] = corner[low, high]
        return out[:, None]

    def variances(self, normal: BorderedForm, X: Any) -> torch.Tensor | None:
        """Variances of f of the rows, (n,); None for others."""
        if X is not self.X:
            return None if self.start is None else self.start.variances(normal, X)
        elements = self.times * normal.at_pattern.numpy()
        found = torch.from_numpy(self.sums.T @ elements)
        if self.rest is None:
            return found
        solve, factor = torch.linalg.solve_triangular, normal.parts[2]
        return found + solve(factor, self.rest.T, upper=False).square().sum(0)

    def solve(
        self, matrix: torch.Tensor, right: torch.Tensor, near: Any = None
    ) -> torch.Tensor:
        if matrix.ndim > 2:
            each = zip(matrix, right, near.members, strict=True)
            return torch.stack([self.solve(*one) for one in each])
        if near is not None and torch.allclose(near.precision, matrix, SAME, 0.0):
            return near.solve(right)
        normal, exists = self.normal(right, matrix)
        if not exists:
            raise ValueError(SINGULAR)
        return cast(BorderedForm, normal).solve(right)

    def whitened(
        self, normal: NormalForm, step: torch.Tensor, move: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        each = zip(normal.members, step, move, strict=True)
        found = [self._whitened(*one) for one in each]
        first, white = zip(*found, strict=True)
        return torch.stack(first), torch.stack(white)

    def _whitened(
        self, normal: BorderedForm, step: torch.Tensor, move: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of one; the border's part is in units of its deviations given each other."""
        (own, ratio, factor), pattern = normal.parts, self.pattern
        (rows, columns), beside = pattern.edge, pattern.beside
        diagonal, edge, corner = pattern.split(move)
        size = factor.square().sum(1).rsqrt()
        away = edge - diagonal[rows] * ratio
        product = beside(edge + away).T @ beside(ratio)
        product = product.toarray() if sparse.issparse(product) else product
        twice = torch.from_numpy(product)
        within = pattern.square(corner) - 0.5 * (twice + twice.T)
        parts = [diagonal / own, math.sqrt(2) * away * own.rsqrt()[rows] * size[columns]]
        parts.append((size[:, None] * within * size).flatten())
        return normal.whiten(step), torch.cat(parts)


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


class _Elements(NamedTuple):
    """What rows add to elements of a matrix, by their numbers."""

    key: np.ndarray
    row: np.ndarray
    value: np.ndarray

    def sums(self, known: np.ndarray, n_rows: int) -> Any:
        """Elements of ascending numbers, (L, n)."""
        some = self.value != 0
        places = np.searchsorted(known, self.key[some]), self.row[some]
        shape = len(known), n_rows
        return sparse.csr_array((self.value[some], places), shape)


def _is_few(width: np.ndarray, p: int) -> bool:
    """Whether rows have few pairs of elements, given their numbers of elements."""
    return int(width @ width) <= max(MOST_PAIRS * len(width), 1) or p <= 3


def _with_ones(X: SparseRows, size: int) -> Any:
    """Rows without a shift, and an intercept, as a sparse matrix, (n, P)."""
    n, shift = len(X), np.zeros(X.shape[1]) if X.shift is None else X.shift
    matrix = X.matrix.astype(np.float64)
    if shift.any():
        matrix = matrix + sparse.csr_matrix(np.tile(shift, (n, 1)))
    matrix = sparse.hstack([matrix, np.ones((n, size - X.shape[1]))], format="csr")
    matrix.eliminate_zeros()
    return matrix
