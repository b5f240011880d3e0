"""Where the fit of a log density begins, and its gradients from some rows."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.divergences import Divergence, KLDivergence
from skvi.evidence._changes import modes_of
from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives import ELBO
from skvi.objectives.base import Objective
from skvi.posteriors import (
    Family,
    FullRankNormal,
    MeanFieldNormal,
    MixtureOfNormals,
    Posterior,
    Product,
)
from skvi.posteriors._mixture import Mixture
from skvi.solvers import Problem, Solver, SolverOptions, Stochastic
from skvi.solvers._fixed_draws import FixedDraws
from skvi.solvers._paths import MAX_DENSE, Start, find_starts
from skvi.solvers._solution import Solution, State
from skvi.targets import Target
from skvi.targets._density import DensityTarget, RowsDensityTarget
from skvi.targets._supervised import AveragedTarget
from skvi.utils._tensors import randn

Report = Callable[[str], None]
# Draws of discrete parameters at the start of the others.
N_GIVEN = 16


def pose(
    target: Target, family: Family, objective: Objective, generator: torch.Generator
) -> Problem:
    """The problem of a fit, at the family's own start; parts must go together."""
    layout = target.layout
    if layout.discrete and not isinstance(family, Product):
        smooth = tuple(layout.without(*layout.discrete))
        family = Product({smooth: family} if smooth else None)
    family.check_size(layout.size)
    posterior = family.build(layout, generator)
    if layout.discrete and posterior.side != "exact":
        raise IncompatibleComponentsError(
            f"posterior={family!r}",
            f"an exact density beside the discrete parameters {layout.discrete}",
            "posterior='full_rank' or 'flow'",
        )
    objective.check(KLDivergence(), target, posterior.components[0])
    return Problem(target, objective, KLDivergence(), posterior, generator)


def regularized(problem: Problem, divergence: Divergence) -> Problem:
    """The problem of a loss plus a divergence from the prior.

    The loss is minus the log density without the prior. A multiple w of KL is the ELBO
    of a power 1/w of the likelihood.
    """
    if divergence.kl_weight == 1:
        return problem
    target = cast(DensityTarget, problem.target).with_prior()
    if target.prior is None:
        raise IncompatibleComponentsError(
            f"{divergence!r}",
            "a prior of its own, which log_density contains now",
            "prior=, with its log density or a prior such as Normal(), and leave it "
            "out of log_density; or divergence='kl'",
        )
    divergence.check_regularizer()
    if divergence.kl_weight is not None and isinstance(problem.objective, ELBO):
        powered = cast(DensityTarget, problem.target).powered(1 / divergence.kl_weight)
        return replace(problem, target=powered)
    if target.n_rows or target.layout.discrete:
        what = "batch_size" if target.n_rows else f"discrete {target.layout.discrete}"
        raise IncompatibleComponentsError(
            f"{what}",
            f"a divergence that is a mean over draws; got {divergence!r}",
            f"divergence='kl', which can have a weight, or no {what}",
        )
    problem.objective.check(divergence, target, problem.posterior.components[0])
    problem = replace(problem, target=target, divergence=divergence)
    if not divergence.has_closed_form(target.reference):
        problem.surrogate(2)  # raises if it takes draws of a prior that has none
    return problem


def some_points(posterior: Posterior, generator: torch.Generator) -> torch.Tensor:
    """Three points, standard normal; their discrete coordinates are drawn."""
    layout = posterior.layout
    theta = randn(generator, 3, layout.size)
    where = layout.positions(layout.discrete)
    if len(where):
        theta[:, where] = posterior.draw(3, generator).theta[:, where]
    return theta


def find_center(
    target: DensityTarget, start: Mapping[str, Any] | None
) -> torch.Tensor | None:
    """A user's start in unconstrained coordinates of the smooth parameters."""
    if start is None:
        return None
    wanted = list(target.layout.without(*target.layout.discrete))
    if set(start) != set(wanted):
        raise ValueError(
            f"start must name all parameters that are not discrete, {wanted}. Got "
            f"{list(start)}."
        )
    parts = []
    for name in wanted:
        value = torch.as_tensor(np.asarray(start[name], dtype=np.float64))
        if tuple(value.shape) != target.shapes[name]:
            raise ValueError(
                f"start[{name!r}] must have the shape {target.shapes[name]} of the "
                f"parameter. Got {tuple(value.shape)}."
            )
        part = target.transforms[name].inv(value[None]).flatten()
        if not bool(part.isfinite().all()):
            raise ValueError(
                f"start[{name!r}] must be inside the support of the parameter. Got "
                f"{start[name]!r}."
            )
        parts.append(part)
    return torch.cat(parts)


