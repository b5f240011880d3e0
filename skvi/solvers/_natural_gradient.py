"""Damped, accelerated natural gradient for normal posteriors of linear models."""

import math
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.divergences._linalg import precision_of
from skvi.solvers._carried_nodes import CarriedNodes
from skvi.solvers._mode import SINGULAR, start_at_mode
from skvi.solvers._newton import Descent, Place, singularity
from skvi.solvers._nodes import Nodes, PlacedNodes
from skvi.solvers._reduce import solve_reduced
from skvi.solvers._run import (
    Run,
    judge_quadrature,
    known_error,
    missing_for_quadrature,
    refined_value,
    remedy_for,
    unfinished,
)
from skvi.solvers._solution import Solution, State, remaining_gain
from skvi.solvers.base import Problem, Solver, SolverOptions
from skvi.targets import SupervisedTarget
from skvi.targets._numbers import CarriedScale, bound_at, numbers_of
from skvi.targets._supervised import with_design

__all__ = ["AtPlaces", "NaturalGradient"]

# Errors of a bad start above this many nats are no measure of those at the end.
NEGLIGIBLE = 0.1
# Steps whose gain is extrapolated where a prior may be nearly flat: single ones differ.
BLOCK = 6
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
    >>> from skvi.divergences import KLDivergence
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses import LogLoss
    >>> from skvi.objectives import ELBO
    >>> from skvi.posteriors import FullRankNormal
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.priors import Normal
    >>> from skvi.solvers._natural_gradient import NaturalGradient
    >>> from skvi.solvers import Problem, SolverOptions
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(1, fit_intercept=False), torch.ones(2, 1).double()
    >>> prior, y = Normal().build(model.layout), torch.tensor([1.0, 3.0])
    >>> parts = model, GaussianLikelihood(1.0), LogLoss(), prior, X, y
    >>> target = SupervisedTarget(*parts)
    >>> posterior = FullRankNormal().build(model.layout)
    >>> problem = Problem(target, ELBO(), KLDivergence(), posterior, None)
    >>> solution = NaturalGradient().solve(problem, SolverOptions())
    >>> round(solution.value, 4)  # - log p(D): here the posterior is normal
    4.7205
    >>> solution.posterior.as_normal().mean
    tensor([1.3333], dtype=torch.float64)
    """

    name = "natural_gradient"
    continues = True
    _nodes = Nodes

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks; see `Solver.missing`."""
        target = problem.target
        if isinstance(target, SupervisedTarget):
            plain, numbers = numbers_of(target)
            if numbers and problem.divergence.kl_weight is None:
                return "only KL divergences average over an unknown number"
            known = bound_at(plain, numbers, [number.start for number in numbers])
            problem = replace(problem, target=known)
        return missing_for_quadrature(problem)

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit without draws: `value` is exact up to quadrature; see `Solver`."""
        numbers = numbers_of(problem.target)[1]
        if numbers or problem.linear_target.prior.as_normal():
            found = solve_reduced(self.solve, problem, options)
            if found is not None:
                return found
        with torch.inference_mode():
            if numbers:
                is_carried = isinstance(numbers[0], CarriedScale)
                run = CarriedNodes if is_carried else self._nodes
                return run(problem, options).run()
            return _Single(problem, options).run()


class AtPlaces(NaturalGradient):
    """Fit at the places of the nodes of the start, if it has any."""

    _nodes = PlacedNodes


class _Single(Run):
    """A descent that reports its iterations."""

    solver = NaturalGradient.name
    known = {"quadrature_error": None}

    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        super().__init__(problem, options)
        target = with_design(problem.objective.training_target(problem.target))
        if target.hyper.shape[0]:
            with torch.inference_mode(False):  # for derivatives of likelihoods
                target = target.frozen()
        self.problem = replace(problem, target=target)
        self.descent = self._start()
        #: Where the quadrature was refined, and what it gave; the gap at the last time
        #: that its error decided on anything.
        self._refined: tuple[NormalForm | None, float] = (None, math.nan)
        self._resolved_at = 0.0

    @property
    def value(self) -> float:
        return self.place.value

    @property
    def place(self) -> Place:
        """Where the descent is."""
        return cast(Place, self.descent.place(0))

    def state(self) -> State:
        with torch.inference_mode(False), torch.no_grad():  # for graphs of others
            posterior = self.given.posterior.near(self.place.normal)
        return State(posterior, self.given.target)

    def _start(self) -> Descent:
        """At the last posterior, or near the mode."""
        target, posterior = self.problem.linear_target, self.problem.posterior
        if self.options.warm_start and (normal := posterior.as_normal()) is not None:
            descent = self._from(normal.mean, precision_of(normal))
            if descent.place(0) is not None:
                return descent
        descent = self._from(*start_at_mode(target, posterior.is_diagonal))
        if descent.place(0) is None:
            raise ValueError(SINGULAR)
        return descent

    def _from(self, mean: torch.Tensor, precision: torch.Tensor) -> Descent:
        target, divergence = self.problem.linear_target, self.problem.divergence
        return Descent([target], divergence, mean[None], precision[None])

    def improve(self) -> Solution:
        while self.may_go_on:
            if self.history and self._is_done():
                break
            self.descent.slack = self._resolution
            self.descent.step()
            self.report()
            if not self.descent.may_go_on(0):  # to the precision of floats
                break
        return self._finish(self._gap())

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
        gap = self.place.gap
        if self.problem.linear_target.prior.as_normal() is not None:
            return gap
        last = self.history[-2 * BLOCK - 1 :: BLOCK]
        values = last if len(last) == 3 else self.history[-3:]
        gains = [max(a - b, 0.0) for a, b in pairwise(values)]
        return max(gap, remaining_gain(gains))

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
        if self.problem.linear_target.predictor.n_outputs == 1:
            return 0.0
        known = known_error(self.problem.linear_target)
        if known < RESOLVED * self.options.tol:
            return 2 * known
        self._resolved_at = self._gap()
        return 2 * abs(self._refined_value() - self.value)

    def _finish(self, gap: float) -> Solution:
        normal, target = self.place.normal, self.problem.linear_target
        several = target.predictor.n_outputs > 1
        fine, error = self.value, known_error(target)
        if not (several and error < RESOLVED * self.options.tol):
            fine = self._refined_value()
            error = abs(fine - self.value)
        message, converged = "", gap < self._tolerance
        singular = singularity(self.place) > 1e-3
        if self.stopped:
            pass  # by the user, who knows about it
        elif singular:
            message, converged = f"the result cannot be trusted: {SINGULAR}", False
        elif not converged:
            remedy = remedy_for(self.problem, normal)
            message = unfinished(len(self.history), gap, remedy)
        else:
            message = judge_quadrature(error, target)
        found = {"gap": gap, "quadrature_error": error}
        solution = self.solution(converged, message, found)
        return replace(solution, value=fine) if several else solution

    def _refined_value(self) -> float:
        normal, (where, value) = self.place.normal, self._refined
        if where is not normal:
            prior = self.problem.linear_target.prior
            terms = self.problem.divergence.terms(normal, prior)
            value = refined_value(self.problem, normal, float(terms.value))
            self._refined = normal, value
        return value
