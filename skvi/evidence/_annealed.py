"""Annealed importance sampling for the lower bound, reversed for the upper one."""

import math
import time

import torch

from skvi._sampling._annealing import AnnealedPath, tune_path
from skvi._sampling._chains import Chains, HamiltonianChains
from skvi._sampling._diagnostics import pareto_khat
from skvi._sampling._importance import StudentT
from skvi._sampling._state import Report, silent
from skvi.base import NormalForm
from skvi.evidence._clock import UNLIMITED, Clock
from skvi.evidence._estimates import block_size
from skvi.evidence._importance import HOPELESS_RHAT, MIN_ITER, N_FORGET
from skvi.evidence._modes import Modes
from skvi.evidence._one_mode import chain_moments
from skvi.evidence._proposals import N_CHAINS, N_WARMUP
from skvi.evidence._sides import MAX_RHAT, Sides, error_of, n_draws_for
from skvi.solvers._chain_starts import dispersed_starts
from skvi.solvers._wide_start import likelihood_normal
from skvi.targets import Target

__all__ = ["annealed_sides"]

# Target variance of log weights of a path: far below 1 a finer path costs as much as it
# saves in draws, far above 1 the tails are too heavy.
VARIANCE = 0.3
# Shortest path, and how heavy the tails of its weights may be: Pareto k.
MIN_LEVELS, HEAVY, MAX_REFINED = 8, 0.5, 4
# Gradient evaluations times elements processed by each, for one direction.
MAX_WORK = 2e10
# Elements that a move processes per parameter, for any target.
MOVE_COST = 100
MIN_PATHS, PILOT_PATHS, MAX_PATHS = 256, 128, 2**14
# Fraction of the time left that the paths of one direction get, and fewest paths.
PATHS_SHARE, FEWEST_PATHS = 0.3, 2 * N_CHAINS
# Chains that do not agree yet run this many times as long.
MORE = 6


