"""Evidence of posteriors with many modes: from the prior to them, and back.

Everything starts at a density that symmetries of the model leave unchanged, the prior:
no copy of a mode is missed, none is counted twice, and no |G| is needed. The lower side
are particles that move through a ladder of temperatures, whose estimates of Z are
unbiased whatever the moves reach. The upper side are chains at all temperatures that
exchange places.
"""

import math
import time
from dataclasses import dataclass

import torch
from scipy.special import stdtrit

from skvi.base import NormalForm
from skvi.evidence._agreement import invariant_rhat
from skvi.evidence._stepping import ladder_upper
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors import Posterior
from skvi.sampling import (
    Ladder,
    LadderDraws,
    ReplicaExchange,
    anneal,
    particle_estimates,
    tune_ladder,
)
from skvi.sampling._state import Report
from skvi.targets import Target

__all__ = ["TemperedSides", "tempered_sides"]

# Systems of chains, sweeps of their warm-up, of the pilot run, and of the run itself.
N_SYSTEMS, N_WARMUP, N_PILOT, MIN_SWEEPS, MAX_SWEEPS = 16, 300, 100, 300, 2000
# Independent populations, and particles of each and of all of them.
MIN_ISLANDS, MAX_ISLANDS, MIN_PARTICLES = 8, 64, 32
PILOT_PARTICLES, LEAST_PARTICLES, MOST_PARTICLES = 64, 1024, 4096
# Nats between each bound and log Z that are aimed for.
DEFAULT_PRECISION = 0.25
# Fraction of the seconds that are left after the warm-up for the lower side, and what
# is kept back for the table.
BELOW, MARGIN = 0.3, 0.9
NORMAL_PROBABILITY = 0.977249868


@dataclass(frozen=True, eq=False)
class TemperedSides:
    """Estimates of both sides, and the draws behind them.

    Parameters
    ----------
    below : Tensor of shape (R,)
        Independent estimates, the exponential of each of which has the expectation Z.
    above : Tensor of shape (M,)
        Upper bounds, one for each system of chains.
    draws : LadderDraws
    rhat : float
        Of quantities that symmetries leave unchanged.
    error : float
        Standard error that was aimed for, in nats.
    """

    below: torch.Tensor
    above: torch.Tensor
    draws: LadderDraws
    rhat: float
    error: float


@torch.no_grad()
def tempered_sides(
    target: Target,
    posterior: Posterior,
    generator: torch.Generator,
    precision: float | None,
    max_seconds: float | None,
    report: Report,
) -> TemperedSides:
    """Bound log Z by particles below and by exchanging chains above.

    Parameters
    ----------
    target : Target
        With a prior that has a matching normal.
    posterior : Posterior
        The fitted one: some chains start at its draws.
    generator : torch.Generator
    precision : float or None
        Nats between each bound and log Z to aim for; None is 0.25.
    max_seconds : float or None
        To be spent at most, roughly; None is limited by the numbers of draws alone.
    report : callable

    Returns
    -------
    TemperedSides
    """
    budget = _Budget(max_seconds)
    error = (DEFAULT_PRECISION if precision is None else precision) / 4
    orbits = _orbits(target)
    normal = _start_of_path(target)
    pilot = tune_ladder(target, normal, generator, orbits=orbits, report=report)
    starts = _starts(pilot.populations, pilot.ladder, posterior, generator)
    sampler = ReplicaExchange(pilot.ladder, starts, generator, orbits, report)
    n_warmup = budget.affordable(lambda: sampler.warm_up(10), 10, 0.25, N_WARMUP)
    sampler.warm_up(n_warmup)
    # Everything that shapes an estimate is chosen from draws that do not enter it.
    first = sampler.run(N_PILOT)
    n_sweeps, n_blocks = _plan_chains(first, error)
    below = _particles(sampler.ladder, generator, error, budget, report)
    n_sweeps = budget.affordable(
        lambda: sampler.run(20), 20, 1.0, max(n_sweeps, MIN_SWEEPS)
    )
    draws = sampler.run(n_sweeps)
    above = ladder_upper(draws.log_weights, draws.ladder.betas, n_blocks)
    return TemperedSides(
        below, above, draws, invariant_rhat(target, draws.chains), error
    )


