"""Coordinate ascent for linear regression with conjugate priors."""

import itertools
import math
from collections.abc import Iterator
from typing import cast

import numpy as np
import torch

from skvi.posteriors import Posterior
from skvi.solvers._conjugate import Conjugate, Point
from skvi.solvers._run import Run, missing_for_expectations, unfinished
from skvi.solvers._solution import FLOOR_MESSAGE, Solution, State, remaining_gain
from skvi.solvers.base import Problem, Solver, SolverOptions
from skvi.targets._precisions import ConjugateForm
from skvi.utils._device import CPU

__all__ = ["CoordinateAscent"]

# Ascents from several starts: tolerance in nats, and the largest number of updates.
ROUGH, MAX_ROUGH = 0.5, 30


class CoordinateAscent(Solver):
    """Closed-form updates of q(coef) q(noise precision) q(coef precisions).

    Given the mean precisions, the normal q(coef) is known, full-rank or factorized;
    given its moments, so are the Gamma distributions of the precisions; learned ones
    move to the value that maximizes the ELBO. No update lowers the ELBO, up to
    rounding. After one decomposition of the features an update costs O(d) if all
    coefficients share a precision, and a Cholesky factorization otherwise.
    Extrapolations of the precisions speed it up, and are undone if the ELBO would
    decrease.

    If only the coefficients are unknown, one update gives the exact posterior, and the
    value is minus the exact log evidence (for a full-rank q).

    References
    ----------
    *Variational inference*, lecture notes, section 10.3, extended to unknown noise and
    to one precision for each coefficient; the printed ``E[w' w]`` lacks a trace.
    Extrapolation: Varadhan and Roland (2008), *SQUAREM*.

    Examples
    --------
    >>> from skvi.solvers import CoordinateAscent
    >>> CoordinateAscent.name
    'coordinate_ascent'
    """

    name = "coordinate_ascent"

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks; see `Solver.missing`."""
        missing = missing_for_expectations(problem)
        if missing:
            return missing
        if not problem.divergence.is_standard:
            return f"the model is conjugate under KL(), not under {problem.divergence}"
        if not _is_conjugate(problem.posterior):
            return "it needs a factorized or full-rank normal posterior"
        if problem.target.conjugate_form() is None:
            return (
                "the model is not a linear regression with conjugate priors (and at "
                "most 3000 columns or rows)"
            )
        return ""

    @torch.no_grad()
    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit: `value` is minus the ELBO, exact, with all constants; see `Solver`."""
        return _Ascent(problem, options).run()


class _Ascent(Run):
    solver = CoordinateAscent.name

    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        super().__init__(problem, options)
        form = cast(ConjugateForm, problem.target.conjugate_form())
        self.form = form.to(CPU)  # few elements, by numpy
        is_diagonal = problem.posterior.part("coef").is_diagonal
        self.model = Conjugate(self.form, is_diagonal)
        starts = [self._last()] if options.warm_start else self.model.starts()
        self.starts = [self.model.evaluate(x) for x in starts]
        self.point = _best(self.starts)

    @property
    def value(self) -> float:
        return -self.point.elbo

    def improve(self) -> Solution:
        if len(self.starts) > 1:
            self.point = _best([self._approach(point) for point in self.starts])
        gap = self._iterate()
        converged, message = gap < self.options.tol, ""
        if not (converged or self.stopped):
            message = unfinished(len(self.history), gap)
        if not message and self.model.is_at_limit(self.point):
            message, converged = FLOOR_MESSAGE, False
        return self.solution(converged, message, {"gap": gap})

    def _approach(self, point: Point) -> Point:
        """Go from a start close to its optimum."""
        gains: list[float] = []
        n_steps = min(MAX_ROUGH, self.options.max_iter)
        for after in itertools.islice(self._steps(point), n_steps):
            gains.append(max(after.elbo - point.elbo, 0.0))
            point = after
            if remaining_gain(gains) < ROUGH:
                break
        return point

    def _last(self) -> np.ndarray:
        """Precisions of the last fit."""
        problem, parts = self.given, []
        if self.form.noise.is_learned:
            parts.append(-2 * problem.target.hyper.cpu().numpy())
        for name in problem.target.layout:
            gamma = problem.posterior.part(name).as_gamma()
            if gamma is not None:
                parts.append(gamma.mean.log().cpu().numpy())
        return np.concatenate(parts) if parts else np.zeros(0)

    def _iterate(self) -> float:
        """Improve the point until convergence; return the remaining gain in nats."""
        if not self.model.n_free:
            self.report()
            return 0.0
        gains: list[float] = []
        steps = self._steps(self.point)
        while self.may_go_on:
            before, self.point = self.point, next(steps)
            gains.append(max(self.point.elbo - before.elbo, 0.0))
            self.report()
            if remaining_gain(gains) < self.options.tol:
                break
        return remaining_gain(gains)

    def _steps(self, point: Point) -> Iterator[Point]:
        """Points after each update; every second one is extrapolated."""
        for extrapolates in itertools.cycle((False, True)):
            before, point = point, self.model.evaluate(point.next)
            if extrapolates:
                point = self._extrapolate(before, point)
            yield point

    def _extrapolate(self, before: Point, point: Point) -> Point:
        """Extrapolate the last two steps, unless the ELBO decreases."""
        first, second = point.x - before.x, point.next - point.x
        change = second - first
        if not change.any():
            return point
        length = max(math.sqrt(first @ first / (change @ change)), 1.0)
        x = self.model.inside(before.x + 2 * length * first + length**2 * change)
        trial = self.model.evaluate(x)
        return trial if trial.elbo >= point.elbo else point

    def state(self) -> State:
        """Posterior and learned hyperparameters at the point."""
        (posterior, target), point = self.given.state, self.point
        gammas, parts = self.model.gammas(point), {}
        for names, part in posterior.parts.items():
            if names[0] in gammas:
                parts[names] = part.near_gamma(gammas[names[0]])
            else:
                parts[names] = part.near(self.model.normal(point, list(names)))
        if self.form.noise.is_learned:
            noise = self.model.learned_noise(point)
            target = target.at(noise.to(target.hyper.device))
        return State(posterior.with_parts(parts), target)


def _best(points: list[Point]) -> Point:
    return max(points, key=lambda point: point.elbo)


def _is_conjugate(posterior: Posterior) -> bool:
    """Whether every part has closed-form updates."""
    return all(_has_updates(*pair) for pair in posterior.parts.items())


def _has_updates(names: tuple[str, ...], part: Posterior) -> bool:
    """Whether a part is Gamma for a single block, or a normal without a factor."""
    normal = part.as_normal()
    if normal is None:
        return part.as_gamma() is not None and len(names) == 1
    return normal.factor is None
