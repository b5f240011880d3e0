"""The likely scales of a prior, on a coarse grid: where nodes of the scale begin.

A valley does not hide a scale from a grid of the whole range. Its values are those of
losses that are quadratic around a mode: first around one, then around that at each top
of the integrand.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.solvers._mode import DENSE_LIMIT, add, factorize, find_mode
from skvi.targets import SupervisedTarget
from skvi.targets._numbers import Scale
from skvi.targets._row_terms import terms_at

__all__ = ["ScaleGrid", "Top"]

# Most points of the grid, and how far it goes beyond the scales at which data and prior
# weigh the same for some coefficient.
MAX_POINTS, BEYOND = 24, (1.0, 3.0)
# Most grids to the end of one top.
MAX_GRIDS = 30


class Top(NamedTuple):
    """A log scale at which the integrand has a maximum."""

    value: float  # log integrand
    z: float
    mode: torch.Tensor


@dataclass(frozen=True, eq=False)
class ScaleGrid:
    """Log integrands of one scale by quadratic losses, beside other numbers."""

    number: Scale
    target_at: Callable[[float], SupervisedTarget]
    weight: float  # of the divergence
    is_diagonal: bool

    def likely(self, start: float, mode: torch.Tensor | None) -> list[Top]:
        """Tops of the integrand, the highest first; from a log scale and a mode."""
        found = []
        for top in self._tops(start, mode):
            z = start
            for _ in range(MAX_GRIDS):
                change, z = top.z - z, top.z
                if abs(change) < 0.5:
                    break
                nearby = self._tops(z, top.mode)
                top = min(nearby, key=lambda other: abs(other.z - z))
            found.append(Top(top.value, z, top.mode))
        return sorted(found, key=lambda top: -top.value)

    def _tops(self, z: float, start: torch.Tensor | None) -> list[Top]:
        """Maxima by the losses around the mode at z."""
        target = self.target_at(z)
        mode, h = find_mode(target, self._prior(z), start=start)
        grid, values = self._values(target, z, mode, h)
        found = []
        for i, value in enumerate(values):
            if value < max(values[max(i - 1, 0) : i + 2]):
                continue
            place = grid[i]
            if 0 < i < len(grid) - 1:
                a, b, c = values[i - 1 : i + 2]
                if (bend := a - 2 * b + c) < 0:
                    place += 0.5 * (a - c) / bend * (grid[1] - grid[0])
            found.append(Top(value, place, mode))
        return found

    def _prior(self, z: float) -> NormalForm:
        return self.number.prior.given_scale(math.exp(z)).as_normal()

    def _range(self, diagonal: torch.Tensor) -> list[float]:
        """A grid, by the information of the rows on each coefficient."""
        weights = self.number.weights
        informed = (weights > 0) & (diagonal > 1e-16 * diagonal.max())
        ratio = (diagonal / weights)[informed]
        low, high = (-BEYOND[0], BEYOND[1])
        if len(ratio):
            low -= 0.5 * math.log(float(ratio.max()))
            high -= 0.5 * math.log(float(ratio.min()))
        low, high = min(low, -1.0), max(high, 1.0)
        return np.linspace(
            low, high, min(MAX_POINTS, math.ceil(high - low) + 1)
        ).tolist()

    def _values(
        self, target: SupervisedTarget, z: float, mode: torch.Tensor, h: torch.Tensor
    ) -> tuple[list[float], list[float]]:
        """Log scales, and the log integrand there."""
        predictor, X = target.predictor, target.X
        is_full = not self.is_diagonal and len(mode) <= DENSE_LIMIT
        gram = predictor.gram(X, h) if is_full else predictor.gram_diagonal(X, h)
        grid = self._range(gram.diagonal() if is_full else gram)
        prior = self._prior(z)
        gradient = -(mode - prior.mean) / prior.variance  # of the rows
        right = (gram @ mode if is_full else gram * mode) - gradient
        values, at_mode = [], terms_at(target, mode)[0]
        for place in grid:
            own = self._prior(place)
            flat = 1 / own.variance
            precision = add(gram, flat)
            b = right + flat * own.mean
            if is_full:
                root = factorize(precision)
                theta = torch.cholesky_solve(b[:, None], root)[:, 0]
                log_det = 2 * root.diagonal().log().sum()
            else:
                theta, log_det = b / precision, precision.log().sum()
            away, beside = theta - mode, theta - own.mean
            curved = gram @ away if is_full else gram * away
            loss = at_mode + gradient @ away + 0.5 * (away @ curved)
            loss = loss + 0.5 * (beside.square() @ flat + log_det - flat.log().sum())
            values.append(self.number.log_density(place) - float(loss) / self.weight)
        return grid, values
