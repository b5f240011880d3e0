"""Where the fit of a log density begins: its problem, and the best normal."""

from collections.abc import Callable
from dataclasses import replace

import torch

from skvi.base import NormalForm
from skvi.divergences import KL
from skvi.evidence._changes import modes_of
from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives import ELBO, Objective
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
from skvi.utils._random import randn

__all__ = ["begin_near", "pose", "some_points"]

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
    objective.check(KL(), target)
    objective.check_posterior(posterior.components[0], KL(), target)
    return Problem(target, objective, KL(), posterior, generator)


def some_points(posterior: Posterior, generator: torch.Generator) -> torch.Tensor:
    """Three points, standard normal; their discrete coordinates are drawn."""
    layout = posterior.layout
    theta = randn(generator, 3, layout.size)
    where = layout.positions(layout.discrete)
    if len(where):
        theta[:, where] = posterior.draw(3, generator).theta[:, where]
    return theta


def begin_near(
    problem: Problem, options: SolverOptions, is_normal: bool, report: Report
) -> tuple[Posterior, list[Start]]:
    """Posterior near the best normals, and the ends of all starts.

    With `is_normal` the solver goes on from there itself; other families begin at the
    normal of the largest ELBO.
    """
    if problem.target.layout.discrete:
        return _given_discrete(problem, report), []
    starts = find_starts(problem.target, problem.source_of_draws, report)
    normal = starts[0].normal
    if not is_normal:
        normal = _fit_normal(problem, normal, options)
    return problem.posterior.near_modes(modes_of(starts, normal)), starts


def _given_discrete(problem: Problem, report: Report) -> Posterior:
    """The best normal of smooth parameters, given draws of the discrete ones."""
    posterior, generator = problem.posterior, problem.source_of_draws
    target = AveragedTarget(problem.target, posterior.draw(N_GIVEN, generator).theta)
    if not target.layout.size:
        return posterior
    start = find_starts(target, generator, report)[0]
    return posterior.near(target.over_all(start.normal))


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
