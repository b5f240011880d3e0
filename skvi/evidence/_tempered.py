"""Evidence along a tempered path: from a wide density to the posterior, and back.

For networks the path starts at a density that is invariant under the symmetries of the
model, the prior: no permutation-symmetric mode is missed, none is counted twice, and no
|G| is needed. Elsewhere it starts at a normal that first chains have found. Both bounds
come from chains at all temperatures that are exchanged. In addition, populations of
particles move from the start to the posterior; their estimates of Z are unbiased
whatever they find, unlike those of chains.
"""

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.special import ndtr, stdtrit

from skvi._sampling._chains import Report
from skvi._sampling._importance import MAX_RHAT, effective_sample_size
from skvi._sampling._particles import (
    Ladder,
    LadderDraws,
    ReplicaExchange,
    anneal,
    particle_estimates,
    tune_ladder,
)
from skvi.base import NormalForm
from skvi.evidence._estimates import Estimate, in_parameters, invariant_rhat
from skvi.evidence._result import REFUTED, EvidenceBounds
from skvi.evidence._row_particles import (
    ladder_bridge,
    ladder_lower,
    ladder_upper,
    tail_limit,
    tail_shape,
)
from skvi.evidence._summarize import (
    LEVEL,
    ROUNDING,
    lower_bound,
    remedy,
    with_remedy,
    with_width,
)
from skvi.evidence._table import (
    EXPECTED,
    IF_EXACT,
    NEVER,
    PROBABLE,
    BoundsTable,
    NamedBound,
    elbo_row,
    rows_of_chains,
    upper_exists,
)
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors import Posterior
from skvi.targets import Target
from skvi.utils._interrupts import Clock

# Sweeps of the pilot run, and most of the run itself.
N_PILOT, MAX_SWEEPS = 60, 3000
# A run whose chains disagree goes on if this multiple of its sweeps should suffice.
LONGER = 4
# Least number of round trips per system, and of sweeps behind an estimate.
MIN_TRIPS, LEAST_SWEEPS = 1, 20
# Independent populations, particles of each, and of all of them.
N_ISLANDS, MIN_PARTICLES, MAX_PARTICLES = 16, 4, 1024
# Target distance of each bound from log Z, in nats.
DEFAULT_PRECISION = 0.25
# Fractions of the seconds after which the first chains and the warm-up end, that the
# particles may take, and after which the chains end.
EXPLORE, WARM, OF_PARTICLES, END = 0.2, 0.3, 0.15, 0.92
# Standard deviations of the start of a path, in units of those of the posterior, and
# the fraction of the variances added to the diagonal of its covariance.
WIDER, RIDGE = 1.3, 1e-6


@dataclass(frozen=True)
class Effort:
    """Where a path starts, and how long its chains are."""

    origin: str
    n_systems: int
    n_explore: int  # sweeps of chains that find the start, half of them warm-up
    n_warmup: int
    min_sweeps: int

    @property
    def is_precise(self) -> bool:
        """Whether there are enough systems for separate errors of both bounds."""
        return self.n_systems >= FROM_PRIOR.n_systems


FROM_PRIOR = Effort("the prior", 16, 0, 200, 200)
#: Half as many systems run longer, because R-hat needs long chains.
NEAR = Effort("a normal around the posterior", 8, 120, 100, 300)


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
    effort: Effort = FROM_PRIOR


