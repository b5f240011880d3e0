"""Evidence for posteriors with many modes: from the prior to them, and back.

Everything starts at a density that is invariant under the symmetries of the model, the
prior: no permutation-symmetric mode is missed, none is counted twice, and no |G| is
needed. Both bounds come from chains at all temperatures between prior and posterior
that are exchanged. In addition, populations of particles move from the prior to the
posterior; their estimates of Z are unbiased whatever they find, unlike those of chains.
"""

import math
import time
from dataclasses import dataclass

import torch
from scipy.special import stdtrit

from skvi._sampling._exchange import LadderDraws, ReplicaExchange
from skvi._sampling._particles import anneal, particle_estimates, tune_ladder
from skvi._sampling._replicas import Ladder
from skvi._sampling._state import Report
from skvi.base import NormalForm
from skvi.evidence._agreement import invariant_rhat
from skvi.evidence._estimates import Estimate
from skvi.evidence._sides import MAX_RHAT
from skvi.evidence._stepping import ladder_lower, ladder_upper
from skvi.exceptions import IncompatibleComponentsError
from skvi.targets import Target

__all__ = ["MIN_TRIPS", "N_FITTED", "N_SYSTEMS", "TemperedSides", "tempered_sides"]

# Systems of chains, sweeps of their warm-up, of the pilot run, and of the run itself.
N_SYSTEMS, N_WARMUP, N_PILOT, MIN_SWEEPS, MAX_SWEEPS = 16, 200, 60, 200, 3000
# A run whose chains disagree goes on if this multiple of its sweeps should suffice.
LONGER = 4
# Least number of round trips per system.
MIN_TRIPS = 1
LEAST_SWEEPS = 20
# Systems whose chain of the target starts at a draw of the fitted posterior.
N_FITTED = N_SYSTEMS // 4
# Independent populations, particles of each, of all of them, and of a test of speed.
N_ISLANDS, MIN_PARTICLES, MAX_PARTICLES, N_TIMED = 16, 4, 1024, 32
# Target distance of each bound from log Z, in nats.
DEFAULT_PRECISION = 0.25
# Fractions of the seconds after which the warm-up ends, that the particles may take,
# and after which the chains end.
WARM, OF_PARTICLES, END = 0.3, 0.15, 0.92
NORMAL_PROBABILITY = 0.977249868


@dataclass(frozen=True, eq=False)
class TemperedSides:
    """Estimates of both bounds, and the draws behind them."""

    below: torch.Tensor  # (M,), one for each system of chains
    above: torch.Tensor  # as below
    particles: torch.Tensor  # (R,), estimates whose exp has expectation Z
    draws: LadderDraws
    rhat: float  # of invariant quantities
    error: float  # target standard error, in nats
    is_cut: bool = False  # seconds were over before the planned sweeps


