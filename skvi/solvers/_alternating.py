"""Natural gradients in turn with hyperparameters: learnt scales without noise."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize

from skvi.solvers._gamma_steps import GammaSteps
from skvi.solvers._hyper import check_noise, hyper_range, runaway_message
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._verdict import unfinished
from skvi.solvers.base import (
    FLOOR_MESSAGE,
    INTERRUPTED,
    Ending,
    Problem,
    Solution,
    SolverOptions,
    ending_of,
    no_progress,
    remaining_gain,
)

__all__ = ["Alternating"]


class Alternating:
    """Natural gradient for q, then the best hyperparameters for that q, and again.

    Every half-step lowers ``E_q[loss] + D(q || prior)``, which is integrated without
    draws: the noise of linear models with any loss, by type-II maximum likelihood
    or, where precisions are parameters, with a Gamma posterior for each.

    Examples
    --------
    >>> from skvi.solvers import Alternating
    >>> Alternating.name
    'alternating'
    """

    name = "alternating"

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
        target, posterior = problem.target, problem.posterior
        if problem.objective.kind != "expectation":
            return f"it minimises expectations, and {problem.objective!r} is none"
        if target.has_precisions:
            if not problem.divergence.is_standard:
                return f"{problem.divergence!r} does not split into its blocks"
            if not _is_normal_gamma(posterior):
                return "the posterior is not a normal beside Gamma distributions"
            problem = GammaSteps(problem).conditional()
        else:
            return "no precision has a hyperprior"
        return NaturalGradient.missing(problem, may_learn=True)

    @torch.no_grad()
    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit ``problem.posterior`` and the target's hyperparameters in place.

        Parameters
        ----------
        problem : Problem
        options : SolverOptions

        Returns
        -------
        Solution
            `value` is the objective in nats, summed over the data, by quadrature
            and closed forms: no draws are used.
        """
        return _Alternation(problem, options).run()


class _Alternation:
    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        self.problem, self.options, target = problem, options, problem.target
        self.inner = replace(options, progress=no_progress)
        target.hyper = target.hyper.detach()
        lowest = hyper_range(target)[0].double().numpy()
        self.floor = np.minimum(lowest, target.hyper.numpy())
        self.steps = None
        if target.has_precisions:
            self.steps = GammaSteps(problem)
        self.history: list[float] = []
        self.gains: list[float] = []
        self.kept: _State | None = None

    def run(self) -> Solution:
        """Alternate until nothing is left to gain."""
        stopped = False
        try:
            while len(self.history) < self.options.max_iter and not stopped:
                if remaining_gain(self.gains) < self.options.tol:
                    break
                stopped = self._iterate()
            return self._finish(self.kept, stopped)
        except KeyboardInterrupt:
            if self.kept is None:
                raise
            return self._cut_short(self.kept)

    def _cut_short(self, kept: "_State") -> Solution:
        """Put the best state so far into posterior and target."""
        self.problem.posterior.params = kept.params
        self.problem.target.hyper = kept.hyper
        found = {**kept.found.diagnostics, "gap": math.inf}
        return self._solution(kept.value, Ending.INTERRUPTED, INTERRUPTED, found)

    def _iterate(self) -> bool:
        problem, constant = self.problem, 0.0
        if self.history:
            self._move_scales()
        if self.steps is not None:
            problem, constant = self.steps.conditional(), self.steps.constant()
        found = NaturalGradient().solve(problem, self.inner)
        if self.steps is not None:
            self.steps.keep(problem)
        value = found.value + constant
        # Where the normal part of a step was cut short, the last step may be better.
        if self.kept is None or not found.interrupted or value < self.kept.value:
            posterior, hyper = self.problem.posterior, self.problem.target.hyper
            self.kept = _State(posterior.params, hyper, value, found)
        found.raise_interrupt()
        self.inner = replace(self.inner, warm_start=True)
        if self.history:
            self.gains.append(max(self.history[-1] - value, 0.0))
        self.history.append(value)
        return self.options.progress(value, lambda: None)

    def _move_scales(self) -> None:
        problem = self.problem
        if self.steps is not None:
            self.steps.step()
            problem = self.steps.conditional()
        if len(problem.target.hyper):
            self.problem.target.hyper = _best_hyper(problem, self.floor)

    def _floor_message(self) -> str:
        """Say which scales ran to 0; for a robust loss that is an error."""
        target = self.problem.target
        at_floor = target.hyper <= torch.from_numpy(self.floor) + 1e-6
        if self.steps is None:  # a start may lie there
            return FLOOR_MESSAGE if bool(at_floor.any()) else ""
        check_noise(target, *self.steps.fitted())
        return runaway_message(target, at_floor, torch.zeros_like(at_floor))

    def _finish(self, kept: "_State", stopped: bool) -> Solution:
        gap, message = remaining_gain(self.gains), ""
        converged = gap < self.options.tol
        if not (converged or stopped):
            message = unfinished(len(self.history), gap)
        at_floor = self._floor_message()
        if not message and at_floor:
            message, converged = at_floor, False
        message = message or kept.found.message
        found = {**kept.found.diagnostics, "gap": gap}
        ending = ending_of(converged, stopped)
        return self._solution(kept.value, ending, message, found)

    def _solution(
        self, value: float, ending: Ending, message: str, found: dict
    ) -> Solution:
        return Solution(
            solver=Alternating.name,
            value=value,
            history=self.history,
            n_iter=len(self.history),
            ending=ending,
            message=message,
            diagnostics=found,
            is_exact=True,
        )


class _State(NamedTuple):
    """What an iteration ended with: variational parameters, and their objective."""

    params: torch.Tensor
    hyper: torch.Tensor
    value: float
    found: Solution


def _is_normal_gamma(posterior: Any) -> bool:
    """Whether one normal part holds all that Gamma parts do not."""
    if not hasattr(posterior, "part"):
        return False
    parts = [posterior.part(names[0]) for names in posterior.names]
    others = [part for part in parts if not hasattr(part, "set_gamma")]
    return len(others) == 1 and others[0].as_normal() is not None


def _best_hyper(problem: Problem, floor: np.ndarray) -> torch.Tensor:
    """Hyperparameters of lowest objective for the posterior as it is."""
    target, normal = problem.target, problem.posterior.as_normal()
    start = target.hyper.numpy()

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        hyper = torch.from_numpy(values.copy()).requires_grad_()
        target.hyper = hyper
        with torch.enable_grad():
            loss = target.expected_loss_terms(normal)[0]
            loss = loss + problem.divergence.closed_form(normal, target.prior)
            (gradient,) = torch.autograd.grad(loss, hyper)
        return float(loss.detach()), gradient.numpy()

    try:
        bounds = [(low, value + 10.0) for low, value in zip(floor, start, strict=True)]
        found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds)
    finally:
        target.hyper = torch.from_numpy(start.copy())
    return torch.from_numpy(found.x.copy())
