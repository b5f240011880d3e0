"""Fits of a log density by gradients of random rows of its data."""

from dataclasses import replace
from typing import Any, cast

import torch

from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives import ELBO
from skvi.posteriors import Family, MixtureOfNormals
from skvi.posteriors._mixture import Mixture
from skvi.solvers import Problem, Solver, SolverOptions, Stochastic
from skvi.solvers._solution import Solution, State
from skvi.targets._density_rows import RowsDensityTarget

__all__ = ["few_rows", "solve_rows", "stochastic"]

# Rows of starts, at least, and so many for each parameter.
N_ROWS, PER_PARAMETER = 2000, 20
# Draws whose mean is the anchor of batches, and of a step of a normal.
N_DRAWS, N_OF_NORMAL = 1000, 16


def stochastic(problem: Problem, solver: Any, batch_size: int) -> Stochastic:
    """The solver of minibatches; error if a solver or an objective has none."""
    if not isinstance(problem.objective, ELBO):
        raise IncompatibleComponentsError(
            f"batch_size={batch_size} needs objective='elbo', which is a sum over "
            f"rows. Got {problem.objective!r}. Use batch_size=None."
        )
    if solver == "auto":
        is_normal = problem.posterior.as_normal() is not None
        n_draws = N_OF_NORMAL if is_normal else "auto"
        return Stochastic(batch_size=batch_size, n_draws=n_draws)
    if not isinstance(solver, Stochastic) or solver.batch_size != "auto":
        raise IncompatibleComponentsError(
            f"batch_size={batch_size} needs solver='auto' or Stochastic() with "
            f"batch_size='auto'. Got {solver!r}."
        )
    given = solver.get_params() | {"batch_size": batch_size}
    return Stochastic(**given)


def few_rows(problem: Problem, batch_size: int) -> Problem:
    """The problem of random rows, scaled up to all, where a fit begins."""
    target = cast(RowsDensityTarget, problem.target)
    generator = problem.source_of_draws
    order = torch.randperm(target.n_rows, generator=generator, device=generator.device)
    count = max(batch_size, N_ROWS, PER_PARAMETER * target.layout.size)
    return replace(problem, target=target.subset(order[:count]))


def solve_rows(
    problem: Problem, family: Family, solver: Solver, options: SolverOptions
) -> Solution:
    """Stochastic steps; those of a normal in the coordinates of its start.

    Batches are relative to the start, at which all rows are known.
    """
    target, posterior = cast(RowsDensityTarget, problem.target), problem.posterior
    theta = posterior.components[0].draw(N_DRAWS, problem.source_of_draws).theta
    if not target.layout.discrete:
        target = target.anchored(theta.mean(0))
    normal, around = posterior.as_normal(), posterior
    if normal is not None:
        around = MixtureOfNormals(1, family).build(posterior.layout).near(normal)
        options = replace(options, early_stopping=True)
    found = solver.solve(replace(problem, target=target, posterior=around), options)
    end = found.posterior
    if normal is not None:
        end = posterior.near(cast(Mixture, end).normals()[0])
    return replace(found, state=State(end, problem.target))
