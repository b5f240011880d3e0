"""Learned scales without noise: profile over the best posterior at each scale."""

import math
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import minimize

from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.posteriors import Posterior
from skvi.posteriors._mixture import MixtureOverScales, leading
from skvi.solvers._hyper import hyper_range, runaway_message
from skvi.solvers._natural_gradient import AtPlaces, NaturalGradient
from skvi.solvers._run import Run, missing_for_expectations
from skvi.solvers._solution import Solution, State
from skvi.solvers.base import Problem, Solver, SolverOptions, no_progress
from skvi.targets._numbers import numbers_of

# The fit at fixed scales is this much more accurate than requested, so that its
# gradients can be differentiated; and the gradient to reach, by roots of nats.
INNER_ACCURACY, INNER_ITER, SMALL_GRADIENT = 1e-4, 100, 0.01
# Steps of the logarithms of scales, for finite differences of values and gradients.
NEAR, DIFFERENCE = 1e-4, 1e-3
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
    fixed q, which a BFGS iteration follows; its finite differences at the end say how
    much is left.

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
    >>> from skvi.solvers import Problem, SolverOptions
    >>> from skvi.solvers._empirical_bayes import EmpiricalBayes
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(1, fit_intercept=False), torch.ones(1, 1).double()
    >>> prior, y = Normal("learn").build(model.layout), torch.tensor([3.0])
    >>> parts = model, GaussianLikelihood(1.0), LogLoss(), prior, X, y
    >>> target = SupervisedTarget(*parts)
    >>> posterior = FullRankNormal().build(model.layout)
    >>> problem = Problem(target, ELBO(), KLDivergence(), posterior, None)
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
        """Fit without draws; `max_iter` counts steps of the scales.

        Divergences other than KL hold the scales that KL finds: their own best ones
        follow the width that they give the posterior, such as noise of five times the
        residuals under Jeffreys'.
        """
        if problem.divergence.kl_weight is not None:
            return _Search(problem, options).run()
        learned = _Search(replace(problem, divergence=KLDivergence()), options).run()
        if learned.interrupted:
            return learned
        known = problem.at(State(learned.posterior, learned.target.frozen()))
        found = NaturalGradient().solve(known, replace(options, warm_start=True))
        # What hinders more: the fit at these scales, or the search for them.
        worst = found if found.message or not found.converged else learned
        return replace(
            found,
            solver=self.name,
            state=State(found.posterior, learned.target),
            ending=found.ending if found.interrupted else worst.ending,
            message=worst.message,
        )


class _Search(Run):
    solver = EmpiricalBayes.name

    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        super().__init__(problem, options)
        low, high = hyper_range(problem.target)
        self.start = problem.target.hyper.detach().clone()
        self.low = torch.minimum(low, self.start)
        self.high = torch.maximum(high, self.start)
        self.best: _Scales | None = None
        self.inner_options = replace(
            options,
            max_iter=INNER_ITER,
            tol=INNER_ACCURACY * options.tol,
            progress=no_progress,
        )

    @property
    def is_usable(self) -> bool:  # type: ignore[override]
        return self.best is not None

    @property
    def known(self) -> dict:  # type: ignore[override]
        return self._best.inner.diagnostics

    @property
    def value(self) -> float:
        return self._best.inner.value

    @property
    def _best(self) -> "_Scales":
        return cast(_Scales, self.best)

    def state(self) -> State:
        best = self._best
        return State(best.inner.posterior, self.given.target.at(best.hyper))

    def improve(self) -> Solution:
        self.best = self._fit(self.start)
        self.inner_options = replace(self.inner_options, warm_start=True)
        self._descend()
        if isinstance(self._best.inner.posterior, MixtureOverScales) and self.may_go_on:
            placed = self._fit(self._best.hyper, NaturalGradient())  # places anew
            if placed.inner.value <= self.value:
                self.best = placed
                self._descend()
        return self._finish()

    def _descend(self) -> None:
        """Quasi-Newton steps until the gradient is small."""

        def report(_: np.ndarray) -> None:
            self.report()
            if not self.may_go_on:
                raise StopIteration

        gtol = SMALL_GRADIENT * math.sqrt(self.options.tol)
        start = self._best.hyper.cpu().numpy()
        options = {"gtol": gtol, "maxiter": self.options.max_iter}
        minimize(
            self._evaluate,
            start,
            jac=True,
            method="BFGS",
            callback=report,
            options=options,
        )
        if not self.history:  # it was at the optimum
            self.report()

    def _evaluate(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective, and its slopes; level beyond the range."""
        given = self.start.new_tensor(x)
        hyper = given.clamp(self.low, self.high)
        try:
            found = self._fit(hyper)
        except ValueError:  # singular at much too large a scale
            return math.inf, np.zeros_like(x)
        if found.inner.value < self.value:
            self.best = found
        return found.inner.value, (found.gradient * (given == hyper)).cpu().numpy()

    def _fit(self, hyper: torch.Tensor, solver: Solver | None = None) -> "_Scales":
        """Best posterior at these scales, and the gradient of its value in them."""
        if self.best is not None and solver is None and hyper.equal(self.best.hyper):
            return self.best
        start = self.given.posterior if self.best is None else self.best.inner.posterior
        inner = self.given.at(State(start, self.given.linear_target.at(hyper).frozen()))
        found = (solver or AtPlaces()).solve(inner, self.inner_options)
        if self.best is None:  # the only state, if Ctrl-C comes now
            self.best = _Scales(hyper, found, torch.zeros_like(hyper))
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

    def _newton_step(self) -> tuple[torch.Tensor, float]:
        """Step that is left of the scales that are not at a limit, and its gain.

        By differences of gradients; a unit where a scale has no effect.
        """
        best, step, columns = self._best, torch.zeros_like(self.start), []
        held = (best.hyper <= self.low) & (best.gradient > 0)
        held |= (best.hyper >= self.high) & (best.gradient < 0)
        free = (~held).nonzero()[:, 0]
        if not len(free):
            return step, 0.0
        for i in free:
            # Away from the nearer end of the range.
            middle = 0.5 * (self.low[i] + self.high[i])
            shifted = best.hyper.clone()
            shifted[i] += DIFFERENCE if best.hyper[i] < middle else -DIFFERENCE
            change = self._fit(shifted).gradient - best.gradient
            columns.append(change[free] / (shifted - best.hyper)[i])
        hessian = torch.stack(columns, 1)
        values, vectors = torch.linalg.eigh(0.5 * (hessian + hessian.T))
        flat = (vectors[:, values.abs() < LEAST_CURVATURE].abs() > 0.5).any(1)
        values = values.abs().clamp(min=LEAST_CURVATURE)
        along = vectors.T @ best.gradient[free]
        newton = -(vectors @ (along / values))
        step[free] = torch.where(flat, -best.gradient[free].sign(), newton)
        return step, 0.5 * float((along.square() / values).sum())

    def _finish(self) -> Solution:
        tol, message, best, inner = self.options.tol, "", self._best, self._best.inner
        gap = math.inf
        if not self.stopped:
            step, gain = self._newton_step()
            gap = gain + inner.diagnostics["gap"]
            still = step * (gain <= tol)
            to_zero = (best.hyper <= self.low) | (still < -STILL_MOVING)
            to_infinity = (best.hyper >= self.high) | (still > STILL_MOVING)
            message = runaway_message(self.given.target, to_zero, to_infinity)
            if inner.diagnostics["gap"] > tol or inner.converged:
                # Problems at fixed scales are reported as for fixed scales.
                message = message or inner.message
        converged = gap <= 2 * tol and not message
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
