"""Where fits start: near what a neighbouring, easier problem gives."""

from copy import copy
from dataclasses import replace

import torch

from skvi.divergences import KL
from skvi.likelihoods import GaussianLikelihood
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.priors import Normal, build_prior
from skvi.solvers import Alternating, NaturalGradient, Problem, SolverOptions
from skvi.solvers._hyper import check_noise
from skvi.solvers.base import PhaseInterrupted
from skvi.targets import HierarchicalTarget
from skvi.utils._robust import median_distance

__all__ = ["approach", "start_near"]

# A start need not be exact.
ROUGH = SolverOptions(max_iter=30, tol=0.1)
# The noise falls by this factor from one start to the next.
SHRINK = 3.0
# Above so many parameters a start is factorised.
MAX_FULL_RANK = 1000


def approach(problem, noise_scale):
    """Shrink the noise in steps, so that a robust loss sees the rows from the start.

    A robust loss of rows that are many noise standard deviations away is flat: from
    coefficients of zero it would not find the data.

    Parameters
    ----------
    problem : Problem
        Of a target whose noise is fixed.
    noise_scale : float
        In units of the fit.

    Returns
    -------
    bool
        Whether the posterior was moved.
    """
    y, w = problem.target.y, problem.target.sample_weight
    w = torch.ones_like(y) if w is None else w
    spread = median_distance(y.numpy(), w.numpy(), 0.0)
    if not spread > noise_scale:
        return False
    scale, options = spread, ROUGH
    while scale > 1.5 * noise_scale:
        wider = _with_noise(problem.target, GaussianLikelihood(scale))
        found = NaturalGradient().solve(replace(problem, target=wider), options)
        found.raise_interrupt()
        options, scale = replace(ROUGH, warm_start=True), scale / SHRINK
    return True


def _with_noise(target, likelihood):
    """Copy of a target with another noise."""
    other = copy(target)
    other._likelihood, other._form = likelihood, None
    other.hyper = other.initial_hyper()
    return other


def start_near(problem, likelihood):
    """Move a posterior to the fit with learnt noise and N(0, s^2) coefficients.

    s is such that each feature alone would explain the target.

    Gamma parts get its precisions as means, and shapes of half the number of normal
    variables that they are about.

    Parameters
    ----------
    problem : Problem
    likelihood : GaussianLikelihood
        Of the fit.

    Raises
    ------
    PhaseInterrupted
        On Ctrl-C, with the posterior moved to what was found.
    NoOptimumError
        A robust loss fits some rows exactly there, and draws would lead nowhere.
    """
    target = problem.target
    layout = target.predictor.layout
    small = layout.size <= MAX_FULL_RANK
    family = FullRankNormal() if small else MeanFieldNormal()
    priors = {"coef": Normal(scale=target.coef_scale()), "intercept": Normal()}
    near = HierarchicalTarget(
        target.predictor,
        likelihood,
        target.loss,
        build_prior({name: priors[name] for name in layout}, layout),
        target.X,
        target.y,
        target.sample_weight,
    )
    start = Problem(near, ELBO(), KL(), family.build(layout), None)
    try:
        _solve_near(start, likelihood)
    except PhaseInterrupted:
        _take_over(problem, start)
        raise
    _take_over(problem, start)


def _solve_near(start, likelihood):
    if likelihood.learnt == ():
        moved = approach(start, likelihood.length_scale)
        options = replace(ROUGH, warm_start=moved)
        NaturalGradient().solve(start, options).raise_interrupt()
    else:
        Alternating().solve(start, ROUGH).raise_interrupt()
        near = start.target
        check_noise(near, start.posterior.as_normal(), near.likelihood._scale)


def _take_over(problem, start):
    """Move posterior and learnt noise to where the start is."""
    near, target = start.target, problem.target
    _fill(problem.posterior, start.posterior.as_normal(), near)
    if len(near.hyper) and target.learnt[: len(near.hyper)] == near.learnt:
        # Learnt prior scales come after the noise, and stay at their start.
        target.hyper = torch.cat([near.hyper.detach(), target.hyper[len(near.hyper) :]])


def _fill(posterior, normal, near):
    if not hasattr(posterior, "part"):
        posterior.set_normal(normal)
        return
    d, n = near.predictor.n_features, len(near.y)
    noise = float(near.likelihood._scale) ** -2
    squares = normal.mean[:d].square() + normal.variance[:d]
    for names in posterior.names:
        part = posterior.part(names[0])
        if hasattr(part, "set_gamma"):
            size = part.layout.size
            if names[0] == "noise_precision":
                half, mean = torch.full((1,), 0.5 * n), torch.full((1,), noise)
            else:
                half = torch.full((size,), 0.5 * d / size)
                mean = 1 / (squares if size > 1 else squares.mean().reshape(1))
            part.set_gamma(half.double(), half / mean.double())
        else:
            where = torch.cat([_positions(near.layout, name) for name in names])
            part.set_normal(normal.marginal(where))
        posterior.set_part(names[0], part)


def _positions(layout, name):
    block = layout[name].slice
    return torch.arange(block.start, block.stop)
