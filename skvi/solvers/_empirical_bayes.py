"""Learnt scales without noise: the best posterior for each, the best of them."""

import math
from dataclasses import replace

import torch

from skvi.solvers._hyper import hyper_range, runaway_message
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._quasi_newton_solver import QuasiNewton
from skvi.solvers.base import Problem, Solution, SolverOptions, no_progress

__all__ = ["EmpiricalBayes"]

# The fit at fixed scales is this much more accurate than the one that is asked for,
# so that its gradients can be differentiated.
INNER_ACCURACY = 1e-4
INNER_ITER = 100
# What fits at fixed scales: the first one that can.
FIXED_SCALES = (NaturalGradient, QuasiNewton)
# Steps of the logarithms of scales: for differences, and at most.
DIFFERENCE, LONGEST = 1e-3, 1.5
# Nats per squared log scale: curvatures below it are taken to be this large, and mean
# that the scale does not matter where the fit is.
LEAST_CURVATURE = 1e-3
# A Newton step of a log scale that gains nothing but is longer leads nowhere: where F
# approaches a limit, as a power of the scale, it has the same length everywhere.
STILL_MOVING = 0.1


class EmpiricalBayes:
    """Learn noise and prior scales of a linear model by type-II maximum likelihood.

    Minimises ``F(eta) = min_q E_q[loss] + D(q || prior)`` in the logarithms eta of
    the scales. For the ELBO, -F is a lower bound on the log evidence at eta, and
    equal to it where q is exact. The fit at a fixed eta is that of
    `NaturalGradient`, each started at the last one. By the envelope theorem the
    gradient of F is the one at fixed q; differences of it give the few second
    derivatives of a damped Newton iteration.

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
    >>> from skvi.solvers import EmpiricalBayes, Problem, SolverOptions
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(1, fit_intercept=False), torch.ones(1, 1).double()
    >>> prior, y = Normal("learn").build(model.layout), torch.tensor([3.0])
    >>> target = SupervisedTarget(model, GaussianLikelihood(), LogLoss(), prior, X, y)
    >>> posterior = FullRankNormal().build(model.layout)
    >>> problem = Problem(target, ELBO(), KL(), posterior, None)
    >>> solution = EmpiricalBayes().solve(problem, SolverOptions())
    >>> round(float(target.hyper.exp()), 3)  # 9 is 1 plus the variance of the prior
    2.828
    """

    name = "empirical_bayes"

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks for this solver.

        Parameters
        ----------
        problem : Problem

        Returns
        -------
        str
            Empty where the solver can be used.
        """
        objective, target = problem.objective, problem.target
        if not len(target.hyper):
            return "the target learns no hyperparameters"
        if objective.kind == "expectation" and objective.gradient == "auto":
            if target.is_linear:
                problem = replace(problem, target=target.frozen())
        reasons = [solver.missing(problem) for solver in FIXED_SCALES]
        return "" if "" in reasons else reasons[0]

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit ``problem.posterior`` and ``problem.target.hyper`` in place.

        Parameters
        ----------
        problem : Problem
        options : SolverOptions
            `max_iter` counts Newton steps of the scales.

        Returns
        -------
        Solution
            `value` is the objective in nats, summed over the data, by quadrature
            and closed forms: no draws are used.
        """
        return _Search(problem, options).run()


