"""Importance sampling for the lower bound, MCMC chains for the upper one."""

import math

import torch

from skvi._sampling._chains import N_CHAINS
from skvi._sampling._importance import draw_limit, draw_weighted
from skvi._sampling._positions import Report, silent
from skvi.evidence._estimates import block_size, weights_of_chains, width_so_far
from skvi.evidence._proposals import (
    ProposalFamily,
    Setting,
    closest,
    relative_variance,
)
from skvi.evidence._sides import Sides, error_of, is_loose, n_draws_for
from skvi.targets import Target
from skvi.targets._lifted import LiftedTarget
from skvi.utils._clock import UNLIMITED, Clock

__all__ = ["HOPELESS_RHAT", "MIN_ITER", "N_FORGET", "importance_sides"]

N_PILOT = 4096
N_FORGET, MIN_ITER = 5, 50
# Most rows times chains of a move.
MAX_AT_ONCE = 2**15
# R-hat after the warm-up above which chains are stopped early, and reported.
HOPELESS_RHAT, MAX_HOPELESS_ITER = 2.0, 200
REVERSE_SCALES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)


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
    trials = family.lighter(sampler.pilot, REVERSE_SCALES, [sampler.normal])
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
