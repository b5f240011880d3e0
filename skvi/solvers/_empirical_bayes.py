"""Learned scales without noise: profile over the best posterior at each scale."""

import math
from dataclasses import replace
from typing import NamedTuple, cast

import torch

from skvi.base import NormalForm
from skvi.posteriors import MixtureOverScales, Posterior
from skvi.posteriors._over_scales import leading
from skvi.solvers._hyper import hyper_range, runaway_message
from skvi.solvers._natural_gradient import AtPlaces, NaturalGradient
from skvi.solvers._run import Run, missing_for_expectations
from skvi.solvers._solution import Solution, State
from skvi.solvers.base import Problem, Solver, SolverOptions, no_progress
from skvi.targets._numbers import numbers_of

__all__ = ["EmpiricalBayes"]

# The fit at fixed scales is this much more accurate than requested, so that its
# gradients can be differentiated.
INNER_ACCURACY = 1e-4
INNER_ITER = 100
# Steps of the logarithms of scales: for finite differences of values and gradients, and
# the maximum.
NEAR, DIFFERENCE, LONGEST = 1e-4, 1e-3, 1.5
# Nats per squared log scale: smaller curvatures are replaced by this value, and mean
# that the scale has no effect near the fit.
LEAST_CURVATURE = 1e-3
# A longer Newton step of a log scale without gain does not converge: if F approaches a
# limit as a power of the scale, steps have the same length everywhere.
STILL_MOVING = 0.1


class EmpiricalBayes(Solver):
    """Learn noise and prior scales of a linear model by type-II maximum likelihood.

    Minimizes ``F(eta) = min_q E_q[loss] + D(q || prior)`` in the logarithms eta of
    the scales. For the ELBO, -F is a lower bound on the log evidence at eta, and equal
    to it if q is exact. The fit at a fixed eta is that of `NaturalGradient`, each
    started at the last one. By the envelope theorem the gradient of F is the one at
    fixed q; its finite differences give the few second derivatives of a damped Newton
    iteration.

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
    >>> from skvi.solvers import Problem, SolverOptions
    >>> from skvi.solvers._empirical_bayes import EmpiricalBayes
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(1, fit_intercept=False), torch.ones(1, 1).double()
    >>> prior, y = Normal("learn").build(model.layout), torch.tensor([3.0])
    >>> target = SupervisedTarget(model, GaussianLikelihood(), LogLoss(), prior, X, y)
    >>> posterior = FullRankNormal().build(model.layout)
    >>> problem = Problem(target, ELBO(), KL(), posterior, None)
    >>> solution = EmpiricalBayes().solve(problem, SolverOptions())
    >>> round(
    ...     float(solution.target.hyper.exp()), 3
    ... )  # 9 is 1 plus the variance of the prior
    2.828
    """

    name = "empirical_bayes"
    continues = True

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks; see `Solver.missing`."""
        if not len(problem.target.hyper):
            return "the target learns no hyperparameters"
        missing = missing_for_expectations(problem)
        known = replace(problem, target=problem.target.frozen())
        return missing or NaturalGradient.missing(known)

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit without draws; `max_iter` counts Newton steps of the scales."""
        return _Search(problem, options).run()


