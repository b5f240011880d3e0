"""Fits of several estimators side by side: members of one stack."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skvi._outcome import describe_fit
from skvi._supervised import BaseSupervised
from skvi.objectives._ensemble_steps import stack_structure
from skvi.solvers import Problem, Solution, SolverOptions, Stochastic
from skvi.utils._callbacks import has_callbacks
from skvi.utils._interrupts import raising_interrupts
from skvi.utils._threads import limit_threads

__all__ = ["PosedFit", "can_pose", "fit_side_by_side", "pose"]

# Draws for the ELBO of a fit that is one of many.
BOUND_DRAWS = 100
# Numbers in the buffers of a stack: as many as caches hold, and no more.
STACK_ELEMENTS = 2**19


@dataclass(eq=False)
class PosedFit:
    """A fit that has its data and its start, and waits for a solver.

    Parameters
    ----------
    estimator : BaseSupervised
        It gets its fitted attributes from `keep`.
    problem : Problem
        At its start.
    options : SolverOptions
    seconds : float
        What it took so far.
    """

    estimator: BaseSupervised
    problem: Problem
    options: SolverOptions
    seconds: float

    @property
    def stack(self) -> tuple:
        """What fits must share to be in one stack."""
        structure = stack_structure(self.problem.objective, self.problem)
        options = self.options
        shared = structure, options.n_draws, options.batch_size
        return repr(self.problem.objective), *shared

    @property
    def n_elements(self) -> int:
        """Numbers of one member in the buffers of a stack."""
        target, posterior = self.problem.target, self.problem.posterior
        n_rows = self.options.batch_size or target.n_rows
        per_draw = 2 * target.layout.size + 4 * n_rows
        return self.options.n_draws * per_draw * len(posterior.components)

    @property
    def work(self) -> float:
        """Multiply-adds of a gradient step."""
        return float(self.estimator._work(self.problem.target))

    def keep(self, solution: Solution) -> None:
        """Set the fitted attributes, without what takes time.

        Parameters
        ----------
        solution : Solution
        """
        start = time.perf_counter()
        estimator = self.estimator
        found = estimator._posterior_attributes(solution.state)
        n_draws = estimator.n_draws
        found |= describe_fit(self.problem, solution, n_draws, BOUND_DRAWS)
        vars(estimator).update(found)
        self.seconds += time.perf_counter() - start


def can_pose(estimator: Any) -> bool:
    """Whether fits of an estimator may be members of a stack, as far as it knows.

    Parameters
    ----------
    estimator : estimator

    Returns
    -------
    bool
        False also where somebody asks to be told of every iteration.
    """
    known = isinstance(estimator, BaseSupervised) and estimator._fits_in_stacks
    return known and not (has_callbacks(estimator) or estimator.verbose)


def pose(
    estimator: BaseSupervised, X: Any, y: Any, sample_weight: np.ndarray | None = None
) -> PosedFit | None:
    """Do of a fit what comes before its solver.

    Parameters
    ----------
    estimator : BaseSupervised
        One that `can_pose`.
    X, y : array-like
    sample_weight : array-like of shape (n_samples,), default=None

    Returns
    -------
    PosedFit or None
        None where another solver fits it, or no stack takes it.

    Raises
    ------
    ValueError
        Whatever `fit` would say of these parameters and data.
    """
    start = time.perf_counter()
    estimator._validate_params()
    estimator._forget()
    target, _ = estimator._make_target(X, y, sample_weight)
    with limit_threads(estimator._work(target)):
        problem, solver = estimator._pose(target)
        if solver.name != Stochastic.name:
            return None
        if stack_structure(problem.objective, problem) is None:
            return None
        state = estimator._start(problem, solver)
    options = estimator._solver_options(target)
    if state is not None:
        problem, options = problem.at(state), replace(options, warm_start=True)
    return PosedFit(estimator, problem, options, time.perf_counter() - start)


def fit_side_by_side(fits: Sequence[PosedFit]) -> None:
    """Solve fits in stacks, and set their attributes.

    Parameters
    ----------
    fits : sequence of PosedFit
        Each gets what it would get alone, up to rounding.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C; nothing of what was not done is kept.
    """
    with raising_interrupts():
        for stack in _stacks(fits):
            start = time.perf_counter()
            with limit_threads(sum(fit.work for fit in stack)):
                solutions = Stochastic().solve_members(
                    [fit.problem for fit in stack], [fit.options for fit in stack]
                )
            if any(solution.interrupted for solution in solutions):
                raise KeyboardInterrupt
            seconds = (time.perf_counter() - start) / len(stack)
            for fit, solution in zip(stack, solutions, strict=True):
                fit.seconds += seconds
                with limit_threads(fit.work):
                    fit.keep(solution)


def _stacks(fits: Sequence[PosedFit]) -> list[list[PosedFit]]:
    """Fits that share a structure, in parts that are not too large."""
    groups: dict[tuple, list[PosedFit]] = {}
    for fit in fits:
        groups.setdefault(fit.stack, []).append(fit)
    stacks = []
    for group in groups.values():
        size = max(1, STACK_ELEMENTS // max(fit.n_elements for fit in group))
        n_parts = -(-len(group) // size)
        stacks += [group[part::n_parts] for part in range(n_parts)]
    return stacks
