"""Fits at nodes of an unknown number of the likelihood, and of a scale of the prior.

Beside a dispersion no normal is near the posterior of few rows: the log of the number
is skewed, and the coefficients are as certain as it is small. At a known number, and a
known scale, the fit is that of every other likelihood. The nodes are those of a grid
with equal steps, which grows at each edge until the density there is negligible.
"""

import math
from dataclasses import dataclass, replace
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.base._gamma_form import GammaForm
from skvi.posteriors import Posterior
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._scale_nodes import FALL, MAX_ITER, MAX_NODES, STEP, slope_of_scale
from skvi.solvers.base import Problem, SolverOptions
from skvi.targets import SupervisedTarget
from skvi.targets._lifted import NodeGrid
from skvi.targets._precisions import UnknownNumber
from skvi.targets._supervised import with_prior

__all__ = ["Axis", "grid_of_fits"]

# Longest step of the log of the number.
LONGEST = 1.25


@dataclass(frozen=True)
class Axis:
    """Where the nodes of a coordinate begin, and their distance."""

    middle: float
    step: float

    @staticmethod
    def of_number(gamma: GammaForm) -> "Axis":
        """That of the log of a number with about this distribution."""
        mean = float(torch.digamma(gamma.shape) - gamma.rate.log())
        std = float(torch.polygamma(1, gamma.shape)) ** 0.5
        return Axis(mean, min(STEP * std, LONGEST))

    def at(self, index: int) -> float:
        """The node of an index."""
        return self.middle + index * self.step


def grid_of_fits(
    problem: Problem,
    number: UnknownNumber,
    numbers: Axis,
    scales: Axis | None,
    options: SolverOptions,
) -> NodeGrid:
    """Fit at all likely nodes.

    Parameters
    ----------
    problem : Problem
        Its target's likelihood learns the number; its posterior is the start.
    number : UnknownNumber
    numbers : Axis
    scales : Axis or None
        None where the scale is known.
    options : SolverOptions
        Of each fit.

    Returns
    -------
    NodeGrid
    """
    return _Grid(problem, number, (scales, numbers), options).grown().stacked()


@dataclass(frozen=True, eq=False)
class _Fit:
    posterior: Posterior
    value: float
    by_scale: float
    by_number: float


class _Grid:
    """Fits by their indices of scale and number."""

    def __init__(
        self,
        problem: Problem,
        number: UnknownNumber,
        axes: tuple[Axis | None, Axis],
        options: SolverOptions,
    ) -> None:
        self.problem, self.number, self.axes = problem, number, axes
        self.options = replace(options, max_iter=MAX_ITER, warm_start=True)
        self.fits: dict[tuple[int, int], _Fit] = {}
        #: First and last index of each axis.
        self.ends = [[0, 0], [0, 0]]

    def grown(self) -> "_Grid":
        """Grow at each edge until it is far below the top."""
        self.fits[0, 0] = self._fit((0, 0), self.problem.posterior)
        edges = [(axis, side) for axis in (0, 1) for side in (0, 1) if self.axes[axis]]
        while edges:
            edges = [edge for edge in edges if self._grow(*edge)]
        return self

    def _grow(self, axis: int, side: int) -> bool:
        """Add a line of nodes, unless an edge is negligible."""
        end, width = self.ends[axis][side], self.ends[axis][1] - self.ends[axis][0]
        top = max(fit.value for fit in self.fits.values())
        edge = max(self.fits[i].value for i in self._line(axis, end))
        if width and (edge < top - FALL or width >= MAX_NODES):
            return False
        after = end + (1 if side else -1)
        for old, new in zip(
            self._line(axis, end), self._line(axis, after), strict=True
        ):
            self.fits[new] = self._fit(new, self.fits[old].posterior)
        self.ends[axis][side] = after
        return True

    def _line(self, axis: int, index: int) -> list[tuple[int, int]]:
        """Indices of all nodes with this one of an axis."""
        low, high = self.ends[1 - axis]
        others = range(low, high + 1)
        return [(index, i) if axis == 0 else (i, index) for i in others]

    def _fit(self, index: tuple[int, int], start: Posterior) -> _Fit:
        """The best posterior at a node; slopes by the envelope theorem."""
        target = cast(SupervisedTarget, self.problem.target)
        log_scale = None if self.axes[0] is None else self.axes[0].at(index[0])
        place = target.hyper.new_tensor([self.axes[1].at(index[1])])
        prior, value = target.prior, float(self.number.log_density(place))
        if log_scale is not None:
            z = place.new_tensor(log_scale)
            value += float(prior.log_density_of_scale(z))
            target = with_prior(target, prior.given_scale(math.exp(log_scale)))
        known = target.at(self.number.power * place).frozen()
        problem = replace(self.problem, target=known, posterior=start)
        found = NaturalGradient().solve(problem, self.options)
        found.raise_interrupt()
        normal = cast(NormalForm, found.posterior.as_normal())
        by_scale = 0.0
        if log_scale is not None:
            by_scale = slope_of_scale(prior, normal, log_scale)
        by_number = self._slope(target, normal, place)
        return _Fit(found.posterior, value - found.value, by_scale, by_number)

    def _slope(
        self, target: SupervisedTarget, normal: NormalForm, place: torch.Tensor
    ) -> float:
        with torch.enable_grad():
            leaf = place.clone().requires_grad_()
            loss = target.at(self.number.power * leaf).expected_loss(normal)
            value = self.number.log_density(leaf).sum() - loss
            (slope,) = torch.autograd.grad(value, leaf)
        return float(slope)

    def stacked(self) -> NodeGrid:
        """All nodes."""
        (first, last), (low, high) = self.ends
        rows, columns = range(first, last + 1), range(low, high + 1)
        fits = [self.fits[i, j] for i in rows for j in columns]
        like = self.problem.target.hyper.new_tensor

        def table(name: str) -> torch.Tensor:
            return like([getattr(f, name) for f in fits]).reshape(len(rows), -1)

        scales, numbers = self.axes
        return NodeGrid(
            [cast(NormalForm, fit.posterior.as_normal()) for fit in fits],
            table("value"),
            None if scales is None else like([scales.at(i) for i in rows]),
            table("by_scale"),
            like([numbers.at(j) for j in columns]),
            table("by_number"),
        )
