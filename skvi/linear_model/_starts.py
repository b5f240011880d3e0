"""Starts of fits: near the solution of a similar, easier problem."""

from copy import copy
from dataclasses import replace

import torch

from skvi.divergences import KLDivergence
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model._merging import MAX_FULL
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.posteriors._mixture import MixtureOverScales
from skvi.solvers import SolverOptions
from skvi.solvers._empirical_bayes import EmpiricalBayes
from skvi.solvers._natural_gradient import NaturalGradient, solve_from_best
from skvi.solvers._solution import PhaseInterrupted, State
from skvi.utils._validation import median_distance

# A start need not be exact.
ROUGH = SolverOptions(max_iter=30, tol=0.1)
# The noise decreases by this factor from one start to the next.
SHRINK = 3.0


def approach(problem, noise_scale):
    """Decrease the noise in steps to `noise_scale`; None if rows are close already.

    A robust loss of rows that are many noise standard deviations away is flat: from
    coefficients of zero it would not find the data.
    """
    y, w = problem.target.y, problem.target.rows.weight
    w = torch.ones_like(y) if w is None else w
    distance = median_distance(y.cpu().numpy(), w.cpu().numpy(), 0.0)
    if not distance > noise_scale:
        return None
    state, scale, options = problem.state, distance, ROUGH
    while scale > 1.5 * noise_scale:
        wider = _with_noise(problem.target, GaussianLikelihood(scale))
        near = problem.at(State(state.posterior, wider))
        found = NaturalGradient().solve(near, options)
        state = State(found.posterior, problem.target)
        if found.interrupted:
            raise PhaseInterrupted(state)
        options, scale = replace(ROUGH, warm_start=True), scale / SHRINK
    return state


def _with_noise(target, likelihood):
    """Copy of a target with another noise."""
    other = copy(target)
    other.likelihood_spec, other._form = likelihood, None
    other.hyper = other.initial_hyper()
    return other


def start_at_normal(problem):
    """State at the normal fit by the ELBO; None if no solver can find it.

    For posteriors that begin at a normal, and objectives whose draws have to be near.
    """
    given, layout = problem.posterior, problem.target.layout
    start = replace(problem, objective=ELBO(), divergence=KLDivergence())
    if given.starts_at_normal:
        posterior = normal_family(layout).build(layout).to(given.params.device)
        start = replace(start, posterior=posterior)
    for solver in (EmpiricalBayes, NaturalGradient):
        if not solver.missing(start):
            found = solve_from_best(solver(), start, SolverOptions(tol=1e-3))
            found.raise_interrupt()
            normal = found.posterior.as_prior().as_normal()
            if normal is not None:
                return State(given.near(normal), found.target)
            return found.state
    return None


def with_plain_normals(posterior):
    """Normals whose precisions have a border as those of a usual family."""
    first = getattr(posterior, "likeliest", posterior)
    if first.border is None:
        return posterior
    like = normal_family(posterior.layout).build(posterior.layout)
    like.units = posterior.units
    if isinstance(posterior, MixtureOverScales):
        return posterior.in_family(like)
    return like.near(posterior.as_normal())


def normal_family(layout):
    """The family of normals, of full rank for few parameters."""
    return FullRankNormal() if layout.size <= MAX_FULL else MeanFieldNormal()
