"""Importance sampling for the lower bound, MCMC chains for the upper one."""

import math
import time
from itertools import product

import torch

from skvi.base import NormalForm
from skvi.base._protocols import Density, Proposal
from skvi.evidence._clock import UNLIMITED, Clock
from skvi.evidence._estimates import block_size, width_so_far
from skvi.evidence._modes import Modes, is_heavy_tailed
from skvi.evidence._scale_modes import ScaleModes
from skvi.evidence._sides import Sides, error_of, is_loose, n_draws_for
from skvi.sampling import (
    Chains,
    HamiltonianChains,
    WeightedDraws,
    adapt_proposal,
    draw_limit,
    draw_weighted,
    effective_sample_size,
    pareto_khat,
)
from skvi.sampling._importance import badness, tail_score
from skvi.sampling._mixture import Mixture
from skvi.sampling._state import Report, silent
from skvi.solvers import dispersed_starts
from skvi.targets import Target

__all__ = [
    "HOPELESS_RHAT",
    "MIN_ITER",
    "N_CHAINS",
    "N_FORGET",
    "N_WARMUP",
    "chain_moments",
    "importance_sides",
]

N_PILOT = 4096
N_CHAINS, N_WARMUP, N_FORGET, MIN_ITER = 64, 150, 5, 50
# R-hat after the warm-up above which chains are stopped early, and reported.
HOPELESS_RHAT, MAX_HOPELESS_ITER = 2.0, 200
REVERSE_SCALES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
# Draws of chains per parameter required to estimate a full covariance.
DRAWS_PER_PARAMETER = 10
# A proposal fails with a smaller fraction of effective draws, or a heavier tail.
LOST_FRACTION, LOST_KHAT, MAX_RESCUES = 0.05, 0.7, 2


def importance_sides(
    target: Target,
    normal: NormalForm,
    generator: torch.Generator,
    n_draws: int | None,
    precision: float | None,
    report: Report = silent,
    clock: Clock = UNLIMITED,
    scales: ScaleModes | None = None,
) -> Sides:
    """Log weights of a Student-t below, and of a normal above, both fitted.

    Mixtures of them where there are several modes, or scales.
    """
    modes = scales or Modes.find(target, normal)
    proposal, pilot, sampler = _proposal_and_chains(
        target,
        normal,
        modes,
        generator,
        report,
        clock.until(0.4),
        is_loose(precision),
    )
    # All settings of an estimate are chosen from draws that do not enter it.
    variance_below = len(pilot.theta) / pilot.ess - 1
    above, variance_above, logs_above, correlation = _reverse_proposal(
        sampler.pilot, (normal, sampler.normal), modes
    )
    limit = draw_limit(target.layout.size)
    variance = max(variance_below, _variance_of_logs(pilot.log_weights))
    if scales is not None:  # whose blocks are large
        variance = variance_below
    n_below = n_draws or n_draws_for(variance, precision, limit)
    if scales is not None and n_draws is None:
        n_below = max(n_below, scales.least_draws)
    variance = max(variance_above, logs_above)
    # Without a requested precision this is the number of states of chains, not of
    # effectively independent draws.
    limit = limit if precision else int(limit / correlation)
    n_above = n_draws or n_draws_for(variance, precision, limit)
    # The choices above used the last states of the warm-up: discard them.
    sampler.run(N_FORGET)
    below = draw_weighted(target, proposal, n_below, generator, clock.until(0.6))
    report(width_so_far(below.log_weights, sampler.pilot, above), 0.0)
    n_iter = math.ceil(n_above * correlation / N_CHAINS)
    if sampler.pilot.rhat > HOPELESS_RHAT:  # more draws would not help
        n_iter = min(n_iter, MAX_HOPELESS_ITER)
    chains = sampler.run(max(MIN_ITER, n_iter), clock.until(0.95))
    theta = chains.theta.flatten(0, 1)

    def reverse_weights(log_density: torch.Tensor) -> torch.Tensor:
        return chains.log_joint - log_density.reshape(chains.log_joint.shape)

    k_below = block_size(variance_below, len(below.log_weights))
    if scales is not None:
        k_below = max(k_below, scales.least_block(len(below.log_weights)))
    return Sides(
        method="importance",
        forward=below.log_weights,
        reverse=reverse_weights(above.log_prob(theta)),
        bridge=reverse_weights(proposal.log_prob(theta)),
        k_below=k_below,
        k_above=block_size(variance_above, min(n_above, len(theta))),
        chains=chains,
        error=math.inf if n_draws is not None else error_of(precision),
        is_cut=sampler.is_cut or len(below.theta) < n_below,
        is_block_larger=scales is not None,
    )


