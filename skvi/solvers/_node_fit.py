"""Fits at nodes of shared numbers, and where those beside them begin."""

import math
from dataclasses import dataclass
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.divergences._linalg import precision_of
from skvi.solvers._mode import add, factorize
from skvi.targets import SupervisedTarget

__all__ = ["Fit", "Start", "extrapolated"]

#: Mean and precision of a normal.
Start = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Fit:
    """The best normal at a node, and its part of the sum."""

    z: tuple[float, ...]
    target: SupervisedTarget
    normal: NormalForm
    precision: torch.Tensor
    value: float  # log integrand
    gap: float

    @property
    def start(self) -> Start:
        """Where a descent to it goes on."""
        return self.normal.mean, self.precision

    def toward(self, target: SupervisedTarget) -> Start:
        """Start beside it, by the change of the prior."""
        if target.prior is self.target.prior:
            return self.normal.mean, self.precision
        prior = cast(NormalForm, target.prior.as_normal())
        last = precision_of(cast(NormalForm, self.target.prior.as_normal()))
        change, away = precision_of(prior) - last, self.normal.mean - prior.mean
        if self.precision.ndim == 1:
            # Variances do not tell where the mean moves: with more columns than rows
            # it would be many times too far.
            own = change if change.ndim == 1 else change.diagonal()
            return self.normal.mean, self.precision + own
        pull = -change * away if change.ndim == 1 else -change @ away
        precision = add(self.precision, change)
        move = torch.cholesky_solve(pull[:, None], factorize(precision))[:, 0]
        return self.normal.mean + move, precision


def extrapolated(
    z: tuple[float, ...], near: Fit, before: Fit, scales: tuple[bool, ...]
) -> Start:
    """Start at z from two fits: linear in a scale, and a geodesic of the covariance.

    `scales` tells which numbers are scales: others are taken by their logs.
    """
    away = [abs(a - b) for a, b in zip(near.z, before.z, strict=True)]
    k = away.index(max(away))
    at = before.z[k], near.z[k], z[k]
    fraction = (at[2] - at[0]) / (at[1] - at[0])
    lengths = [math.exp(x) for x in at] if scales[k] else at
    along = (lengths[2] - lengths[0]) / (lengths[1] - lengths[0])
    mean = torch.lerp(before.normal.mean, near.normal.mean, along)
    first, second = before.normal.scale, near.normal.scale
    if near.normal.is_diagonal:
        return mean, (first * (second / first) ** fraction).square().reciprocal()
    ratio = torch.linalg.solve_triangular(first, second, upper=False)
    vectors, roots, _ = torch.linalg.svd(ratio)
    inverse = torch.linalg.solve_triangular(
        first.mT, vectors * roots**-fraction, upper=True
    )
    return mean, inverse @ inverse.mT
