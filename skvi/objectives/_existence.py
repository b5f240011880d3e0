"""Conditions under which the expectation of a power of the weights is finite."""

from typing import Any

import torch

from skvi.base import NormalForm

# A smallest eigenvalue this close to 0, relative to the largest, is inconclusive.
MARGIN = 1e-8


def power_exists(target: Any, posterior: Any, power: float) -> bool | None:
    """Whether ``E_q[w^n]`` is finite for w = p(D, theta) / q(theta); None if unknown.

    For q normal with covariance V, and T the tail precision of the joint density:
    finite if ``n T + (1 - n) / V`` is positive definite, infinite if it has a negative
    eigenvalue. For n from 0 to 1 at most ``Z^n`` (Jensen), for every q.
    """
    if 0 <= power <= 1:
        return True
    found, q = target.tail_precision(), posterior.as_normal()
    if found is None or q is None:
        return None
    tail, is_exact = found
    q = _with_square_scale(q, tail.dtype)
    finite = _is_positive(tail, q, power)
    # A lower bound of T decides one direction: more decay helps positive powers only.
    helps = finite if power > 0 else finite is False
    return finite if is_exact or helps else None


def _with_square_scale(q: NormalForm, dtype: torch.dtype) -> NormalForm:
    """The same normal, with its factor, if any, merged into its scale."""
    scale = q.scale if q.factor is None else torch.linalg.cholesky(q.covariance())
    return NormalForm(q.mean.to(dtype), scale.to(dtype))


def _is_positive(tail: torch.Tensor, q: Any, power: float) -> bool | None:
    """Sign of the smallest eigenvalue of n T + (1 - n) / V; None near 0."""
    if tail.ndim == 1 and q.is_diagonal:
        values = power * tail * q.variance + (1 - power)
        smallest = float(values.min())
        margin = MARGIN * (abs(power) * float((tail * q.variance).max()) + 1)
        return None if abs(smallest) <= margin else smallest > 0
    # In coordinates in which q is a standard normal.
    scale = torch.diag(q.scale) if q.is_diagonal else q.scale
    weighted = tail[:, None] * scale if tail.ndim == 1 else tail @ scale
    matrix = power * (scale.T @ weighted)
    matrix.diagonal().add_(1 - power)
    margin = MARGIN * float(matrix.diagonal().abs().max() + 1)
    matrix.diagonal().sub_(margin)
    if not int(torch.linalg.cholesky_ex(matrix)[1]):
        return True
    matrix.diagonal().add_(2 * margin)
    return False if int(torch.linalg.cholesky_ex(matrix)[1]) else None
