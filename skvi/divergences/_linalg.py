"""Matrices that are stored as (P,) if they are diagonal, else as (P, P)."""

import math

import torch

from skvi.base import NormalForm


def precision_of(normal: NormalForm) -> torch.Tensor:
    """Inverse covariance of a normal; (P, P) also where it is of low rank."""
    if normal.is_diagonal:
        return 1 / normal.variance
    if normal.factor is None:
        return torch.cholesky_inverse(normal.scale)
    mean = normal.mean
    identity = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
    rows = normal.whiten(identity)
    return rows @ rows.T


def mix(a: float, pi: NormalForm, b: float, q: NormalForm) -> torch.Tensor:
    """Return ``a cov(pi) + b cov(q)``."""
    if q.is_diagonal and pi.is_diagonal:
        return a * pi.variance + b * q.variance
    return a * pi.covariance() + b * q.covariance()


def factorize(matrix: torch.Tensor) -> torch.Tensor | None:
    """Lower Cholesky factor (a square root if diagonal), None if there is none."""
    if matrix.ndim == 1:
        return matrix.sqrt() if bool((matrix > 0).all()) else None
    factor, info = torch.linalg.cholesky_ex(matrix)
    return factor if int(info) == 0 else None


def inverse_of(matrix: torch.Tensor) -> torch.Tensor:
    """Inverse of a positive definite matrix, NaN if it is not."""
    if matrix.ndim == 1:
        return 1 / matrix
    factor = factorize(matrix)
    if factor is None:
        return torch.full_like(matrix, math.nan)
    return torch.cholesky_inverse(factor)


def apply(matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Matrix times vector."""
    return matrix * vector if matrix.ndim == 1 else matrix @ vector


def subtract(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Difference of two matrices, full if one of them is."""
    if a.ndim == b.ndim:
        return a - b
    return torch.diag(a) - b if a.ndim == 1 else a - torch.diag(b)


def squared_outer(u: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """``u u'``, or its diagonal where the matrix beside it is diagonal."""
    return u.square() if matrix.ndim == 1 else torch.outer(u, u)
