"""Quasi-Newton runs in whitened coordinates, for objectives with curved valleys."""

import math
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import torch

from skvi.base import NormalForm
from skvi.solvers._lbfgs import LBFGS

__all__ = ["quasi_newton_run"]

# Steps per run; then the coordinates are whitened again.
STEPS_PER_RUN = 100


class Point(Protocol):
    """A deterministic objective at a normal."""

    normal: NormalForm
    value: float

    def covariance_gradient(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradient in the mean, and twice that in the covariance."""
        ...


AnyPoint = TypeVar("AnyPoint", bound=Point)


def quasi_newton_run(
    evaluate: Callable[[NormalForm], AnyPoint],
    start: AnyPoint,
    mean_root: torch.Tensor,
    tol: float = 0.0,
) -> Iterator[AnyPoint]:
    """Run L-BFGS on a deterministic objective of a normal; yield the best point so far.

    The mean is ``mean + mean_root a``, with a root of the inverse Hessian; the scale is
    ``scale T``, T lower triangular or elementwise, with its diagonal on the log scale.
    It ends where the next step promises no more than `tol`.
    """
    normal = start.normal
    size, diagonal = len(normal.mean), normal.is_diagonal
    rows, columns = torch.tril_indices(size, size, -1, device=normal.mean.device)
    best = start

    def unpack(x: torch.Tensor) -> tuple[NormalForm, torch.Tensor]:
        a, log_d, rest = x[:size], x[size : 2 * size], x[2 * size :]
        shift = mean_root * a if mean_root.ndim == 1 else mean_root @ a
        if diagonal:
            return NormalForm(normal.mean + shift, normal.scale * log_d.exp()), log_d
        factor = torch.diag(log_d.exp())
        factor[rows, columns] = rest
        return NormalForm(normal.mean + shift, normal.scale @ factor), log_d

    def objective(x: torch.Tensor) -> tuple[float, torch.Tensor]:
        nonlocal best
        candidate, log_d = unpack(x)
        point = evaluate(candidate)
        if not math.isfinite(point.value):
            return math.inf, torch.zeros_like(x)
        g_mean, g_cov = point.covariance_gradient()
        g_a = mean_root * g_mean if mean_root.ndim == 1 else mean_root.T @ g_mean
        if diagonal:
            gradient = torch.cat([g_a, g_cov * candidate.variance])
        else:
            g_factor = normal.scale.T @ (g_cov @ candidate.scale)
            g_log = g_factor.diagonal() * log_d.exp()
            gradient = torch.cat([g_a, g_log, g_factor[rows, columns]])
        if point.value <= best.value:
            best = point
        return point.value, gradient

    n_free = 2 * size if diagonal else 2 * size + len(rows)
    state = LBFGS(objective, normal.mean.new_zeros(n_free))
    for _ in range(STEPS_PER_RUN):
        moved = state.step()
        yield best
        if not moved or state.decrement < tol:
            break
