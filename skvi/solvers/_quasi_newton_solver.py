"""Quasi-Newton minimization without noise, for normals of every shape."""

import math
from dataclasses import replace
from functools import partial
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.solvers._coordinates import Coordinates, coordinates_of
from skvi.solvers._curvature import Curvature, curvature_of, rank_of, starting_normal
from skvi.solvers._lbfgs import LBFGS
from skvi.solvers._mode import SINGULAR, convex_part
from skvi.solvers._run import (
    Run,
    judge_quadrature,
    missing_for_quadrature,
    refined_value,
    remedy_for,
    unfinished,
)
from skvi.solvers._solution import Solution, State
from skvi.solvers._unknown_scale import find_start, implied_scale
from skvi.solvers.base import Problem, Solver, SolverOptions
from skvi.targets._supervised import with_design

__all__ = ["QuasiNewton"]

# L-BFGS steps that count as one iteration.
STEPS_PER_ITER = 10
# Iterations after which the coordinates are whitened again: the curvature of the losses
# is then stable.
WHITENINGS = (1, 4)
# Ratio of the gains of successive iterations assumed in the estimate of the gap: the
# last steps for a low rank are slower than those before them.
FASTEST, SLOWEST = 0.8, 0.95


class QuasiNewton(Solver):
    """Minimize ``E_q[loss] + D(q || prior)`` by L-BFGS, without noise.

    For a normal q of any shape, mainly of low rank, for which natural gradients do not
    apply. As in `NaturalGradient` every E_q[loss_i] is a one-dimensional integral; here
    the divergence needs its closed form only, which is differentiated automatically.

    It starts at the mode, with the curvature C there: unique standard deviations and a
    factor along the soft directions of C, from a matrix of size P or n, whichever is
    smaller, or from a few products if both are large. The mean and the factor move in
    coordinates in which C is the identity. Ten steps are one iteration. No step is
    accepted at which the divergence is infinite.

    The reported gap is the sum of later gains, extrapolated from the decrease of the
    last ones. The objective of a low rank need not be convex: the gap is to a local
    optimum.

    Examples
    --------
    >>> import torch
    >>> from skvi.divergences import KL
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses import LogLoss
    >>> from skvi.objectives import ELBO
    >>> from skvi.posteriors import LowRankNormal
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.priors import Normal
    >>> from skvi.solvers import Problem, QuasiNewton, SolverOptions
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(2), torch.eye(2).double()
    >>> prior, y = Normal().build(model.layout), torch.tensor([1.0, 3.0])
    >>> target = SupervisedTarget(model, GaussianLikelihood(), LogLoss(), prior, X, y)
    >>> posterior = LowRankNormal(rank=1).build(model.layout)
    >>> problem = Problem(target, ELBO(), KL(), posterior, None)
    >>> solution = QuasiNewton().solve(problem, SolverOptions())
    >>> solution.converged, round(solution.value, 2)  # - log p(D): rank 1 suffices
    (True, 4.38)
    >>> solution.posterior.as_normal().mean.round(decimals=2)
    tensor([0.0000, 1.0000, 1.0000], dtype=torch.float64)
    """

    name = "lbfgs"
    continues = True

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks; see `Solver.missing`."""
        return missing_for_quadrature(problem)

    @torch.no_grad()
    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit without draws: `value` is exact but for quadrature; see `Solver`."""
        return _Run(problem, options).run()


