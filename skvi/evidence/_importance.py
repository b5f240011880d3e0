"""Importance sampling for the lower bound, MCMC chains for the upper one."""

import math

import torch

from skvi._sampling._chains import N_CHAINS, Report, silent
from skvi._sampling._importance import draw_limit, draw_weighted
from skvi.base import NormalForm
from skvi.evidence._estimates import (
    Sides,
    block_size,
    error_of,
    is_loose,
    n_draws_for,
    weights_of_chains,
    width_so_far,
)
from skvi.evidence._near_normal import (
    ProposalFamily,
    Setting,
    closest,
    relative_variance,
)
from skvi.posteriors import Posterior
from skvi.solvers._moment_matching import fit_proposal_normal
from skvi.targets import Target
from skvi.targets._lifted import LiftedTarget
from skvi.utils._interrupts import UNLIMITED, Clock

N_PILOT = 4096
N_FORGET, MIN_ITER = 5, 50
# Most rows times chains of a move.
MAX_AT_ONCE = 2**15
# R-hat after the warm-up above which chains are stopped early, and reported.
HOPELESS_RHAT, MAX_HOPELESS_ITER = 2.0, 200


def importance_sides(
    target: Target,
    family: ProposalFamily,
    generator: torch.Generator,
    n_draws: int | None,
    precision: float | None,
    report: Report = silent,
    clock: Clock = UNLIMITED,
) -> Sides:
    """Log weights of a proposal below, and of a density of lighter tails above."""
    setting = Setting(target, generator, report, clock.until(0.4))
    n_pilot = N_PILOT // 4 if is_loose(precision) else N_PILOT
    proposal, pilot, sampler = family.explore(setting, n_pilot)
    # All settings of an estimate are chosen from draws that do not enter it.
    trials = family.lighter(sampler.pilot, [sampler.normal])
    above = closest(trials, sampler.pilot)
    limit = draw_limit(target.layout.size)
    n_below = n_draws or family.n_below(pilot, precision, limit)
    # Without a requested precision this is the number of states of chains, not of
    # effectively independent draws.
    correlation = above.correlation
    limit = limit if precision else int(limit / correlation)
    n_above = n_draws or n_draws_for(above.variance_of_few, precision, limit)
    n_iter = max(MIN_ITER, math.ceil(n_above * correlation / N_CHAINS))
    # Beside unknowns the time of few rows is that of calls: more chains take no longer.
    is_lifted = isinstance(target, LiftedTarget)
    free = MAX_AT_ONCE // (N_CHAINS * target.cost_per_draw) if is_lifted else 1
    if (factor := min(free, n_iter // (2 * MIN_ITER))) > 1:
        sampler.multiply(factor)
        n_iter = math.ceil(n_iter / factor)
    # The choices above used the last states of the warm-up: discard them.
    sampler.run(N_FORGET)
    below = draw_weighted(target, proposal, n_below, generator, clock.until(0.6))
    report(width_so_far(below.log_weights, sampler.pilot, above.density), 0.0)
    if sampler.pilot.rhat > HOPELESS_RHAT:  # more draws would not help
        n_iter = min(n_iter, MAX_HOPELESS_ITER)
    chains = sampler.run(n_iter, clock.until(0.95))
    n_kept = chains.log_joint.numel()
    return Sides(
        method="importance",
        forward=below.log_weights,
        reverse=weights_of_chains(chains, above.density),
        bridge=weights_of_chains(chains, proposal),
        k_below=family.k_below(relative_variance(pilot), len(below.log_weights)),
        k_above=block_size(above.variance, min(n_above, n_kept)),
        chains=chains,
        error=math.inf if n_draws is not None else error_of(precision),
        is_cut=sampler.is_cut or len(below.theta) < n_below,
        is_block_larger=family.least_block > 1,
    )


# Coefficients times rows from which chains take minutes, where nothing else will do:
# they need some 100,000 gradients.
MAX_WORK = 1.2e6
# The same for a path from the prior of a network, which is tuned in one piece: 40 s of
# that alone (2026-11-26, 2 cores, x86_64; 30 s for 75,000), before chains.
MAX_PATH = 1e5
# Variance of the logs of weights beyond which no proposal is near, and draws behind it:
# 1,000 sparse rows of 1,300 features under N(0, 1) have 3.7, and take minutes.
FAR, N_DRAWS = 1.0, 256
# Steps from a fit, of any quality, to that variance within a factor of 2, and the
# variance that is then beyond doubt.
N_ROUGH, DOUBTLESS = 3, 10.0


def why_path_too_long(target: Target) -> str:
    """Why a path from the prior of a network would take many minutes; else ""."""
    rows, size = target.cost_per_draw, target.layout.size
    if rows * size <= MAX_PATH:
        return ""
    return LONG_PATH.format(size, rows)


@torch.no_grad()
def why_certainly_too_long(
    target: Target, posterior: Posterior, generator: torch.Generator
) -> str:
    """`why_too_long` after few steps, where a proposal takes long to fit, too.

    A few steps from the fit show that no normal comes near, if none does by far.
    """
    if not _is_large(target) or target.reference.is_log_concave:
        return ""
    start = posterior.components[0].as_normal()
    if start is None:
        return ""
    rough = fit_proposal_normal(target, N_ROUGH, start)
    if rough is None:
        return ""
    return why_too_long(target, rough, generator, DOUBTLESS)


@torch.no_grad()
def why_too_long(
    target: Target,
    normal: NormalForm,
    generator: torch.Generator,
    far: float = FAR,
) -> str:
    """Why bounds of a linear model would take minutes, with a remedy; else "".

    No normal is near if the variance of log weights under `normal` exceeds `far`.
    """
    if not _is_large(target) or _is_near(target, normal, generator, far):
        return ""
    is_normal = target.reference.as_normal() is not None
    prior = "a normal prior" if is_normal else "this prior"
    return TOO_LONG.format(target.layout.size, target.cost_per_draw, prior)


def _is_near(
    target: Target, normal: NormalForm, generator: torch.Generator, far: float
) -> bool:
    log_weights = draw_weighted(target, normal, N_DRAWS, generator).log_weights
    return float(log_weights.var()) <= far


def _is_large(target: Target) -> bool:
    is_linear = target.has_design or isinstance(target, LiftedTarget)
    return is_linear and target.layout.size * target.cost_per_draw > MAX_WORK


TOO_LONG = (
    "{:,} coefficients and {:,} rows, and under {} their posterior is far from every "
    "normal: chains would take minutes; keep fewer features, chosen without looking at "
    "y, give the prior a smaller scale, or give max_seconds to try nevertheless"
)
LONG_PATH = (
    "the path from the prior to a posterior of {:,} weights and {:,} rows would take "
    "many minutes: compare networks by lower_bound_, with divergence='kl', keep fewer "
    "hidden units, as hidden_layer_sizes=10 and posterior='mean_field' do, or give "
    "method='tempering' to try nevertheless"
)