class _Budget:
    """Seconds that may be spent: it only shortens what would be done without it."""

    def __init__(self, max_seconds: float | None) -> None:
        self.end = math.inf
        if max_seconds is not None:
            self.end = time.monotonic() + MARGIN * max_seconds

    def affordable(self, trial, n_trial: int, fraction: float, wanted: int) -> int:
        """Steps that fit into a fraction of what is left, at least `n_trial`."""
        if self.end == math.inf:
            return wanted
        before = time.monotonic()
        trial()
        seconds = (time.monotonic() - before) / n_trial
        left = fraction * (self.end - time.monotonic())
        return int(min(max(left / seconds, n_trial), wanted))


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
    posterior: Posterior,
    generator: torch.Generator,
) -> torch.Tensor:
    """Whitened starts of all systems, (L, M, P), farther apart than the posterior.

    Half of them from the population that was resampled on its way, half from draws
    of the prior that came down each for itself; the target's chain of every fourth
    system starts at a draw of the fitted posterior.
    """
    half = N_SYSTEMS // 2
    alone = anneal(ladder, N_SYSTEMS - half, generator)
    starts = torch.cat([populations[:, :half], alone], 1).clone()
    fitted = posterior.draw(len(range(0, N_SYSTEMS, 4)), generator).theta.double()
    starts[-1, ::4] = ladder.normal.whiten(fitted - ladder.normal.mean)
    return starts


def _plan_chains(pilot: LadderDraws, error: float) -> tuple[int, int]:
    """Sweeps that bring the upper side's error down, and blocks of each run.

    With more blocks the expectation lies farther above log Z: it is to be two errors
    away, so that the mean of the systems is on its side of log Z.
    """
    n_pilot = pilot.log_weights.shape[2]
    found = ladder_upper(pilot.log_weights, pilot.ladder.betas)
    variance = float(found.var())
    if not math.isfinite(variance):
        return MAX_SWEEPS, 1
    wanted = n_pilot * variance / (error**2 * len(found))
    n_sweeps = int(min(max(wanted, MIN_SWEEPS), MAX_SWEEPS))
    left = variance * n_pilot / n_sweeps
    n_blocks = 4 / math.sqrt(max(left * len(found), 1e-12))
    return n_sweeps, int(min(max(n_blocks, 1), n_sweeps // 20))


def _particles(
    ladder: Ladder,
    generator: torch.Generator,
    error: float,
    budget: _Budget,
    report: Report,
) -> torch.Tensor:
    """Estimates of independent populations, whose number balances bias and error."""
    first = particle_estimates(ladder, MIN_ISLANDS, PILOT_PARTICLES, generator)
    variance = float(first.var())
    # Of one population of one particle, as far as variances fall as they should.
    single = PILOT_PARTICLES * (variance if math.isfinite(variance) else math.inf)
    wanted = min(max(single / error**2, LEAST_PARTICLES), MOST_PARTICLES)
    n_total = budget.affordable(
        lambda: particle_estimates(ladder, 1, MIN_PARTICLES, generator),
        MIN_PARTICLES,
        BELOW,
        int(wanted),
    )
    n_islands = 4 * math.sqrt(n_total / single) if single > 0 else MAX_ISLANDS
    n_islands = min(n_islands, MAX_ISLANDS, n_total / MIN_PARTICLES)
    n_islands = int(max(n_islands, MIN_ISLANDS))
    n_particles = max(n_total // n_islands, MIN_PARTICLES)
    return particle_estimates(ladder, n_islands, n_particles, generator, report)


def mean_and_error(values: torch.Tensor) -> tuple[float, float]:
    """Mean, and an error two of which are on either side with 95 % probability.

    Few values have errors that are not well known: quantiles of Student's t are wider
    than those of the normal by what that takes.
    """
    n = len(values)
    factor = float(stdtrit(n - 1, NORMAL_PROBABILITY)) / 2
    return float(values.mean()), factor * float(values.std()) / math.sqrt(n)
