"""Starts of fits: near the solution of a similar, easier problem."""

from copy import copy
from dataclasses import replace

import torch

from skvi.base._gamma_form import GammaForm
from skvi.divergences import KL
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model._blocks import MAX_FULL
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.priors import Normal, build_prior
from skvi.solvers import NaturalGradient, Problem, SolverOptions
from skvi.solvers._alternating import Alternating
from skvi.solvers._empirical_bayes import EmpiricalBayes
from skvi.solvers._hyper import check_noise
from skvi.solvers._solution import PhaseInterrupted, State
from skvi.solvers._wide_start import solve_from_best
from skvi.targets import HierarchicalTarget
from skvi.targets._hierarchical import coef_scale
from skvi.utils._arrays import median_distance

__all__ = ["approach", "start_at_normal", "start_near"]

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
    start = replace(problem, objective=ELBO(), divergence=KL())
    if given.starts_at_normal:
        posterior = _normal_family(layout).build(layout).to(given.params.device)
        start = replace(start, posterior=posterior)
    for solver in (EmpiricalBayes, NaturalGradient, Alternating):
        if not solver.missing(start):
            found = solve_from_best(solver(), start, SolverOptions(tol=1e-3))
            found.raise_interrupt()
            normal = found.posterior.as_prior().as_normal()
            if normal is not None:
                return State(given.near(normal), found.target)
            return found.state
    return None


def _normal_family(layout):
    """The family of normals, of full rank for few parameters."""
    return FullRankNormal() if layout.size <= MAX_FULL else MeanFieldNormal()


def start_near(problem, likelihood):
    """State near the fit with learned noise and coefficients N(0, s^2).

    s is such that each feature alone would explain the target; Gamma parts get the
    fit's precisions as means. Raises NoOptimumError if a robust loss fits some rows
    exactly.
    """
    target = problem.target
    layout = target.predictor.layout
    priors = {"coef": Normal(scale=coef_scale(target)), "intercept": Normal()}
    near = HierarchicalTarget(
        target.predictor,
        likelihood,
        target.loss,
        build_prior({name: priors[name] for name in layout}, layout),
        target.X,
        target.y,
        target.rows.weight,
    ).to(target.rows.device)
    posterior = _normal_family(layout).build(layout).to(target.rows.device)
    start = Problem(near, ELBO(), KL(), posterior, None)
    try:
        found = _solve_near(start, likelihood)
    except PhaseInterrupted as phase:
        raise PhaseInterrupted(_taken_over(problem, phase.state)) from None
    return _taken_over(problem, found)


def _solve_near(start, likelihood):
    if likelihood.learned == ():
        moved = approach(start, likelihood.length_scale)
        options = replace(ROUGH, warm_start=moved is not None)
        found = NaturalGradient().solve(start.at(moved or start.state), options)
    else:
        found = Alternating().solve(start, ROUGH)
    found.raise_interrupt()
    if likelihood.learned:
        scale = found.target.likelihood._scale
        check_noise(found.target, found.posterior.as_normal(), scale)
    return found.state


def _taken_over(problem, near):
    """State of a problem with the coefficients and learned noise of another one."""
    hyper, target = near.target.hyper, problem.target
    if len(hyper) and target.learned[: len(hyper)] == near.target.learned:
        # Learned prior scales come after the noise, and stay at their start.
        target = target.at(torch.cat([hyper.detach(), target.hyper[len(hyper) :]]))
    normal, posterior = near.posterior.as_normal(), problem.posterior
    parts = {}
    for names, part in posterior.parts.items():
        if part.as_gamma() is None:
            where = near.target.layout.positions(names)
            parts[names] = part.near(normal.marginal(where))
        else:
            gamma = _precisions(names[0], part.layout.size, normal, near.target)
            parts[names] = part.near_gamma(gamma)
    return State(posterior.with_parts(parts), target)


def _precisions(name, size, normal, near):
    """Gamma distributions with the precisions of a fit as means."""
    d, n = near.predictor.n_features, len(near.y)
    if name == "noise_precision":
        half = normal.mean.new_full((1,), 0.5 * n)
        mean = near.likelihood._scale.detach().reshape(1) ** -2
    else:
        squares = normal.mean[:d].square() + normal.variance[:d]
        half = squares.new_full((size,), 0.5 * d / size)
        mean = 1 / (squares if size > 1 else squares.mean().reshape(1))
    return GammaForm(half, half / mean)