def each_draw(density: Callable) -> Callable:
    """A density of all draws from one of a single draw."""

    def of_all(values: Mapping[str, torch.Tensor], *data: Any) -> Any:
        axes = (0, *(None for _ in data))
        try:
            return torch.func.vmap(density, axes)(values, *data)
        except RuntimeError:  # vmap knows torch functions only
            n_draws = len(next(iter(values.values())))
            singles = ({k: v[i] for k, v in values.items()} for i in range(n_draws))
            found = [density(p, *data) for p in singles]
            if not isinstance(found[0], Mapping):
                return torch.stack([torch.as_tensor(value) for value in found])
            return {
                key: torch.stack([torch.as_tensor(factors[key]) for factors in found])
                for key in found[0]
            }

    return of_all


def begin_near(
    problem: Problem,
    options: SolverOptions,
    is_normal: bool,
    report: Report,
    starts: list[Start],
    first: torch.Tensor | None = None,
) -> Posterior:
    """Posterior near the best normals; the ends of all paths are added to `starts`.

    With `is_normal` the solver goes on from there itself; other families begin at the
    normal of the largest ELBO.
    """
    if problem.target.layout.discrete:
        return _given_discrete(problem, report, first)
    try:
        find_starts(problem.target, problem.source_of_draws, report, starts, first)
    except ValueError:
        # Steps in a density have no slopes, which "score" does not need.
        if problem.target.is_differentiable or problem.objective.gradient != "score":
            raise
        if first is None:
            return problem.posterior
        return problem.posterior.near(NormalForm(first, torch.ones_like(first)))
    normal = starts[0].normal
    if not is_normal:
        normal = _fit_normal(problem, normal, options)
    return problem.posterior.near_modes(modes_of(starts, normal))


def _given_discrete(
    problem: Problem, report: Report, first: torch.Tensor | None
) -> Posterior:
    """The best normal of smooth parameters, given draws of the discrete ones."""
    posterior, generator = problem.posterior, problem.source_of_draws
    target = AveragedTarget(problem.target, posterior.draw(N_GIVEN, generator).theta)
    if not target.layout.size:
        return posterior
    starts: list[Start] = []
    find_starts(target, generator, report, starts, first)
    return posterior.near(target.over_all(starts[0].normal))


def _fit_normal(
    problem: Problem, normal: NormalForm, options: SolverOptions
) -> NormalForm:
    """The normal of the largest ELBO, full if it is small enough."""
    layout, family = problem.target.layout, MeanFieldNormal
    if layout.size <= MAX_DENSE and not problem.posterior.is_diagonal:
        family = FullRankNormal
    start = family().build(layout).near(normal)
    task = replace(problem, objective=ELBO(), posterior=start)
    if not problem.divergence.has_closed_form(problem.target.reference):
        task = replace(task, divergence=KLDivergence())
    found = FixedDraws().solve(task, options)
    found.raise_interrupt()
    return found.posterior.as_normal()


# Rows of starts, at least, and so many for each parameter.
N_ROWS, PER_PARAMETER = 2000, 20
# Draws whose mean is the anchor of batches, and of a step of a normal.
N_DRAWS, N_OF_NORMAL = 1000, 16


def stochastic(problem: Problem, solver: Any, batch_size: int) -> Stochastic:
    """The solver of minibatches; error if a solver or an objective has none."""
    if not isinstance(problem.objective, ELBO):
        raise IncompatibleComponentsError(
            f"batch_size={batch_size}",
            f"objective='elbo', a sum over rows; got {problem.objective!r}",
            "batch_size=None",
        )
    if problem.objective.rao_blackwell:
        raise IncompatibleComponentsError(
            "rao_blackwell=True",
            f"independent parameters, which the coordinates of batch_size={batch_size} "
            "are not",
            "batch_size=None, or rao_blackwell=False",
        )
    if solver == "auto":
        is_normal = problem.posterior.as_normal() is not None
        n_draws = N_OF_NORMAL if is_normal else "auto"
        return Stochastic(batch_size=batch_size, n_draws=n_draws)
    if not isinstance(solver, Stochastic) or solver.batch_size != "auto":
        raise IncompatibleComponentsError(
            f"batch_size={batch_size}",
            f"a solver that leaves it open; got {solver!r}",
            "solver='auto' or Stochastic(batch_size='auto')",
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
    found = solver.solve(replace(problem, target=target, posterior=around), options)
    end = found.posterior
    if normal is not None:
        end = posterior.near(cast(Mixture, end).normals()[0])
    return replace(found, state=State(end, problem.target))
