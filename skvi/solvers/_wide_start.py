"""Further starts: at large likelihood, for fits and for chains."""

import math
from dataclasses import replace
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.posteriors._over_scales import MixtureOverScales, beside
from skvi.solvers._mode import DENSE_LIMIT, factorize, find_mode
from skvi.solvers._solution import PhaseInterrupted, Solution, State
from skvi.solvers.base import Problem, Solver, SolverOptions, no_progress
from skvi.targets import SupervisedTarget, Target
from skvi.targets._numbers import Scale, bound_at, numbers_of
from skvi.targets._row_terms import terms_at
from skvi.utils._random import randn

__all__ = ["choose_start", "dispersed_starts", "likelihood_normal", "solve_from_best"]

# The wide prior has the information of this fraction of one row of the data.
WIDE = 0.01
# Deviation of the log of a number at a start.
NUMBER_WIDTH = 0.1
# Distance from their optima, in nats, at which two starts are compared.
ROUGH_TOL = 0.01


def likelihood_normal(
    target: Target, is_diagonal: bool = False, only_hidden: bool = True
) -> NormalForm | None:
    """Normal around the mode under a prior so wide that the likelihood decides.

    None if the prior is log-concave, or, with `only_hidden`, as wide as this normal in
    every parameter: there is no hidden mode. Factorized above 1500 parameters.
    """
    if not target.has_design or target.reference.is_log_concave:
        return None
    target = cast(SupervisedTarget, target)
    around = target.prior.matching_normal()
    if around is None:
        return None
    _, slope, curvature = terms_at(target, around.mean)
    if curvature.ndim == 1:
        # A likelihood with heavy tails has the wrong curvature there.
        curvature = torch.where(curvature > 0, curvature, slope.square())
    gram = target.predictor.gram_diagonal(target.X, curvature)
    precision = WIDE * gram / target.n_rows
    # Never narrower than the prior itself, which also covers columns of zeros.
    precision = torch.minimum(precision, 1 / around.variance)
    precision = torch.where(precision > 0, precision, 1 / around.variance)
    wide = NormalForm(around.mean, precision.rsqrt())
    mode, curvature = find_mode(target, wide)
    if is_diagonal or target.layout.size > DENSE_LIMIT:
        total = target.predictor.gram_diagonal(target.X, curvature) + precision
        normal = NormalForm(mode, total.rsqrt())
    else:
        gram = target.predictor.gram(target.X, curvature)
        covariance = torch.cholesky_inverse(factorize(gram + torch.diag(precision)))
        normal = NormalForm(mode, factorize(covariance))
    is_hidden = bool((around.variance < normal.variance).any())
    return normal if is_hidden or not only_hidden else None


@torch.no_grad()
def choose_start(
    solver: Solver,
    problem: Problem,
    options: SolverOptions,
    start: State | None = None,
) -> State | None:
    """Find the better one of two optima, if there may be two, to start from.

    A prior with a peak at 0 and heavy tails can trap a fit: the second optimum is found
    from large likelihood. Ctrl-C raises PhaseInterrupted if there is a result.
    """
    if not solver.continues:
        return start
    given = problem.state if start is None else start
    far = _likely_state(given)
    if far is None:
        return start
    tol, is_warm = max(options.tol, ROUGH_TOL), start is not None
    rough = replace(options, tol=tol, progress=no_progress, warm_start=is_warm)
    first = solver.solve(problem.at(given), rough)
    first.raise_interrupt()
    try:
        second = solver.solve(problem.at(far), replace(rough, warm_start=True))
    except KeyboardInterrupt:
        raise PhaseInterrupted(first.state) from None
    except (ValueError, torch.linalg.LinAlgError):
        return first.state  # the second start is optional
    best = min((first, second), key=_finite_value)
    if second.interrupted:
        raise PhaseInterrupted(best.state)
    return best.state


def _likely_state(given: State) -> State | None:
    """State at large likelihood, with its best number; None if none can be hidden."""
    (posterior, target), is_diagonal = given, given.posterior.is_diagonal
    plain, numbers = numbers_of(target)
    if not numbers:
        normal = likelihood_normal(target, is_diagonal)
        return None if normal is None else State(posterior.near(normal), target)
    if isinstance(numbers[0], Scale):
        return None  # it is searched for by itself
    known = bound_at(plain, numbers, [number.start for number in numbers])
    if (normal := likelihood_normal(known, is_diagonal)) is None:
        return None
    family = getattr(posterior, "likeliest", posterior)
    node = family.near(beside(normal, numbers[0].best(plain, normal), NUMBER_WIDTH))
    return State(MixtureOverScales([node], [0.0], None), target)


def solve_from_best(
    solver: Solver, problem: Problem, options: SolverOptions
) -> Solution:
    """Solve from the better one of two starts; see `choose_start`."""
    start = choose_start(solver, problem, options)
    if start is None:
        return solver.solve(problem, options)
    return solver.solve(problem.at(start), replace(options, warm_start=True))


def _finite_value(found: Solution) -> float:
    return found.value if math.isfinite(found.value) else math.inf


# Starts from the prior are at most this many standard deviations from its mean.
FARTHEST_START = 10.0
# A normal log density falls by half the squared distance; starts from the prior are
# moved closer while theirs falls by more than this multiple of the square.
STEEPEST_START, MAX_HALVINGS = 2.0, 20
# Inflation of the standard deviations of starts that do not come from the prior.
WIDER = 3.0


def dispersed_starts(
    target: Target, normal: NormalForm, generator: torch.Generator, n_chains: int
) -> torch.Tensor:
    """Starts of chains, (n_chains, P), half of them from a normal near the posterior.

    The others are from the prior; from the normal, wider, for log-concave densities;
    and some at large likelihood, if the prior has a peak that chains do not leave.
    """
    eps = randn(generator, n_chains // 2, normal.size)
    n_rest = n_chains - n_chains // 2
    is_near = target.prior is None or target.starts_near_fit
    if is_near or target.is_log_concave:
        # Hyperpriors draw numbers that no chain returns from. Where the density is
        # log-concave there is no other mode, and a prior may be wide without end.
        wide = normal.transform(WIDER * randn(generator, n_rest, normal.size))
        return torch.cat([normal.transform(eps), wide])
    prior = target.reference.sample(n_rest, generator)
    around = target.reference.matching_normal()
    if around is not None:
        # Chains do not return from draws of heavy tails.
        reach = FARTHEST_START * around.variance.sqrt()
        prior = prior.clamp(around.mean - reach, around.mean + reach)
    starts = torch.cat([normal.transform(eps), _drawn_back(target, normal, prior)])
    if target.reference.is_log_concave or target.reference.n_unknown_scales:
        return starts
    likely = likelihood_normal(target)
    if likely is not None:
        third = len(starts[::3])
        starts[::3] = likely.transform(randn(generator, third, likely.n_noise))
    return starts


def _drawn_back(
    target: Target, normal: NormalForm, starts: torch.Tensor
) -> torch.Tensor:
    """Halve distances from the normal's mean if the density falls too steeply.

    No step size that suits the posterior is ever accepted there.
    """
    moved = starts - normal.mean
    top = target.log_joint(normal.mean[None])
    for _ in range(MAX_HALVINGS):
        fall = top - target.log_joint(normal.mean + moved)
        distance = normal.whiten(moved).square().sum(1)
        stays = fall <= STEEPEST_START * (distance + moved.shape[1])
        if stays.all():
            break
        moved = torch.where(stays[:, None], moved, 0.5 * moved)
    return normal.mean + moved