class _Search(Run):
    solver = EmpiricalBayes.name

    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        super().__init__(problem, options)
        low, high = hyper_range(problem.target)
        self.start = problem.target.hyper.detach().clone()
        self.low = torch.minimum(low, self.start)
        self.high = torch.maximum(high, self.start)
        self.kept: list[_Scales] = []  # none or one
        self.drift = torch.zeros_like(self.start)
        self.inner_options = replace(
            options,
            max_iter=INNER_ITER,
            tol=INNER_ACCURACY * options.tol,
            progress=no_progress,
        )
        self.gap, self.stalled = math.inf, False

    @property
    def is_usable(self) -> bool:  # type: ignore[override]
        return bool(self.kept)

    @property
    def known(self) -> dict:  # type: ignore[override]
        return self.kept[0].inner.diagnostics

    @property
    def value(self) -> float:
        return self.kept[0].inner.value

    def state(self) -> State:
        best = self.kept[0]
        return State(best.inner.posterior, self.given.target.at(best.hyper))

    def improve(self) -> Solution:
        best = self._fit(self.start, self.given.posterior)
        self.kept = [best]
        self.inner_options = replace(self.inner_options, warm_start=True)
        best = self._descend(best)
        if isinstance(best.inner.posterior, MixtureOverScales) and self.may_go_on:
            best = self._fit(best.hyper, best.inner.posterior, NaturalGradient())
            self.kept, self.gap = [best], math.inf
            best = self._descend(best)
        return self._finish(best)

    def _descend(self, best: "_Scales") -> "_Scales":
        """Newton steps until there is nothing left to gain."""
        self.stalled = False
        # The gap is the one before the last step, which has reduced it.
        while self.may_go_on and self.gap > self.options.tol and not self.stalled:
            best = self._move(best, self._newton_step(best))
            self.kept = [best]
            self.report()
        return best

    def _fit(
        self, hyper: torch.Tensor, start: Posterior, solver: Solver | None = None
    ) -> "_Scales":
        """Best posterior at these scales, and the gradient of its value in them."""
        target = self.given.linear_target.at(hyper).frozen()
        inner = self.given.at(State(start, target))
        found = (solver or AtPlaces()).solve(inner, self.inner_options)
        if not self.kept:  # the only state, if Ctrl-C comes now
            self.kept = [_Scales(hyper, found, torch.zeros_like(hyper))]
        found.raise_interrupt()
        nodes = _nodes(found.posterior, self.given)
        near = NEAR * hyper.new_ones(len(hyper)).diag()
        gradient = [
            (self._value(hyper + step, nodes) - self._value(hyper - step, nodes))
            / (2 * NEAR)
            for step in near
        ]
        return _Scales(hyper, found, hyper.new_tensor(gradient))

    def _value(self, hyper: torch.Tensor, nodes: "list[_Node]") -> float:
        """The objective at fixed nodes, up to a constant."""
        target, total = self.given.linear_target.at(hyper).frozen(), 0.0
        spec = self.given.linear_target.likelihood_spec
        plain, numbers = numbers_of(target)
        for weight, place, normal in nodes:
            known = plain
            for number, z in zip(numbers, place, strict=True):
                known = number.bind(known, z)
            value = self.given.divergence.terms(normal, known.prior).value
            if spec.learned:
                value = value + known.expected_loss_terms(normal)[0]
            total += weight * float(value)
        return total

    def _newton_step(self, best: "_Scales") -> torch.Tensor:
        """Step of the free scales, by differences of gradients."""
        free = self._free(best)
        step = torch.zeros_like(best.hyper)
        if not len(free):
            self.gap = 0.0
            return step
        columns = []
        for i in free:
            # Away from the nearer end of the range.
            middle = 0.5 * (self.low[i] + self.high[i])
            delta = DIFFERENCE if best.hyper[i] < middle else -DIFFERENCE
            shifted = best.hyper.clone()
            shifted[i] += delta
            change = self._fit(shifted, best.inner.posterior).gradient - best.gradient
            columns.append(change[free] / delta)
        hessian = torch.stack(columns, 1)
        values, vectors = torch.linalg.eigh(0.5 * (hessian + hessian.T))
        flat = (vectors[:, values.abs() < LEAST_CURVATURE].abs() > 0.5).any(1)
        values = values.abs().clamp(min=LEAST_CURVATURE)
        along = vectors.T @ best.gradient[free]
        self.gap = 0.5 * float((along.square() / values).sum())
        step[free] = -(vectors @ (along / values))
        self.drift = step.clone()
        self.drift[free[flat]] = -best.gradient[free[flat]].sign()
        longest = float(step.abs().max())
        return step * min(1.0, LONGEST / longest) if longest > 0 else step

    def _free(self, best: "_Scales") -> torch.Tensor:
        """Scales that are not at a limit of their range."""
        held = (best.hyper <= self.low) & (best.gradient > 0)
        held = held | ((best.hyper >= self.high) & (best.gradient < 0))
        return (~held).nonzero()[:, 0]

    def _move(self, best: "_Scales", step: torch.Tensor) -> "_Scales":
        """Take the step, shortened until it lowers the objective."""
        value = best.inner.value
        highest = value + 1e-12 * abs(value) + INNER_ACCURACY * self.options.tol
        rho = 1.0
        while rho > 1e-4:
            trial = (best.hyper + rho * step).clamp(self.low, self.high)
            try:
                found = self._fit(trial, best.inner.posterior)
            except ValueError:  # singular at much too large a scale
                found = None
            if found is not None and found.inner.value <= highest:
                return found
            rho /= 4
        self.stalled = True
        return best

    def _runaway(self, hyper: torch.Tensor) -> str:
        """Name the scales without optimum: at a limit, or diverging."""
        still = self.drift * (self.gap <= self.options.tol)
        to_zero = (hyper <= self.low) | (still < -STILL_MOVING)
        to_infinity = (hyper >= self.high) | (still > STILL_MOVING)
        return runaway_message(self.given.target, to_zero, to_infinity)

    def _finish(self, best: "_Scales") -> Solution:
        tol, message = self.options.tol, self._runaway(best.hyper)
        inner = best.inner
        gap = self.gap + inner.diagnostics["gap"]
        converged = gap <= 2 * tol and not message
        if self.stopped:
            message = ""
        elif inner.diagnostics["gap"] > tol or inner.converged:
            # Problems at fixed scales are reported as for fixed scales.
            message = message or inner.message
        if not (converged or message or self.stopped):
            message = (
                f"after {len(self.history)} steps of the learned scales the objective "
                f"may still be {gap:.2g} nats from its optimum; increase max_iter, or "
                "give the scales as numbers"
            )
        return self.solution(converged, message, {**self.known, "gap": gap})


class _Scales(NamedTuple):
    """The fit at given scales, with the gradient of its value in their logarithms."""

    hyper: torch.Tensor
    inner: Solution
    gradient: torch.Tensor


#: Share of a node, its numbers, and the normal there.
_Node = tuple[float, list[float], NormalForm]


def _nodes(posterior: Posterior, given: Problem) -> list[_Node]:
    """Those of a mixture; a normal is the only one."""
    if not isinstance(posterior, MixtureOverScales):
        return [(1.0, [], cast(NormalForm, posterior.as_normal()))]
    size = numbers_of(given.target)[0].layout.size
    normals = [leading(normal, size) for normal in posterior.normals()]
    weights, places = posterior.log_weights.exp(), posterior.places()
    return list(zip(weights.tolist(), places.tolist(), normals, strict=True))
