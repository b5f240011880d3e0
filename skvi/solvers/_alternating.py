"""Natural gradients alternating with hyperparameters: learned scales without noise."""

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from scipy.optimize import minimize

from skvi.base import NormalForm
from skvi.posteriors import Posterior
from skvi.solvers._gamma_steps import GammaSteps
from skvi.solvers._hyper import check_noise, hyper_range, runaway_message
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._run import Run
from skvi.solvers._solution import FLOOR_MESSAGE, Solution, State, remaining_gain
from skvi.solvers._verdict import (
    missing_for_expectations,
    missing_for_quadrature,
    unfinished,
)
from skvi.solvers.base import Problem, Solver, SolverOptions, no_progress

__all__ = ["Alternating"]


class Alternating(Solver):
    """Alternate natural gradients for q and optimal hyperparameters for that q.

    Every half-step lowers ``E_q[loss] + D(q || prior)``, which is integrated without
    draws. For the noise of linear models with any loss, by type-II maximum likelihood
    or, if precisions are parameters, with a Gamma posterior for each.

    Examples
    --------
    >>> from skvi.solvers import Alternating
    >>> Alternating.name
    'alternating'
    """

    name = "alternating"
    continues = True

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks; see `Solver.missing`."""
        if not problem.target.is_extended:
            return "no precision has a hyperprior"
        missing = missing_for_expectations(problem)
        if missing:
            return missing
        if not problem.divergence.is_standard:
            return f"{problem.divergence!r} is not a sum over blocks"
        if not _is_normal_gamma(problem.posterior):
            return (
                "the posterior is not the product of a normal and Gamma distributions"
            )
        problem = GammaSteps(problem).conditional()
        return missing_for_quadrature(problem, may_learn=True, takes_low_rank=False)

    @staticmethod
    def needs_start(problem: Problem) -> bool:
        """Whether theta contains precisions; see `Solver.needs_start`."""
        return problem.target.is_extended

    @torch.no_grad()
    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit without draws: `value` is exact up to quadrature; see `Solver`."""
        return _Alternation(problem, options).run()


class _Alternation(Run):
    solver = Alternating.name

    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        super().__init__(problem, options)
        self.inner = replace(options, progress=no_progress)
        hyper = problem.target.hyper.detach()
        self.problem = replace(problem, target=problem.target.at(hyper))
        lowest = hyper_range(problem.target)[0].double()
        self.floor = torch.minimum(lowest, hyper)
        self.gains: list[float] = []
        self.kept: list[Solution] = []  # none or one

    @property
    def is_usable(self) -> bool:  # type: ignore[override]
        return bool(self.kept)

    @property
    def known(self) -> dict:  # type: ignore[override]
        return self.kept[0].diagnostics

    @property
    def value(self) -> float:
        return self.kept[0].value

    def state(self) -> State:
        return self.kept[0].state

    def improve(self) -> Solution:
        """Alternate until there is nothing left to gain."""
        while self.may_go_on and remaining_gain(self.gains) >= self.options.tol:
            self._iterate()
        return self._finish()

    @property
    def _steps(self) -> GammaSteps | None:
        extended = self.problem.target.is_extended
        return GammaSteps(self.problem) if extended else None

    def _iterate(self) -> None:
        if self.history:
            self.problem = self._moved_scales()
        found = self._solve_normal(self._steps)
        # If the normal part of a step was interrupted, the last step may be better.
        if not self.kept or not found.interrupted or found.value < self.value:
            self.kept = [found]
        found.raise_interrupt()
        self.problem = self.problem.at(found.state)
        self.inner = replace(self.inner, warm_start=True)
        if self.history:
            self.gains.append(max(self.history[-1] - found.value, 0.0))
        self.report()

    def _solve_normal(self, steps: GammaSteps | None) -> Solution:
        """Best normal part of the posterior, with the other parts fixed."""
        if steps is None:
            return NaturalGradient().solve(self.problem, self.inner)
        found = NaturalGradient().solve(steps.conditional(), self.inner)
        state = State(steps.joined(found.posterior), self.problem.target)
        return replace(found, state=state, value=found.value + steps.constant())

    def _moved_scales(self) -> Problem:
        """Problem at the best scales for the current normal part."""
        problem = conditional = self.problem
        if self._steps is not None:
            problem = replace(problem, posterior=self._steps.step())
            conditional = GammaSteps(problem).conditional()
        if not len(problem.target.hyper):
            return problem
        hyper = _best_hyper(conditional, self.floor.cpu().numpy())
        return replace(problem, target=problem.target.at(hyper))

    def _floor_message(self) -> str:
        """Name the scales that degenerated to 0; for a robust loss that is an error."""
        target, steps = self.problem.target, self._steps
        at_floor = target.hyper <= self.floor + 1e-6
        if steps is None:  # a start may lie there
            return FLOOR_MESSAGE if bool(at_floor.any()) else ""
        check_noise(steps.target, steps.normal, steps.noise_scale())
        return runaway_message(target, at_floor, torch.zeros_like(at_floor))

    def _finish(self) -> Solution:
        gap, message = remaining_gain(self.gains), ""
        converged = gap < self.options.tol
        if not (converged or self.stopped):
            message = unfinished(len(self.history), gap)
        at_floor = self._floor_message()
        if not message and at_floor:
            message, converged = at_floor, False
        message = message or self.kept[0].message
        return self.solution(converged, message, {**self.known, "gap": gap})


def _is_normal_gamma(posterior: Posterior) -> bool:
    """Whether one normal part covers all blocks without a Gamma part."""
    parts = list(posterior.parts.values())
    others = [part for part in parts if part.as_gamma() is None]
    is_normal = len(others) == 1 and others[0].as_normal() is not None
    return is_normal and len(parts) > 1


def _best_hyper(problem: Problem, floor: np.ndarray) -> torch.Tensor:
    """Hyperparameters that minimize the objective for the current posterior."""
    given, start = problem.linear_target, problem.target.hyper.cpu().numpy()
    device = problem.target.hyper.device
    normal = cast(NormalForm, problem.posterior.as_normal())

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        hyper = torch.from_numpy(values.copy()).to(device).requires_grad_()
        with torch.enable_grad():
            target = given.at(hyper)
            loss = target.expected_loss_terms(normal)[0]
            if not loss.requires_grad:  # a quadrature that knows no derivatives
                loss = target.expected_loss_at(normal)
            loss = loss + problem.divergence.closed_form(normal, target.prior)
            (gradient,) = torch.autograd.grad(loss, hyper)
        return float(loss.detach()), gradient.cpu().numpy()

    bounds = [(low, value + 10.0) for low, value in zip(floor, start, strict=True)]
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds)
    return torch.from_numpy(found.x.copy()).to(device)
