"""Damped, accelerated natural gradient for normal posteriors of linear models."""

import math
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import torch

from skvi.solvers._anderson import Anderson
from skvi.solvers._mode import SINGULAR, add, alternate
from skvi.solvers._nodes import Nodes
from skvi.solvers._normal_point import (
    NormalPoint,
    point_at,
    point_of,
    singularity,
)
from skvi.solvers._reduce import solve_reduced
from skvi.solvers._run import (
    Run,
    judge_quadrature,
    missing_for_quadrature,
    refined_value,
    remedy_for,
    unfinished,
)
from skvi.solvers._solution import Solution, State, remaining_gain
from skvi.solvers._unknown_scale import find_start
from skvi.solvers.base import Problem, Solver, SolverOptions
from skvi.targets import SupervisedTarget
from skvi.targets._numbers import numbers_of
from skvi.targets._supervised import with_design

__all__ = ["NaturalGradient"]

# Least fraction of the precision's step where full ones overshoot, and its growth.
LEAST_SHARE, GROWTH = 0.3, 1.1
# Below about this many nats of skewness the curvature at the mode is as good a start.
NEGLIGIBLE = 0.1
# Steps whose gain is extrapolated where a prior may be nearly flat: single ones differ.
BLOCK = 6
# Steps after which the acceleration is in the metric of the present point.
RENEWED = 5
# Gap to reach as a fraction of the error of the quadrature.
RESOLVED = 0.25


class NaturalGradient(Solver):
    """Minimize ``E_q[loss] + D(q || prior)`` without noise.

    f_i is normal under q, so that every E_q[loss_i] is a one-dimensional
    integral. With its derivatives in the mean and the variance of f_i, one
    iteration sets

        precision <- precision + rho (A' diag(E loss'') A + 2 dD/dcov) / c,
        mean      <- mean - rho (A' diag(E loss'') A + d2D/dmean2)^-1 gradient,

    which for KL is the natural gradient (c = 1). Anderson acceleration makes the linear
    convergence superlinear; a step that does not lower the objective is repeated
    without it, and then halved, so that the iteration cannot oscillate if the data are
    nearly separable. Divergences that hardly penalize width have curved valleys, in
    which steps are short: such a fit ends at `max_iter`, and says so.

    Examples
    --------
    >>> import torch
    >>> from skvi.divergences import KL
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses import LogLoss
    >>> from skvi.objectives import ELBO
    >>> from skvi.posteriors import FullRankNormal
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.priors import Normal
    >>> from skvi.solvers import NaturalGradient, Problem, SolverOptions
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(1, fit_intercept=False), torch.ones(2, 1).double()
    >>> prior, y = Normal().build(model.layout), torch.tensor([1.0, 3.0])
    >>> target = SupervisedTarget(model, GaussianLikelihood(), LogLoss(), prior, X, y)
    >>> posterior = FullRankNormal().build(model.layout)
    >>> problem = Problem(target, ELBO(), KL(), posterior, None)
    >>> solution = NaturalGradient().solve(problem, SolverOptions())
    >>> round(solution.value, 4)  # - log p(D): here the posterior is normal
    4.7205
    >>> solution.posterior.as_normal().mean
    tensor([1.3333], dtype=torch.float64)
    """

    name = "natural_gradient"
    continues = True

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks; see `Solver.missing`."""
        target = problem.target
        if isinstance(target, SupervisedTarget):
            plain, numbers = numbers_of(target)
            if numbers and problem.divergence.kl_weight is None:
                return "only KL divergences average over an unknown number"
            for number in numbers:
                plain = number.bind(plain, number.start)
            problem = replace(problem, target=plain)
        return missing_for_quadrature(problem)

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit without draws: `value` is exact up to quadrature; see `Solver`."""
        numbers = numbers_of(problem.target)[1]
        is_plain = not problem.target.is_extended
        if is_plain and (numbers or problem.linear_target.prior.as_normal()):
            found = solve_reduced(self.solve, problem, options)
            if found is not None:
                return found
        if numbers:
            with torch.no_grad():
                return Nodes(problem, options).run()
        with torch.inference_mode():
            return _Iteration(problem, options).run()