@torch.no_grad()
def tempered_sides(
    target: Target,
    fitted: torch.Tensor,
    generator: torch.Generator,
    n_draws: int | None,
    precision: float | None,
    max_seconds: float | None,
    report: Report,
    normal: NormalForm | None = None,
    least_sweeps: int = MIN_SWEEPS,
    n_systems: int = N_SYSTEMS,
) -> TemperedSides:
    """Bound log Z by replica exchange, and from below by particles as well.

    `fitted`, at most 4 draws of the posterior, start some chains. `precision`: distance
    of each bound from log Z in nats, 0.25 by default.
    """
    seconds = math.inf if max_seconds is None else max_seconds
    begin = time.monotonic()
    error = (DEFAULT_PRECISION if precision is None else precision) / 4
    orbits = _orbits(target)
    normal = _start_of_path(target) if normal is None else normal
    pilot = tune_ladder(target, normal, generator, orbits=orbits, report=report)
    starts = _starts(pilot.populations, pilot.ladder, fitted, n_systems, generator)
    sampler = ReplicaExchange(pilot.ladder, starts, generator, orbits, report)
    sampler.warm_up(N_WARMUP, begin + WARM * seconds)
    # All settings of an estimate are chosen from draws that do not enter it.
    first = sampler.run(N_PILOT, begin + (WARM + 0.1) * seconds)
    n_sweeps, n_blocks = _plan(first, error, n_draws, least_sweeps)
    left = max(begin + END * seconds - time.monotonic(), 0.0)
    left = min(left, OF_PARTICLES * seconds)
    particles = _particles(sampler.ladder, generator, left, report)
    draws = sampler.run(n_sweeps, begin + END * seconds)
    rhat = invariant_rhat(target, draws.chains)
    # The planned sweeps make the errors small; chains may need more of them to agree.
    most = LONGER * n_sweeps if n_draws is None else 0
    while not sampler.is_cut and 1 < (share := _shortage(draws, rhat)):
        n_sweeps = draws.n_sweeps
        if share * n_sweeps > most:
            break
        draws = draws.followed_by(sampler.run(n_sweeps, begin + END * seconds))
        rhat = invariant_rhat(target, draws.chains)
    n_blocks = min(n_blocks, draws.n_sweeps // LEAST_SWEEPS)
    return TemperedSides(
        ladder_lower(draws.log_weights, draws.ladder.betas, n_blocks),
        ladder_upper(draws.log_weights, draws.ladder.betas, n_blocks),
        particles,
        draws,
        rhat,
        error if n_draws is None else math.inf,
        sampler.is_cut,
    )


def _start_of_path(target: Target) -> NormalForm:
    normal = None if target.prior is None else target.prior.matching_normal()
    if normal is None:
        raise IncompatibleComponentsError(
            "method='tempering' starts from a normal that matches the prior, and "
            "this prior has none. Use method='annealing'."
        )
    return normal


def _orbits(target: Target) -> torch.Tensor | None:
    symmetry = target.symmetry
    return None if symmetry is None else symmetry.orbits(target.layout.size)


def _starts(
    populations: torch.Tensor,
    ladder: Ladder,
    fitted: torch.Tensor,
    n_systems: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """Whitened starts of all systems, (L, M, P), farther apart than the posterior.

    Half are from the resampled population, half draws of the prior, annealed; every
    fourth system's chain of the target starts at a draw of the fitted posterior.
    """
    half = n_systems // 2
    alone = anneal(ladder, n_systems - half, generator)
    starts = torch.cat([populations[:, :half], alone], 1).clone()
    fitted = fitted[: n_systems // 4]
    starts[-1, : 4 * len(fitted) : 4] = ladder.normal.whiten(
        fitted - ladder.normal.mean
    )
    return starts


def _plan(
    pilot: LadderDraws, error: float, n_draws: int | None, least: int
) -> tuple[int, int]:
    """Sweeps that bring the error down, and blocks that each run is divided into.

    Expectations should be two errors away from log Z, which takes enough blocks.
    """
    (_, n_systems, n_pilot), betas = pilot.log_weights.shape, pilot.ladder.betas
    bounds = ladder_upper, ladder_lower
    variance = max(float(bound(pilot.log_weights, betas).var()) for bound in bounds)
    if not math.isfinite(variance):
        variance = math.inf
    wanted = n_pilot * variance / (error**2 * n_systems)
    n_sweeps = int(min(max(wanted, least), MAX_SWEEPS))
    if n_draws is not None:
        n_sweeps = max(math.ceil(n_draws / n_systems), LEAST_SWEEPS)
    left = variance * n_pilot / n_sweeps
    n_blocks = 4 / math.sqrt(max(left * n_systems, 1e-12))
    return n_sweeps, int(min(max(n_blocks, 1), n_sweeps // LEAST_SWEEPS))


def _shortage(draws: LadderDraws, rhat: float) -> float:
    """How many times its sweeps a run would need: R-hat - 1 falls as 1 / sweeps."""
    trips = max(draws.round_trips, 1e-3)
    return max((rhat - 1) / (MAX_RHAT - 1), MIN_TRIPS / trips)


def _particles(
    ladder: Ladder, generator: torch.Generator, seconds: float, report: Report
) -> torch.Tensor:
    """Estimates of Z by independent populations, as large as time permits."""
    before = time.monotonic()
    particle_estimates(ladder, 1, N_TIMED, generator)
    each = (time.monotonic() - before) / N_TIMED
    n_total = min(seconds / each, MAX_PARTICLES)
    n_particles = max(int(n_total / N_ISLANDS), MIN_PARTICLES)
    return particle_estimates(ladder, N_ISLANDS, n_particles, generator, report)


def mean_and_error(values: torch.Tensor) -> Estimate:
    """Mean, and an error such that two of them give a 95 % interval.

    With few values it is inflated by quantiles of Student's t over normal ones.
    """
    n = len(values)
    factor = float(stdtrit(n - 1, NORMAL_PROBABILITY)) / 2
    error = factor * float(values.std()) / math.sqrt(n)
    return Estimate(float(values.mean()), error)
