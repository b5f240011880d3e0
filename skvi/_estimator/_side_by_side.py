"""Parallel fits of several estimators, as members of one stack."""

import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skvi._estimator._base import BaseVariational
from skvi._estimator._evidence import FEW_DRAWS, describe_fit
from skvi._estimator._fitting import begin, refine
from skvi.evidence._summarize import lower_bound
from skvi.objectives._network_steps import stack_structure
from skvi.solvers import Problem, SolverOptions, Stochastic
from skvi.solvers._checkpoint import checkpoint_path_of
from skvi.solvers._solution import Solution
from skvi.solvers._stochastic._solver import solve_members
from skvi.utils._interrupts import has_callbacks, limit_threads, raising_interrupts
from skvi.utils._tensors import CPU

# Elements in the buffers of a stack: on a CPU as many as fit into its caches, elsewhere
# as many as keep the device busy.
STACK_ELEMENTS, DEVICE_ELEMENTS = 2**17, 2**25


_Task = tuple[Stochastic, Problem, SolverOptions]


@dataclass(eq=False)
class PosedFit:
    """A fit with its data and its start, ready for a solver.

    `first` is a problem with options to be solved before, for a better start, or None;
    `seconds` have elapsed.
    """

    estimator: BaseVariational
    problem: Problem
    options: SolverOptions
    solver: Stochastic
    first: tuple[Problem, SolverOptions] | None
    seconds: float

    @property
    def work(self) -> float:
        """Multiply-adds of a gradient step."""
        return float(self.estimator._work(self.problem.target))

    def keep(self, solution: Solution) -> None:
        """Set the estimator's fitted attributes, except slow ones."""
        start = time.perf_counter()
        estimator = self.estimator
        solution = estimator._checked(self.problem, solution)
        solution = refine(self.problem, solution)
        found = estimator._posterior_attributes(solution.state)
        state, source = solution.state, self.problem.generator
        bound = lower_bound(state.target, state.posterior, source, FEW_DRAWS)
        found |= describe_fit(self.problem, solution, bound)
        vars(estimator).update(found)
        self.seconds += time.perf_counter() - start


def can_pose(estimator: Any) -> bool:
    """Whether an estimator is a network whose fits can be members of a stack.

    False if every iteration is to be reported, and with checkpoints, which belong
    to one fit.
    """
    is_network = isinstance(estimator, BaseVariational) and hasattr(
        estimator, "batch_size"
    )
    if not is_network or has_callbacks(estimator) or estimator.verbose:
        return False
    return checkpoint_path_of(estimator) is None


def pose(
    estimator: BaseVariational, X: Any, y: Any, sample_weight: np.ndarray | None = None
) -> PosedFit | None:
    """Perform the part of a fit before its solver.

    None if its solver is not `Stochastic`, or no stack accepts it. Raises what `fit`
    would.
    """
    start = time.perf_counter()
    estimator._validate_params()
    estimator._forget()
    target, _ = estimator._make_target(X, y, sample_weight)
    with limit_threads(estimator._work(target)):
        problem, solver = estimator._pose(target)
        if not isinstance(solver, Stochastic):
            return None
        state = begin(estimator, problem, solver)
    options, first = estimator._solver_options(target), None
    if state is not None:
        problem, options = problem.at(state), replace(options, warm_start=True)
        first = estimator._first_phase(problem)
    phases = [problem] if first is None else [first[0], problem]
    if all(stack_structure(p.objective, p) is None for p in phases):
        return None
    seconds = time.perf_counter() - start
    return PosedFit(estimator, problem, options, solver, first, seconds)


def fit_side_by_side(fits: Sequence[PosedFit]) -> None:
    """Solve fits in stacks, each as if alone up to rounding, and set their attributes.

    KeyboardInterrupt on Ctrl-C, after which fits that have begun are as far as they
    came, and others are not fitted.
    """
    with raising_interrupts():
        beginners = [fit for fit in fits if fit.first is not None]
        firsts = [(fit.solver, *fit.first) for fit in beginners if fit.first]
        begun = _solve(beginners, firsts)
        _raise_interrupts(begun.values())
        for i, solution in begun.items():
            beginners[i].problem = beginners[i].problem.at(solution.state)
        tasks = [(fit.solver, fit.problem, fit.options) for fit in fits]
        solutions = _solve(fits, tasks)
        for i, solution in solutions.items():
            with limit_threads(fits[i].work):
                fits[i].keep(solution)
        _raise_interrupts(solutions.values())


def _raise_interrupts(solutions: Iterable[Solution]) -> None:
    if any(solution.interrupted for solution in solutions):
        raise KeyboardInterrupt


def _solve(fits: Sequence[PosedFit], tasks: Sequence[_Task]) -> dict[int, Solution]:
    """Solve a task of each fit, in stacks until Ctrl-C; the fits count the seconds."""
    solutions: dict[int, Solution] = {}
    for stack in _stacks(tasks):
        start = time.perf_counter()
        with limit_threads(sum(fits[i].work for i in stack)):
            found = solve_members([tasks[i] for i in stack])
        seconds = (time.perf_counter() - start) / len(stack)
        for i, solution in zip(stack, found, strict=True):
            fits[i].seconds += seconds
            solutions[i] = solution
        if any(solution.interrupted for solution in found):
            break
    return solutions


def _stacks(tasks: Sequence[_Task]) -> list[list[int]]:
    """Tasks that share a structure, in parts of limited size."""
    groups: dict[Hashable, list[int]] = {}
    for i, task in enumerate(tasks):
        groups.setdefault(_structure(*task) or i, []).append(i)
    stacks = []
    for group in groups.values():
        largest = max(_n_elements(*tasks[i][:2]) for i in group)
        on_cpu = tasks[group[0]][1].posterior.params.device == CPU
        limit = STACK_ELEMENTS if on_cpu else DEVICE_ELEMENTS
        n_parts = -(-len(group) // max(1, limit // largest))
        stacks += [group[part::n_parts] for part in range(n_parts)]
    return stacks


def _structure(
    solver: Stochastic, problem: Problem, options: SolverOptions
) -> Hashable | None:
    """Structure that members of one stack have in common; None if not stackable."""
    found = stack_structure(problem.objective, problem)
    if found is None:
        return None
    sizes = solver.draws_per_step, solver.batch_size
    return solver.name, repr(problem.objective), found, sizes


def _n_elements(solver: Stochastic, problem: Problem) -> int:
    """Elements of a member in the buffers of a stack."""
    n_rows = solver.rows_per_step(problem.target.n_rows)
    per_draw = 2 * problem.target.layout.size + 4 * n_rows
    return solver.draws_per_step * per_draw * len(problem.posterior.components)