class _Iteration(Run):
    solver = NaturalGradient.name
    known = {"quadrature_error": None}

    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        super().__init__(problem, options)
        target = with_design(problem.objective.training_target(problem.target))
        if target.hyper.shape[0]:
            with torch.inference_mode(False):  # for derivatives of likelihoods
                target = target.frozen()
        self.problem = replace(problem, target=target)
        self.point = self._start()
        self.anderson = Anderson(self.point.normal.scale)
        #: Where the quadrature was refined, and what it gave; the gap at the last time
        #: that its error decided on anything.
        self._refined: tuple[NormalPoint | None, float] = (None, math.nan)
        self._resolved_at = 0.0
        self.share = 1.0

    @property
    def value(self) -> float:
        return self.point.value

    def state(self) -> State:
        with torch.inference_mode(False):  # for graphs of other solvers
            posterior = self.given.posterior.near(self.point.normal)
        return State(posterior, self.given.target)

    def _start(self) -> NormalPoint:
        target, posterior = self.problem.linear_target, self.problem.posterior
        if self.options.warm_start and (normal := posterior.as_normal()) is not None:
            point = point_of(self.problem, normal)
            if math.isfinite(point.value):
                return point
        prior, mean, curvature = find_start(target, posterior.is_diagonal)
        if self.problem.posterior.is_diagonal:
            gram = target.predictor.gram_diagonal(target.X, curvature)
        else:
            gram = target.predictor.gram(target.X, curvature)
        precision = add(gram, 1 / prior.variance)
        skewness = target.layout.size**2 / target.n_rows
        if precision.ndim == 2 and (curvature.ndim == 3 or skewness > NEGLIGIBLE):
            mean, precision = alternate(target, prior, mean, precision)
        point = point_at(self.problem, mean, precision)
        if not math.isfinite(point.value):
            raise ValueError(SINGULAR)
        return point

    def improve(self) -> Solution:
        while self.may_go_on:
            if self.history and self._is_done():
                break
            moved = self._iterate()
            self.report()
            if not moved:  # to the precision of floats
                break
        return self._finish(self._gap())

    @property
    def _is_normal(self) -> bool:
        """Whether the prior is normal, perhaps beside an unknown scale."""
        prior = self.problem.linear_target.prior
        return prior.as_normal() is not None or bool(prior.n_unknown_scales)

    def _is_done(self) -> bool:
        """Whether the gap is small, not only relative to errors of a bad start."""
        if self._gap() >= self._tolerance:
            return False
        if self._resolved_at > NEGLIGIBLE:
            self.__dict__.pop("_resolution", None)
        return self._gap() < self._tolerance

    def _gap(self) -> float:
        """Nats to the optimum at this point, by a quadratic model.

        At least what the last steps promise, if the prior may be nearly flat.
        """
        gap = self.point.directions[2]
        if self._is_normal:
            return gap
        last = self.history[-2 * BLOCK - 1 :: BLOCK]
        values = last if len(last) == 3 else self.history[-3:]
        gains = [max(a - b, 0.0) for a, b in pairwise(values)]
        return max(gap, remaining_gain(gains))

    def _iterate(self) -> bool:
        """Take a step; whether one lowers the objective."""
        point, mean = self.point, self.point.mean
        step, move, _ = point.directions
        if self.history and len(self.history) % RENEWED == 0:
            self.anderson.renew(point.normal.scale)
        self.anderson.observe(mean, point.precision, step, move, self.share)
        proposal = self.anderson.propose()
        if proposal is not None:
            trial = point_at(self.problem, *proposal)
            if trial.value < point.value + self._resolution:
                return self._accept(trial, 1.0)
            self.anderson.forget()
        rho, slack = 1.0, self._slack()
        while rho > 1e-3:
            precision = point.precision + rho * self.share * move
            trial = point_at(self.problem, mean + rho * step, precision)
            if trial.value <= point.value + slack:
                return self._accept(trial, rho)
            rho /= 2
        return False

    def _accept(self, trial: NormalPoint, rho: float) -> bool:
        """Move: True; and remember by how much steps overshoot."""
        self.point = trial
        share = self.share * (GROWTH if rho == 1 else rho)
        self.share = min(1.0, max(LEAST_SHARE, share))
        return True

    def _slack(self) -> float:
        """Insignificant increase of the objective: rounding, quadrature."""
        return self._rounding + self._resolution

    @property
    def _rounding(self) -> float:
        return 1e-13 * abs(self.point.value)

    @property
    def _tolerance(self) -> float:
        """Gap to reach: the requested one, or what the quadrature can resolve."""
        return max(self.options.tol, RESOLVED * self._resolution)

    @cached_property
    def _resolution(self) -> float:
        """Error of the quadrature if a loss depends on several f, in nats.

        Values and derivatives have separate errors: the zero of the gradient need not
        be the lowest value. With a single f the error is far below the tolerance.
        """
        point = self.point
        if point.curvature.ndim == 1:
            return 0.0
        if self._known_error < RESOLVED * self.options.tol:
            return 2 * self._known_error
        self._resolved_at = self._gap()
        return 2 * abs(self._refined_value() - point.value)

    @property
    def _known_error(self) -> float:
        """Error of the quadrature in nats that needs no finer rule."""
        target, n_rows = self.problem.linear_target, len(self.point.curvature)
        error = target.likelihood.row_error if target.loss.is_log_loss else None
        return math.inf if error is None else error * n_rows

    def _finish(self, gap: float) -> Solution:
        point = self.point
        several = point.curvature.ndim == 3
        if several and self._known_error < RESOLVED * self.options.tol:
            fine, error = point.value, self._known_error
        else:
            fine = self._refined_value()
            error = abs(fine - point.value)
        message, converged = "", gap < self._tolerance
        singular = singularity(point) > 1e-3
        if self.stopped:
            pass  # by the user, who knows about it
        elif singular:
            message, converged = f"the result cannot be trusted: {SINGULAR}", False
        elif not converged:
            remedy = remedy_for(self.problem, point.normal)
            message = unfinished(len(self.history), gap, remedy)
        else:
            message = judge_quadrature(error, point.curvature)
        found = {"gap": gap, "quadrature_error": error}
        solution = self.solution(converged, message, found)
        return replace(solution, value=fine) if several else solution

    def _refined_value(self) -> float:
        point, (where, value) = self.point, self._refined
        if point is not where:
            divergence = float(point.terms.value)
            value = refined_value(self.problem, point.normal, divergence)
            self._refined = point, value
        return value
