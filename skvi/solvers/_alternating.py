"""Natural gradients alternating with hyperparameters: learned scales without noise."""

import math
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from scipy.optimize import minimize

from skvi.base import NormalForm
from skvi.posteriors import Posterior
from skvi.solvers._anderson import combined
from skvi.solvers._gamma_steps import GammaSteps
from skvi.solvers._hyper import check_noise, hyper_range, runaway_message
from skvi.solvers._natural_gradient import OneNormal
from skvi.solvers._run import (
    Run,
    missing_for_expectations,
    missing_for_quadrature,
    unfinished,
)
from skvi.solvers._solution import FLOOR_MESSAGE, Solution, State
from skvi.solvers.base import Problem, Solver, SolverOptions, no_progress

__all__ = ["Alternating"]

# Steps that are extrapolated, and how far, in logarithms, beyond the last one.
DEPTH, FARTHEST = 5, 5.0
# Tolerance of the normal part, in that of the fit: steps of the scales need it.
PRECISE = 1e-3


class Alternating(Solver):
    """Alternate natural gradients for q and optimal hyperparameters for that q.

    Every half-step lowers ``E_q[loss] + D(q || prior)``, which is integrated without
    draws. For the noise of linear models with any loss, by type-II maximum likelihood
    or, if precisions are parameters, with a Gamma posterior for each. The last steps of
    the scales are extrapolated (Anderson acceleration), unless the objective would
    increase.

    Examples
    --------
    >>> from skvi.solvers._alternating import Alternating
    >>> Alternating.name
    'alternating'
    """

    name = "alternating"
    continues = True

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks; see `Solver.missing`."""
        target = problem.target
        if not target.is_extended:
            return "no precision has a hyperprior"
        missing = missing_for_expectations(problem)
        if missing:
            return missing
        divergence, is_given = problem.divergence, "coef_precision" in target.layout
        if not (divergence.is_standard or (divergence.has_gammas and not is_given)):
            return f"{divergence!r} is not a sum over blocks that depend on each other"
        if not _is_normal_gamma(problem.posterior):
            return (
                "the posterior is not the product of a normal and Gamma distributions"
            )
        problem = GammaSteps(problem).conditional()
        return missing_for_quadrature(problem, may_learn=True)

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
        tol = PRECISE * options.tol
        self.inner = replace(options, progress=no_progress, tol=tol)
        hyper = problem.target.hyper.detach()
        self.problem = replace(problem, target=problem.target.at(hyper))
        lowest = hyper_range(problem.target)[0].double()
        self.floor = torch.minimum(lowest, hyper)
        self.gap = math.inf
        #: Scales after the last plain steps, and these steps.
        self.images: list[torch.Tensor] = []
        self.residuals: list[torch.Tensor] = []
        #: Where a plain step leads to, and where the last ones together; how far.
        self.next, self.distance = self.problem, math.inf
        self.jump: torch.Tensor | None = None
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
        while self.may_go_on and self.gap >= self.options.tol:
            self._iterate()
        return self._finish()

    def _iterate(self) -> None:
        before = self.value if self.kept else math.inf
        if not (self.jump is not None and self._move(self._at(self.jump), before)):
            self._move(self.next, math.inf)
        self.inner = replace(self.inner, warm_start=True)
        self.next = self._moved_scales()
        self._look_ahead(before - self.value)
        self.report()

    def _move(self, problem: Problem, highest: float) -> bool:
        """Keep the solution at these scales, unless its value is above a limit."""
        found = self._solve_normal(problem)
        # If the normal part of a step was interrupted, the last step may be better.
        is_better = not self.kept or found.value < self.value
        accepted = found.value <= highest
        if accepted and (is_better or not found.interrupted):
            self.kept = [found]
        found.raise_interrupt()
        if accepted:
            self.problem = problem.at(found.state)
        else:
            self.images, self.residuals = [], []
        return accepted

    def _look_ahead(self, gain: float) -> None:
        """Extrapolate the last steps: where they lead to, and how much is left."""
        here, after = _scales(self.problem), _scales(self.next)
        keep = -min(len(here), DEPTH)
        self.images = [*self.images[keep:], after]
        self.residuals = [*self.residuals[keep:], after - here]
        last, self.distance = self.distance, math.inf
        if len(self.images) < 2:
            self.jump, self.gap = None, math.inf
            return
        self.jump = combined(self.images, self.residuals)
        self.jump = after + (self.jump - after).clamp(-FARTHEST, FARTHEST)
        self.distance = float((self.jump - here).norm())
        square = min((self.distance / last) ** 2, 0.99) if last else 0.0
        self.gap = max(gain, gain * square / (1 - square), 0.0)

    def _at(self, x: torch.Tensor) -> Problem:
        """Problem at other scales; `_scales` gives those of a problem."""
        (posterior, target), n_learned = self.next.state, len(self.floor)
        hyper, x = torch.maximum(x[:n_learned], self.floor), x[n_learned:]
        parts: dict[tuple[str, ...], Posterior] = {}
        for names, part in posterior.parts.items():
            if part.as_gamma() is not None:
                log_shape, _ = part.params.detach().chunk(2)
                log_mean, x = x.split([len(log_shape), len(x) - len(log_shape)])
                parts[names] = part.at(torch.cat([log_shape, log_shape - log_mean]))
        return self.problem.at(State(posterior.with_parts(parts), target.at(hyper)))

    def _solve_normal(self, problem: Problem) -> Solution:
        """Best normal part of the posterior, with the other parts fixed."""
        if not problem.target.is_extended:
            return OneNormal().solve(problem, self.inner)
        steps = GammaSteps(problem)
        found = OneNormal().solve(steps.conditional(), self.inner)
        state = State(steps.joined(found.posterior), problem.target)
        return replace(found, state=state, value=found.value + steps.constant())

    @property
    def _steps(self) -> GammaSteps | None:
        extended = self.problem.target.is_extended
        return GammaSteps(self.problem) if extended else None

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
        gap, message = self.gap, ""
        converged = gap < self.options.tol
        if not (converged or self.stopped):
            message = unfinished(len(self.history), gap)
        at_floor = self._floor_message()
        if not message and at_floor:
            message, converged = at_floor, False
        message = message or self.kept[0].message
        return self.solution(converged, message, {**self.known, "gap": gap})


def _scales(problem: Problem) -> torch.Tensor:
    """Logarithms of the learned scales, and of the means of the precisions."""
    parts = problem.posterior.parts.values()
    gammas = [part.params.detach().chunk(2) for part in parts if part.as_gamma()]
    return torch.cat([problem.target.hyper, *(shape - rate for shape, rate in gammas)])


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
                loss = target.expected_loss(normal)
            loss = loss + problem.divergence.closed_form(normal, target.prior)
            (gradient,) = torch.autograd.grad(loss, hyper)
        return float(loss.detach()), gradient.cpu().numpy()

    bounds = [(low, value + 10.0) for low, value in zip(floor, start, strict=True)]
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds)
    return torch.from_numpy(found.x.copy()).to(device)