def _proposal_and_chains(
    target: Target,
    normal: NormalForm,
    modes: Modes | ScaleModes | None,
    generator: torch.Generator,
    report: Report,
    deadline: float,
    is_short: bool,
) -> tuple[Proposal, WeightedDraws, HamiltonianChains]:
    """A fitted proposal, its draws, and chains that are whitened by it.

    A factorized q can resemble the posterior so little that its weights are useless;
    chains still reach the posterior from there, and locate the proposal.
    """
    n_pilot = N_PILOT // 4 if is_short else N_PILOT
    if isinstance(modes, ScaleModes):
        starts = modes.starts(N_CHAINS, generator)
        found = modes.proposal, modes.pilot
        return _jumping_chains(
            target, normal, starts, *found, generator, report, deadline
        )
    proposal, pilot = adapt_proposal(
        target, normal, generator, n_pilot, deadline=deadline
    )
    if modes is not None:
        mixture, pilot = modes.proposal(target, proposal, generator)
        first = proposal.normal
        starts = dispersed_starts(target, first, generator, N_CHAINS)
        return _jumping_chains(
            target, first, starts, mixture, pilot, generator, report, deadline
        )
    starts = dispersed_starts(target, proposal.normal, generator, N_CHAINS)
    # Chains take long to return from starts in heavy tails.
    jumps = is_heavy_tailed(target)
    sampler = HamiltonianChains(
        target,
        starts,
        proposal.normal,
        generator,
        report=report,
        jump=proposal if jumps else None,
    )
    sampler.warm_up(N_WARMUP, deadline)
    for _ in range(MAX_RESCUES):
        n_kept = sampler.pilot.log_joint.numel()
        is_late = time.monotonic() > deadline
        if (
            is_late
            or not _is_lost(pilot)
            or n_kept < DRAWS_PER_PARAMETER * target.layout.size
        ):
            break
        near = chain_moments(sampler.pilot, proposal.normal)
        trial, draws = adapt_proposal(target, near, generator)
        if badness(draws) >= badness(pilot):
            break
        proposal, pilot = trial, draws
        starts = sampler.pilot.theta[:, -1]
        sampler = HamiltonianChains(
            target, starts, proposal.normal, generator, report=report
        )
        sampler.warm_up(N_WARMUP, deadline)
    return proposal, pilot, sampler


def _jumping_chains(
    target: Target,
    normal: NormalForm,
    starts: torch.Tensor,
    proposal: Mixture,
    pilot: WeightedDraws,
    generator: torch.Generator,
    report: Report,
    deadline: float,
) -> tuple[Proposal, WeightedDraws, HamiltonianChains]:
    """Chains that use a proposal for several modes, or scales, to jump between them."""
    near = pilot.moments() or normal
    sampler = HamiltonianChains(
        target, starts, near, generator, report=report, jump=proposal
    )
    return proposal, pilot, sampler.warm_up(N_WARMUP, deadline)


def _is_lost(pilot: WeightedDraws) -> bool:
    return pilot.ess < LOST_FRACTION * len(pilot.theta) or pilot.khat > LOST_KHAT


def chain_moments(chains: Chains, fallback: NormalForm) -> NormalForm:
    """Normal with the moments of the draws; factorized if there are too few."""
    theta = chains.theta.flatten(0, 1)
    mean, centered = theta.mean(0), theta - theta.mean(0)
    if len(theta) < DRAWS_PER_PARAMETER * theta.shape[1]:
        return NormalForm(mean, centered.std(0).clamp(min=1e-150))
    covariance = centered.T @ centered / (len(theta) - 1)
    factor, info = torch.linalg.cholesky_ex(covariance)
    return fallback if int(info) else NormalForm(mean, factor)


def _reverse_proposal(
    pilot: Chains, candidates: tuple[NormalForm, ...], modes: Modes | ScaleModes | None
) -> tuple[Density, float, float, float]:
    """Choose the normal or mixture r whose ratio r/p varies least under the posterior.

    Its tails must be lighter than the posterior's: for a Student-t r and a normal
    prior the variance is infinite. Narrower versions are therefore tried as well.
    Returns r, the relative variance of r/p, the variance of its logarithm, and the
    number of chain draws per effectively independent draw.
    """
    theta, log_joint = pilot.theta.flatten(0, 1), pilot.log_joint.flatten()
    best: tuple[Density, float, float, float] = (candidates[0], math.inf, 0.0, 1.0)
    best_score = math.inf
    trials: list[Density] = [
        NormalForm(base.mean, factor * base.scale)
        for base, factor in product(candidates, REVERSE_SCALES)
    ]
    if modes is not None:
        normals = [*candidates, modes.normal]
        trials = [modes.reverse(pilot, normals, factor) for factor in REVERSE_SCALES]
    for trial in trials:
        log_u = trial.log_prob(theta) - log_joint
        u = torch.exp(log_u - log_u.max())
        variance = float(u.var() / u.mean() ** 2)
        score = tail_score(variance, pareto_khat(log_u))
        if score < best_score:
            ess = float(effective_sample_size(u.reshape(*pilot.log_joint.shape, 1))[0])
            correlation = min(max(len(u) / ess, 1.0), 4.0)
            best = trial, variance, _variance_of_logs(log_u), correlation
            best_score = score
    return best


def _variance_of_logs(log_weights: torch.Tensor) -> float:
    """Variance of log weights, as for the log mean exp of few weights."""
    variance = float(log_weights.var())
    return variance if math.isfinite(variance) else 0.0
