"""Log determinants and quadratic forms of mixed covariances, of any shape.

Every closed form needs three properties of ``M = a cov(pi) + b cov(q)``: whether it is
positive definite, its log determinant, and ``d' M^-1 d``. Two normals without a dense
matrix cost O(P r^2), where r is the number of columns of both factors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from skvi.base import NormalForm
from skvi.divergences._linalg import factorize, mix

# Below this |x| (norm of A), log det(I + x A) / x is a series, above a determinant.
SERIES_BELOW = 1e-3


@dataclass(frozen=True, eq=False)
class Mixture:
    """A positive definite ``a cov(pi) + b cov(q)``.

    Both parts have shape (P,), one value for each coordinate, if the matrix is
    diagonal, and are scalars otherwise.
    """

    half_log_det: torch.Tensor
    squared: Callable[[torch.Tensor], torch.Tensor]


def mixture(a: float, pi: NormalForm, b: float, q: NormalForm) -> Mixture | None:
    """Factorize ``a cov(pi) + b cov(q)``; None if it is not positive definite."""
    if 0 in (a, b):
        return _multiple(b, q) if a == 0 else _multiple(a, pi)
    if q.scale.ndim == 1 and pi.scale.ndim == 1:
        parts = [(a, pi), (b, q)]
        factors = [(w, n.factor) for w, n in parts if n.factor is not None]
        diagonal = a * pi.scale.square() + b * q.scale.square()
        if factors:
            return _low_rank(diagonal, factors)
        if not bool((diagonal > 0).all()):
            return None
        return Mixture(0.5 * diagonal.log(), lambda d: d.square() / diagonal)
    factor = factorize(mix(a, pi, b, q))
    if factor is None:
        return None
    whole = NormalForm(q.mean, factor)
    return Mixture(whole.half_log_det, lambda d: whole.squared_distance(d[None])[0])


def _multiple(weight: float, normal: NormalForm) -> Mixture | None:
    if weight <= 0:
        return None
    if normal.is_diagonal:
        root = weight**0.5 * normal.scale
        return Mixture(root.log(), lambda d: (d / root).square())
    log_det = normal.half_log_det + 0.5 * normal.size * math.log(weight)
    return Mixture(log_det, lambda d: normal.squared_distance(d[None])[0] / weight)


def _low_rank(
    diagonal: torch.Tensor, factors: list[tuple[float, torch.Tensor]]
) -> Mixture | None:
    """D + F S F' with S the signs of the weights, by the determinant lemma.

    Positive definite (Haynsworth's additivity of inertia) if the negative values of D
    and the positive eigenvalues of ``S + F' D^-1 F`` are together as many as the
    positive signs.
    """
    columns = torch.cat([abs(w) ** 0.5 * f for w, f in factors], 1)
    signs = torch.cat(
        [f.new_full(f.shape[1:], 1.0 if w > 0 else -1.0) for w, f in factors]
    )
    if bool((diagonal == 0).any()):
        return None
    scaled = columns / diagonal[:, None]
    capacity = torch.diag(signs) + columns.T @ scaled
    above = int((torch.linalg.eigvalsh(capacity.detach()) > 0).sum())
    if int((diagonal < 0).sum()) + above != int((signs > 0).sum()):
        return None

    def squared(d: torch.Tensor) -> torch.Tensor:
        shared = d @ scaled
        inner = shared @ torch.linalg.solve(capacity, shared)
        return (d.square() / diagonal).sum() - inner

    log_det = diagonal.abs().log().sum() + torch.linalg.slogdet(capacity).logabsdet
    return Mixture(0.5 * log_det, squared)


def log_det_growth(x: float, base: NormalForm, other: NormalForm) -> torch.Tensor:
    """``log det(I + x cov(base)^-1 cov(other)) / x``, its limit the trace at x = 0.

    Stable near 0, and exact for every x with a positive definite matrix. If both are
    diagonal it has shape (P,), one value for each coordinate.
    """
    if base.is_diagonal and other.is_diagonal:
        return log1p_ratio(x, (other.scale / base.scale).square())
    if base.scale.ndim == 2 or other.scale.ndim == 2:
        rows = base.whiten(_root(other))
        if x == 0:
            return rows.square().sum()
        return log_det_ratio(x, rows.T @ rows)
    return _low_rank_growth(x, base, other)


def _low_rank_growth(x: float, base: NormalForm, other: NormalForm) -> torch.Tensor:
    d_base, d_other = base.scale.square(), other.scale.square()
    d = d_base + x * d_other
    if not bool((d > 0).all()):  # far from x = 0: no cancellation
        mixed = mixture(1.0, base, x, other)
        log_det = torch.full_like(d[0], torch.nan)
        log_det = log_det if mixed is None else mixed.half_log_det
        return 2 * (log_det - base.half_log_det) / x
    # First the diagonal of `other` is added to that of `base`, ...
    total = log1p_ratio(x, d_other / d_base).sum()
    near = base.factor
    if near is not None:
        capacity = _identity(near) + near.T @ (near / d_base[:, None])
        change = near.T @ (near * (d_other / (d * d_base))[:, None])
        total = total + log_det_ratio(x, -torch.linalg.solve(capacity, change))
    if other.factor is None:
        return total
    # ... then its factor to the sum.
    scaled = other.factor / d[:, None]
    gram = other.factor.T @ scaled
    if near is not None:
        cross = near.T @ scaled
        capacity = _identity(near) + near.T @ (near / d[:, None])
        gram = gram - cross.T @ torch.linalg.solve(capacity, cross)
    return total + log_det_ratio(x, gram)


def log1p_ratio(x: float, t: torch.Tensor) -> torch.Tensor:
    """Return log1p(x t) / x, and its limit t at x = 0."""
    return t if x == 0 else torch.log1p(x * t) / x


def log_det_ratio(x: float, matrix: torch.Tensor) -> torch.Tensor:
    """Return log det(I + x A) / x, and its limit trace(A) at x = 0."""
    if abs(x) * float(matrix.detach().norm()) > SERIES_BELOW:
        return torch.linalg.slogdet(_identity(matrix) + x * matrix).logabsdet / x
    square = matrix @ matrix
    total = matrix.diagonal().sum() - x / 2 * square.diagonal().sum()
    total = total + x**2 / 3 * (square * matrix.T).sum()
    return total - x**3 / 4 * (square * square.T).sum()


def _identity(matrix: torch.Tensor) -> torch.Tensor:
    return torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)


def _root(normal: NormalForm) -> torch.Tensor:
    """Rows R with ``R' R`` the covariance."""
    if normal.scale.ndim == 2:
        return normal.scale.T
    own = torch.diag(normal.scale)
    return own if normal.factor is None else torch.cat([own, normal.factor.T])