def annealed_sides(
    target: Target,
    normal: NormalForm,
    generator: torch.Generator,
    n_draws: int | None,
    precision: float | None,
    report: Report = silent,
    clock: Clock = UNLIMITED,
) -> Sides:
    """Log weights of annealed paths from a normal, and of paths back to it."""
    path, ends = tune_path(target, normal, generator)
    sampler = _sampler(target, path, ends, generator, report, clock.until(0.4))
    path = _improve(path, sampler.pilot, generator)
    # For chains that have not mixed a finer path would only cost more.
    is_hopeless = sampler.pilot.rhat > HOPELESS_RHAT
    is_late = time.monotonic() > clock.until(0.5)
    most = 1 if is_hopeless or is_late else 16
    path, variance, seconds = _refine(path, sampler, generator, most, clock)
    relative = math.expm1(min(variance, 20.0))
    limit = MIN_PATHS if is_hopeless else _n_paths(path)
    # How many there is time for is known before the first of them.
    affordable = max(clock.affordable(seconds, PATHS_SHARE), FEWEST_PATHS)
    is_late = is_late or affordable < limit
    limit = int(min(limit, affordable))
    n_below = n_draws or n_draws_for(relative, precision, limit, MIN_PATHS)
    n_above = max(n_below, N_CHAINS * 4)
    sampler.run(N_FORGET)
    per_chain = math.ceil(n_above / N_CHAINS)
    n_iter = max(MIN_ITER, 2 * per_chain)
    chains = sampler.run(n_iter, clock.until(0.7))
    if MAX_RHAT < chains.rhat < HOPELESS_RHAT:
        chains = sampler.run(MORE * n_iter, clock.until(0.7))
    forward = path.forward(n_below, generator, report).log_weights
    per_chain = min(per_chain, chains.theta.shape[1])
    thinned = chains.theta[:, :: chains.theta.shape[1] // per_chain][:, :per_chain]
    reverse = path.reverse(thinned.flatten(0, 1), generator, report)
    reverse = reverse.reshape(N_CHAINS, per_chain)
    return Sides(
        method="annealing",
        forward=forward,
        reverse=reverse,
        bridge=reverse,
        k_below=block_size(relative, n_below),
        k_above=block_size(relative, reverse.numel()),
        chains=chains,
        error=math.inf if n_draws is not None else error_of(precision),
        is_cut=sampler.is_cut or is_late,
    )


def _sampler(
    target: Target,
    path: AnnealedPath,
    ends: torch.Tensor,
    generator: torch.Generator,
    report: Report,
    deadline: float = math.inf,
) -> HamiltonianChains:
    """Chains that start at end points of paths and in the prior, warmed up twice.

    The second time they are whitened by the moments from the first.
    """
    starts = dispersed_starts(target, path.normal, generator, N_CHAINS)
    # The starts of `dispersed_starts` at large likelihood are kept.
    is_end = torch.arange(N_CHAINS, device=ends.device) < N_CHAINS // 2
    if likelihood_normal(target) is not None:
        is_end[::3] = False
    starts[is_end] = ends[:N_CHAINS][is_end]
    jump = None
    modes = Modes.find(target, path.normal)
    # With more modes than components few jumps are accepted.
    if modes is not None and modes.is_complete:
        jump, _ = modes.proposal(target, StudentT(path.normal), generator)
    sampler = HamiltonianChains(
        target, starts, path.normal, generator, report=report, jump=jump
    )
    sampler.warm_up(N_WARMUP, deadline)
    normal = chain_moments(sampler.pilot, path.normal)
    last = sampler.pilot.theta[:, -1]
    sampler = HamiltonianChains(
        target, last, normal, generator, report=report, jump=jump
    )
    return sampler.warm_up(N_WARMUP, deadline)


def _improve(
    path: AnnealedPath, pilot: Chains, generator: torch.Generator
) -> AnnealedPath:
    """A path from a normal with the chains' moments, if it is shorter."""
    normal = chain_moments(pilot, path.normal)
    other, _ = tune_path(path.target, normal, generator)
    return other if len(other.betas) < len(path.betas) else path


def _refine(
    path: AnnealedPath,
    sampler: HamiltonianChains,
    generator: torch.Generator,
    most: int,
    clock: Clock,
) -> tuple[AnnealedPath, float, float]:
    """Divide the path until its log weights vary little, or it costs too much.

    Returns the path, the variance, and seconds per path; `most` paths must be possible.
    """
    n_back = sampler.pilot.theta.shape[1]
    starts = sampler.pilot.theta[:, [n_back // 2, -1]].flatten(0, 1)
    for _ in range(MAX_REFINED):
        before = time.monotonic()
        forward = path.forward(PILOT_PATHS, generator).log_weights
        reverse = path.reverse(starts, generator)
        seconds = (time.monotonic() - before) / (len(forward) + len(reverse))
        variance = max(float(forward.var()), float(reverse.var()))
        wanted = variance / VARIANCE if math.isfinite(variance) else math.inf
        if max(pareto_khat(forward), pareto_khat(-reverse)) > HEAVY:
            wanted = max(wanted, 2.0)
        wanted = max(wanted, MIN_LEVELS / (len(path.betas) - 1))
        affordable = clock.affordable(seconds, PATHS_SHARE) / FEWEST_PATHS
        factor = math.ceil(min(wanted, most, _n_paths(path) / MIN_PATHS))
        factor = int(min(factor, affordable))
        if factor <= 1:
            break
        path, variance = path.refined(factor), variance / factor
        seconds *= factor
    return path, variance, seconds


def _n_paths(path: AnnealedPath) -> int:
    """Number of paths within the budget."""
    numbers = (path.target.cost_per_draw + MOVE_COST) * path.target.layout.size
    per_path = 4 * len(path.betas) * numbers
    return int(min(max(MAX_WORK / per_path, MIN_PATHS), MAX_PATHS))