class _Run(Run):
    solver = QuasiNewton.name
    known = {"quadrature_error": None}

    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        super().__init__(problem, options)
        target = problem.objective.training_target(problem.linear_target)
        self.target = with_design(target)
        self.problem = replace(problem, target=self.target)
        self.shape = cast(NormalForm, problem.posterior.as_normal())
        self.rank = rank_of(self.shape)
        self.stalled = False
        self._begin()

    def _begin(self) -> None:
        """Start at the state of the posterior, or near the mode."""
        target, normal = self.target, self.shape
        if self.options.warm_start:
            if math.isfinite(self._evaluate_normal(normal)[0]):
                h = convex_part(target, target.expected_loss_terms(normal)[2])
                return self._whiten(normal, h)
        prior, mean, h = find_start(target, normal.is_diagonal)
        curvature = curvature_of(target, h, 1 / prior.variance, self.rank)
        self._restart(starting_normal(mean, curvature, self.shape), curvature)
        if not math.isfinite(self.lbfgs.value):
            raise ValueError(SINGULAR)
        return None

    def _whiten(self, normal: NormalForm, h: torch.Tensor) -> None:
        prior = self.target.prior
        if prior.n_unknown_scales == 1:
            prior = prior.given_scale(implied_scale(prior, normal))
        precision = 1 / prior.matching_normal().variance
        curvature = curvature_of(self.target, h, precision, self.rank)
        self._restart(normal, curvature)

    def _restart(self, normal: NormalForm, curvature: Curvature) -> None:
        coordinates = coordinates_of(normal, curvature)
        start = normal.mean.new_zeros(coordinates.n_free, dtype=torch.float64)
        lbfgs = LBFGS(partial(self._evaluate, coordinates), start)
        # Together: Ctrl-C may come between any two statements.
        self.place = coordinates, lbfgs

    @property
    def lbfgs(self) -> LBFGS:
        return self.place[1]

    @property
    def value(self) -> float:
        return self.lbfgs.value

    @property
    def normal(self) -> NormalForm:
        coordinates, lbfgs = self.place
        return coordinates.normal(lbfgs.x)

    def _evaluate(
        self, coordinates: Coordinates, x: torch.Tensor
    ) -> tuple[float, torch.Tensor]:
        value, gradients = self._evaluate_normal(coordinates.normal(x))
        if not math.isfinite(value):
            return math.inf, torch.zeros_like(x)
        gradient = coordinates.gradient(x, gradients)
        if not bool(torch.isfinite(gradient).all()):
            return math.inf, torch.zeros_like(x)
        return value, gradient

    def _evaluate_normal(
        self, normal: NormalForm
    ) -> tuple[float, tuple[torch.Tensor, ...]]:
        """The objective, ``inf`` outside its range, and its gradients."""
        parts = [normal.mean, normal.scale]
        parts += [] if normal.factor is None else [normal.factor]
        divergence, target = self.problem.divergence, self.target
        with torch.enable_grad():
            leaves = [part.detach().clone().requires_grad_() for part in parts]
            q = NormalForm(*leaves)
            try:
                value = divergence.closed_form(q, target.prior)
            except torch.linalg.LinAlgError:  # a line search that went too far
                return math.inf, ()
            if not math.isfinite(float(value.detach())):
                return math.inf, ()
            value = value + target.expected_loss(q)
            gradients = torch.autograd.grad(value, leaves)
        return float(value.detach()), gradients

    def improve(self) -> Solution:
        while self.may_go_on and not self.stalled:
            if self._gap() < self.options.tol:
                break
            self._iterate()
        return self._finish()

    def state(self) -> State:
        return State(self.given.posterior.near(self.normal), self.given.target)

    def _iterate(self) -> None:
        if len(self.history) in WHITENINGS:
            h = self.target.expected_loss_terms(self.normal)[2]
            self._whiten(self.normal, convex_part(self.target, h))
        for _ in range(STEPS_PER_ITER):
            if not self.lbfgs.step():
                self.stalled = True
                break
        self.report()

    def _gap(self) -> float:
        """Nats to the optimum: later gains, extrapolated from the last ones."""
        if len(self.history) < 3:
            return math.inf
        before, last = (self.history[i - 1] - self.history[i] for i in (-2, -1))
        ratio = min(max(last / before if before > 0 else 1.0, FASTEST), SLOWEST)
        rest = 0.5 * (before + last) * ratio / (1 - ratio)
        return max(rest, self.lbfgs.decrement)

    def _finish(self) -> Solution:
        problem, normal, value = self.problem, self.normal, self.lbfgs.value
        divergence = float(problem.divergence.closed_form(normal, self.target.prior))
        fine = refined_value(problem, normal, divergence)
        error, gap = abs(fine - value), self._gap()
        # If rounding prevents a step, the predicted decrease is noise.
        gap = self.lbfgs.decrement if self.stalled else gap
        converged, message = gap < self.options.tol, ""
        if self.stopped:
            pass  # by the user, who knows about it
        elif not converged:
            message = unfinished(len(self.history), gap, remedy_for(problem, normal))
        else:
            curvature = self.target.expected_loss_terms(normal)[2]
            message = judge_quadrature(error, curvature)
        found = {"gap": gap, "quadrature_error": error}
        return self.solution(converged, message, found)
