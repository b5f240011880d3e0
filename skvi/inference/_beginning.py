"""Where the fit of a log density begins: its problem, and the best normal."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.evidence._changes import modes_of
from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives import ELBO
from skvi.objectives.base import Objective
from skvi.posteriors import (
    Family,
    FullRankNormal,
    MeanFieldNormal,
    Posterior,
    Product,
)
from skvi.solvers import Problem, SolverOptions
from skvi.solvers._fixed_draws import FixedDraws
from skvi.solvers._paths import MAX_DENSE, Start, find_starts
from skvi.targets import Target
from skvi.targets._averaged import AveragedTarget
from skvi.targets._density import DensityTarget
from skvi.utils._random import randn

__all__ = ["begin_near", "each_draw", "find_center", "pose", "some_points"]

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
            f"Beside the discrete parameters {layout.discrete} a family needs an exact "
            f"density, which that of {family!r} is not. Use posterior='full_rank' or "
            "'flow'."
        )
    objective.check(KLDivergence(), target)
    objective.check_posterior(posterior.components[0], KLDivergence(), target)
    return Problem(target, objective, KLDivergence(), posterior, generator)


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
    found = FixedDraws().solve(
        replace(problem, objective=ELBO(), posterior=start), options
    )
    found.raise_interrupt()
    return found.posterior.as_normal()