@torch.no_grad()
def tempered_sides(
    target: Target,
    normal: NormalForm | None,
    fitted: torch.Tensor | None,
    effort: Effort,
    generator: torch.Generator,
    n_draws: int | None,
    precision: float | None,
    report: Report,
    clock: Clock,
) -> TemperedSides:
    """Bound log Z by replica exchange, and from below by particles as well.

    From a normal, or None for that of the prior; with `Effort.n_explore` from one that
    is found from there. Some chains start at draws `fitted`, (4, P). `precision`:
    distance of each bound from log Z in nats, 0.25 by default.
    """
    error = (DEFAULT_PRECISION if precision is None else precision) / 4
    normal = _start_of_path(target) if normal is None else normal
    orbits = _orbits(target)
    if effort.n_explore:
        found = _explore(target, normal, effort, generator, clock, report)
        normal, clock = normal_around(found.chains.theta.flatten(0, 1)), clock.part(1.0)
        fitted = found.chains.theta[:, -1] if fitted is None else fitted
    pilot = tune_ladder(target, normal, generator, orbits=orbits, report=report)
    starts = _starts(pilot.populations, pilot.ladder, fitted, effort, generator)
    sampler = ReplicaExchange(pilot.ladder, starts, generator, orbits, report)
    sampler.warm_up(effort.n_warmup, clock.until(WARM))
    # All settings of an estimate are chosen from draws that do not enter it.
    first = sampler.run(N_PILOT, clock.until(WARM + 0.1))
    n_sweeps, n_blocks = _plan(first, error, n_draws, effort.min_sweeps)
    n_particles = _n_particles(pilot.seconds, clock)
    particles = particle_estimates(
        sampler.ladder, N_ISLANDS, n_particles, generator, report
    )
    draws = sampler.run(n_sweeps, clock.until(END))
    rhat = invariant_rhat(target, draws.chains)
    # The planned sweeps make the errors small; chains may need more of them to agree.
    most = LONGER * n_sweeps if n_draws is None else 0
    while not sampler.is_cut and 1 < (share := _shortage(draws, rhat)):
        n_sweeps = draws.n_sweeps
        if share * n_sweeps > most:
            break
        draws = draws.followed_by(sampler.run(n_sweeps, clock.until(END)))
        rhat = invariant_rhat(target, draws.chains)
    n_blocks = max(min(n_blocks, draws.n_sweeps // LEAST_SWEEPS), 1)
    return TemperedSides(
        ladder_lower(draws.log_weights, draws.ladder.betas, n_blocks),
        ladder_upper(draws.log_weights, draws.ladder.betas, n_blocks),
        particles,
        draws,
        rhat,
        error if n_draws is None else math.inf,
        sampler.is_cut,
        effort,
    )


def in_own_parameters(
    target: Target, lifted: Any, sides: TemperedSides
) -> TemperedSides:
    """Sides of a lifted target with chains of the target's parameters, and their R-hat.

    Scales without information in the data mix slowly, and are no part of the model.
    """
    chains = in_parameters(target, lifted, sides.draws.chains)
    draws = replace(sides.draws, chains=chains)
    return replace(sides, draws=draws, rhat=invariant_rhat(target, chains))


def _explore(
    target: Target,
    normal: NormalForm,
    effort: Effort,
    generator: torch.Generator,
    clock: Clock,
    report: Report,
) -> LadderDraws:
    """Draws from which a better start is made: half resampled, half on their own."""
    pilot = tune_ladder(target, normal, generator, report=report)
    starts = _starts(pilot.populations, pilot.ladder, None, effort, generator)
    sampler = ReplicaExchange(pilot.ladder, starts, generator, report=report)
    sampler.warm_up(effort.n_explore // 2, clock.until(EXPLORE))
    return sampler.run(effort.n_explore // 2, clock.until(EXPLORE))


def normal_around(theta: torch.Tensor) -> NormalForm:
    """Normal somewhat wider than draws, (S, P)."""
    centered = theta - theta.mean(0)
    covariance = centered.T @ centered / len(theta)
    ridge = RIDGE * torch.diag(covariance.diagonal())
    factor = torch.linalg.cholesky(covariance + ridge)
    return NormalForm(theta.mean(0), WIDER * factor)


def _start_of_path(target: Target) -> NormalForm:
    normal = None if target.prior is None else target.prior.matching_normal()
    if normal is None:
        raise IncompatibleComponentsError(
            "method='tempering'",
            "a normal that matches the prior, to start from",
            "method='importance'",
        )
    return normal


def _orbits(target: Target) -> torch.Tensor | None:
    symmetry = target.symmetry
    return None if symmetry is None else symmetry.orbits(target.layout.size)


def _starts(
    populations: torch.Tensor,
    ladder: Ladder,
    fitted: torch.Tensor | None,
    effort: Effort,
    generator: torch.Generator,
) -> torch.Tensor:
    """Whitened starts of all systems, (L, M, P), farther apart than the posterior.

    Half are from the resampled population, half draws of the start, annealed; every
    fourth system's chain of the target starts at one of `fitted`.
    """
    half = effort.n_systems // 2
    alone = anneal(ladder, effort.n_systems - half, generator)
    starts = torch.cat([populations[:, :half], alone], 1).clone()
    if fitted is not None:
        fitted = fitted[: effort.n_systems // 4] - ladder.normal.mean
        starts[-1, : 4 * len(fitted) : 4] = ladder.normal.whiten(fitted)
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


def _n_particles(each: float, clock: Clock) -> int:
    """Size of each population that time permits, with `each` seconds per particle."""
    seconds = min(clock.until(END) - time.monotonic(), OF_PARTICLES * clock.seconds)
    n_total = min(max(seconds, 0.0) / each, MAX_PARTICLES)
    return max(int(n_total / N_ISLANDS), MIN_PARTICLES)


def mean_and_error(values: torch.Tensor) -> Estimate:
    """Mean, and an error such that two of them give a 95 % interval.

    With few values it is inflated by quantiles of Student's t over normal ones.
    """
    n = len(values)
    factor = float(stdtrit(n - 1, ndtr(2.0))) / 2
    error = factor * float(values.std()) / math.sqrt(n)
    return Estimate(float(values.mean()), error)


# Nats below the chains at which particles from the prior are mentioned.
FAR = 2.0
IF_MIXED = (
    "both bounds are valid if the chains have mixed: they came {:.3g} times per system "
    "from {} to the posterior, and agree on fitted values and on the log joint "
    "density (R-hat {:.3f})"
)
UNCONFIRMED = (
    "; particles, whose bound needs no mixing, show no more than {:.4g} nats: few of "
    "them find what the chains have found"
)


@torch.no_grad()
def summarize_tempered(
    target: Target,
    posterior: Posterior,
    sides: TemperedSides,
    generator: torch.Generator,
    quantity: str,
) -> EvidenceBounds:
    """Bounds, estimate, diagnostics and table of a tempered run."""
    draws, betas = sides.draws, sides.draws.ladder.betas
    below, above = mean_and_error(sides.below), mean_and_error(sides.above)
    bridge = ladder_bridge(draws.log_weights, betas)
    if not sides.effort.is_precise:
        below, above = _of_few_systems(below, above, bridge.value)
    khat = tail_shape(draws.log_weights, betas)
    elbo = elbo_row(lower_bound(target, posterior, generator))
    reasons = _why_not(sides, below, above, khat)
    reason = with_remedy(reasons, remedy(target, sides.is_cut, sides.error))
    valid = IF_MIXED.format(draws.round_trips, sides.effort.origin, sides.rhat)
    floor = mean_and_error(sides.particles).value
    valid += UNCONFIRMED.format(floor) if floor < below.value - FAR else ""
    ess = effective_sample_size(draws.chains.log_joint[..., None])
    found = EvidenceBounds(
        lower=below.value,
        upper=above.value,
        lower_se=below.se,
        upper_se=above.se,
        estimate=bridge.value,
        gap=above.value - below.value,
        ess=float(ess[0]),
        khat=khat,
        reliable=not reason,
        reason=reason or valid,
        method="tempering",
        quantity=quantity,
        table=_table(target, posterior, sides, (below, above), bridge, elbo),
    )
    return with_width(found, sides.error, sides.is_cut)


def _of_few_systems(
    below: Estimate, above: Estimate, estimate: float
) -> tuple[Estimate, Estimate]:
    """Both bounds with the larger error, and at least two of it from an estimate.

    Errors of the same systems differ by chance, and blocks have a least length.
    """
    error = max(below.se, above.se)
    low, high = estimate - 2 * error, estimate + 2 * error
    low, high = min(below.value, low), max(above.value, high)
    return Estimate(low, error), Estimate(high, error)


def _why_not(
    sides: TemperedSides,
    below: Estimate,
    above: Estimate,
    khat: float,
) -> list[str]:
    """List every failed diagnostic."""
    reasons, trips = [], sides.draws.round_trips
    values = (*below, *above)
    if not all(math.isfinite(value) for value in values):
        return ["a bound is not finite: the ladder of temperatures has a gap"]
    if not sides.rhat <= MAX_RHAT:
        reasons.append(
            f"the MCMC chains disagree on fitted values or on the log joint density "
            f"(R-hat {sides.rhat:.2f}, at most {MAX_RHAT} is allowed)"
        )
    if trips < MIN_TRIPS:
        reasons.append(
            f"chains came only {trips:.2g} times per system from "
            f"{sides.effort.origin} to the posterior, so that modes in which none of "
            "them started may be missing"
        )
    limit = tail_limit(sides.draws.log_weights)
    if not khat <= limit:
        reasons.append(
            "the weights between neighboring temperatures are too heavy-tailed (Pareto "
            f"k {khat:.2f}, at most {limit:.2f} is allowed)"
        )
    crossing, error = below.value - above.value, math.hypot(below.se, above.se)
    if crossing > REFUTED * error + ROUNDING:
        reasons.append(f"the two bounds cross by {crossing:.3g} nats")
    floor = mean_and_error(sides.particles)
    excess, error = floor.value - above.value, math.hypot(floor.se, above.se)
    if excess > REFUTED * error + ROUNDING:
        reasons.append(
            f"particles from the prior lie {excess:.3g} nats above the upper bound: "
            "the chains miss a part of the posterior"
        )
    halves = (0.5 * (sides.below + sides.above)).reshape(2, -1)
    between = float(halves.mean(1).diff().abs())
    # Twice the error of the mean of all, without what is between.
    error = 2 * mean_and_error((halves - halves.mean(1, keepdim=True)).flatten()).se
    if between > REFUTED * error + ROUNDING:
        reasons.append(
            "chains that started in a resampled population and chains that came down "
            f"from the start alone differ by {between:.3g} nats"
        )
    return reasons


def _table(
    target: Target,
    posterior: Posterior,
    sides: TemperedSides,
    both: tuple[Estimate, Estimate],
    bridge: Estimate,
    elbo: NamedBound,
) -> BoundsTable:
    """Every bound with the sense in which it is valid."""
    draws, penalty = sides.draws, -math.log(1 - LEVEL)
    exists = upper_exists(target)
    rows = {"ELBO of q": elbo}
    rows["particles"] = NamedBound(*mean_and_error(sides.particles), "lower", EXPECTED)
    # All of R independent estimates exceed log Z + b with probability exp(-R b).
    sure = float(sides.particles.min()) - penalty / len(sides.particles)
    holds = "holds with 95 % probability"
    rows["lower, 95 %"] = NamedBound(sure, 0.0, "lower", holds, holds=PROBABLE)
    rows["tempered chains, lower"] = NamedBound(*both[0], "lower", IF_EXACT)
    rows["bridge"] = NamedBound(
        *bridge, "estimate", "consistent, not a bound", holds=NEVER
    )
    rows["tempered chains, upper"] = NamedBound(*both[1], "upper", IF_EXACT)
    rows.update(rows_of_chains(draws.chains, posterior, exists))
    return BoundsTable(rows)
