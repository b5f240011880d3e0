"""Structures of precisions: a diagonal, a full matrix, or a diagonal with a border.

Leading axes are those of a batch of normals.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, cast

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
    add,
    factorize,
    lower_of_inverse,
    solve_newton,
)
from skvi.targets import SupervisedTarget
from skvi.targets._blocks import KnownSums, RowSums, convex_part
from skvi.utils._rows import SparseRows

# History of the acceleration by elements of a precision, which entries hold.
DEPTHS = ((1_210_000, 10), (2**24, 2))
# Relative difference of elements of precisions that only rounding makes.
SAME = 1e-9
# Most pairs of columns that a row has, on average, to keep them.
MOST_PAIRS = 200


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
        return add(matrix, other)

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

    def __init__(self, target: SupervisedTarget, border: torch.Tensor) -> None:
        self.X, self.border, size = target.X, border, target.layout.size
        plain = Pattern.plain(size, border.numpy())
        rows = _ordered(target.X, plain.order)
        width, places = np.diff(rows.indptr), rows.indices.astype(int)
        row = np.repeat(np.arange(len(width)), width)
        times, every = width[row], np.arange(size) * (size + 1)
        #: Columns of the border where pairs of them are too many to be kept.
        self.rest = None
        if width @ width > MOST_PAIRS * len(width):
            times[places >= plain.m] = 0
            self.rest = torch.from_numpy(rows[:, plain.m :].toarray())
            first, second = plain.m + np.stack(np.triu_indices(size - plain.m))
            every = np.append(every, first * size + second)
        first = np.repeat(np.arange(len(row)), times)
        start = np.repeat(np.cumsum(times) - times, times)
        second = rows.indptr[row[first]] + np.arange(len(first)) - start
        keys, values = places[first] * size + places[second], rows.data
        upper = places[first] <= places[second]
        known = np.union1d(keys[upper], every)
        self.pattern = replace(plain, first=known // size, second=known % size)
        at = np.searchsorted(known, keys[upper]), row[first[upper]]
        both = (values[first] * values[second])[upper]
        #: What each row adds to the elements, (L, n).
        self.sums = sparse.csr_array((both, at), (len(known), len(width)))

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

    def precision_of(self, normal: Any) -> torch.Tensor:
        own, pattern = self.pattern, getattr(normal, "pattern", None)
        if pattern is not None and np.array_equal(pattern.first, own.first):
            if np.array_equal(pattern.second, own.second):
                return normal.precision
        zeros = normal.mean.new_zeros(len(own.first), 1)
        return self.add(zeros, 1 / normal.variance)

    def add(self, matrix: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if matrix.ndim == other.ndim:
            return matrix + other
        out = matrix.clone()
        out[..., self.pattern.diagonal, 0] += other
        return out

    def gram(self, target: SupervisedTarget, h: torch.Tensor) -> torch.Tensor:
        out = torch.from_numpy(self.sums @ h.numpy())
        if self.rest is not None:
            corner = self.rest.T @ (h[:, None] * self.rest)
            out[self.pattern.kinds[2]] = corner[self.pattern.inside]
        return out[:, None]

    def variances(self, normal: BorderedForm) -> torch.Tensor:
        """Variances of f of the rows, (n,)."""
        twice = 2 - (self.pattern.first == self.pattern.second)
        found = torch.from_numpy(self.sums.T @ (normal.at_pattern.numpy() * twice))
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
        self, normal: Any, step: torch.Tensor, move: torch.Tensor
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
        diagonal, edge, corner = (move[kind, 0] for kind in pattern.kinds)
        row, column = pattern.beside
        size = factor.square().sum(1).rsqrt()
        away = edge - diagonal[row] * ratio
        twice = pattern.product(edge + away, ratio)
        within = pattern.corner(corner) - 0.5 * (twice + twice.T)
        beside = away * own.rsqrt()[row] * size[column]
        parts = [diagonal / own, math.sqrt(2) * beside]
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


def _ordered(X: SparseRows, order: np.ndarray) -> Any:
    """Rows without a shift and with an intercept, columns in another order."""
    n, rows = len(X), sparse.csr_array(X.matrix.astype(np.float64))
    if X.shift is not None and X.shift.any():
        rows = rows + sparse.csr_array(np.tile(X.shift, (n, 1)))
    ones = np.ones((n, len(order) - X.shape[1]))
    rows = sparse.hstack([rows, ones], format="csr")[:, order]
    rows.eliminate_zeros()
    return rows