class _Search:
    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        self.problem, self.options = problem, options
        low, high = hyper_range(problem.target)
        self.hyper = problem.target.hyper.detach().clone()
        self.low = torch.minimum(low, self.hyper)
        self.high = torch.maximum(high, self.hyper)
        self.inner: Solution | None = None
        self.drift = torch.zeros_like(self.hyper)
        self.inner_options = replace(
            options,
            max_iter=INNER_ITER,
            tol=INNER_ACCURACY * options.tol,
            progress=no_progress,
        )
        self.history: list[float] = []
        self.gap = math.inf
        self.interrupted = self.stopped = self.stalled = False

    def run(self) -> Solution:
        try:
            self.inner, self.gradient = self._fit(self.hyper)
            self.inner_options = replace(self.inner_options, warm_start=True)
            self._keep()
            while not self._is_done():
                self._move(self._newton_step())
                self.history.append(self.inner.value)
                self.stopped = self.options.progress(self.inner.value, self._restore)
        except KeyboardInterrupt:
            if self.inner is None:
                raise
            self.interrupted = True
        self._restore()
        return self._finish(self.inner)

    def _is_done(self) -> bool:
        # The gap is that before the last step, which has made it smaller.
        ends = self.gap <= self.options.tol or self.stalled or self.stopped
        return ends or len(self.history) >= self.options.max_iter

    def _keep(self) -> None:
        """Remember the posterior of `hyper`."""
        self.params = self.problem.posterior.params.clone()

    def _restore(self) -> None:
        """Put the best state into posterior and target."""
        self.problem.posterior.params = self.params.clone()
        self.problem.target.hyper = self.hyper.clone()

    def _fit(self, hyper: torch.Tensor) -> tuple[Solution, torch.Tensor]:
        """Best posterior at these scales, and the gradient of its value in them."""
        problem, target = self.problem, self.problem.target
        target.hyper = hyper
        inner = replace(problem, target=target.frozen())
        solver = next(s for s in FIXED_SCALES if not s.missing(inner))
        found = solver().solve(inner, self.inner_options)
        if found.diagnostics["interrupted"]:
            if self.inner is None:
                self.inner = found
                self._keep()
            raise KeyboardInterrupt
        with torch.enable_grad():
            target.hyper = hyper.clone().requires_grad_()
            surrogate, _ = problem.objective.surrogate(
                target, problem.posterior, problem.divergence, None, 0, None
            )
            (gradient,) = torch.autograd.grad(surrogate, target.hyper)
        target.hyper = hyper
        return found, gradient

    def _newton_step(self) -> torch.Tensor:
        """Step of the scales that are free, by differences of gradients."""
        free = self._free()
        step = torch.zeros_like(self.hyper)
        if not len(free):
            self.gap = 0.0
            return step
        columns = []
        for i in free:
            # Away from the nearer end of the range.
            middle = 0.5 * (self.low[i] + self.high[i])
            delta = DIFFERENCE if self.hyper[i] < middle else -DIFFERENCE
            shifted = self.hyper.clone()
            shifted[i] += delta
            columns.append((self._fit(shifted)[1] - self.gradient)[free] / delta)
        hessian = torch.stack(columns, 1)
        values, vectors = torch.linalg.eigh(0.5 * (hessian + hessian.T))
        flat = (vectors[:, values.abs() < LEAST_CURVATURE].abs() > 0.5).any(1)
        values = values.abs().clamp(min=LEAST_CURVATURE)
        along = vectors.T @ self.gradient[free]
        self.gap = 0.5 * float((along.square() / values).sum())
        step[free] = -(vectors @ (along / values))
        self.drift = step.clone()
        self.drift[free[flat]] = -self.gradient[free[flat]].sign()
        longest = float(step.abs().max())
        return step * min(1.0, LONGEST / longest) if longest > 0 else step

    def _free(self) -> torch.Tensor:
        """Scales that are not held at an end of their range."""
        held = (self.hyper <= self.low) & (self.gradient > 0)
        held = held | ((self.hyper >= self.high) & (self.gradient < 0))
        return (~held).nonzero()[:, 0]

    def _move(self, step: torch.Tensor) -> None:
        """Take the step, or as much of it as lowers the objective."""
        value = self.inner.value
        highest = value + 1e-12 * abs(value) + INNER_ACCURACY * self.options.tol
        rho = 1.0
        while rho > 1e-4:
            trial = (self.hyper + rho * step).clamp(self.low, self.high)
            try:
                inner, gradient = self._fit(trial)
            except ValueError:  # singular at a scale that is far too large
                inner = None
            if inner is not None and inner.value <= highest:
                self.hyper, self.inner, self.gradient = trial, inner, gradient
                self._keep()
                return
            rho /= 4
        self.stalled = True

    def _runaway(self) -> str:
        """Say which scales have no optimum: at an end, or still on a long way."""
        still = self.drift * (self.gap <= self.options.tol)
        to_zero = (self.hyper <= self.low) | (still < -STILL_MOVING)
        to_infinity = (self.hyper >= self.high) | (still > STILL_MOVING)
        return runaway_message(self.problem.target, to_zero, to_infinity)

    def _finish(self, inner: Solution) -> Solution:
        tol, message = self.options.tol, self._runaway()
        gap = self.gap + inner.diagnostics["gap"]
        converged = gap <= 2 * tol and not message
        if self.interrupted:
            message = "interrupted: the best posterior so far was kept"
        elif self.stopped:
            message = ""
        elif inner.diagnostics["gap"] > tol or inner.converged:
            # What is wrong at fixed scales is said as for fixed scales.
            message = message or inner.message
        if not (converged or message or self.stopped):
            message = (
                f"after {len(self.history)} steps of the learnt scales the objective "
                f"may still be {gap:.2g} nats from its optimum; increase max_iter, or "
                "give the scales as numbers"
            )
        found = {**inner.diagnostics, "gap": gap, "stopped": self.stopped}
        return replace(
            inner,
            solver=EmpiricalBayes.name,
            history=self.history,
            n_iter=len(self.history),
            converged=converged and not self.interrupted,
            message=message,
            diagnostics={**found, "interrupted": self.interrupted},
        )
