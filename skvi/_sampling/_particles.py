"""Ladders of temperatures: sequential Monte Carlo, and replica exchange."""

import math
import time
from dataclasses import dataclass, replace

import torch

from skvi._sampling._chains import (
    TARGET_ACCEPTANCE,
    Chains,
    Positions,
    Report,
    silent,
)
from skvi.base import NormalForm
from skvi.targets import Target
from skvi.utils._tensors import CPU, log_mean_exp, rand, randn

# Fraction of effective draws between neighbors, and the longest ladder.
KEPT_FRACTION, MAX_LEVELS = 0.6, 200
# Number of draws of the population kept at every level.
N_KEPT = 32
# Moves at every level of the pilot run, and of a run that counts.
PILOT_MOVES, N_MOVES = 2, 2
# Leapfrog steps of a move.
N_STEPS = 8
# Weights from a rung back to the one below certainly have a finite variance if the
# ratio of inverse temperatures is at most this. The first one is so small that weights
# are nearly constant there: no draw of the pilot deviates more from the median, in
# nats.
RATIO, FIRST_REACH, MAX_FIRST = 2.0, 0.1, 12
# Steps are not smaller than this fraction of the width of r.
LEAST_SCALE = 1e-6


@dataclass(frozen=True, eq=False)
class Ladder:
    """Densities ``r^(1 - beta) p(D, theta)^beta`` at L inverse temperatures.

    With r and the target, each density is invariant under the symmetries of a network.
    """

    target: Target
    normal: NormalForm  # r, which whitens the space
    betas: torch.Tensor  # (L,), ascending from 0 to 1
    steps: torch.Tensor  # (L, P), leapfrog steps, whitened

    @property
    def size(self) -> int:
        """Number of densities, L."""
        return len(self.betas)

    def with_steps(self, steps: torch.Tensor) -> "Ladder":
        """Return the same densities with other steps."""
        return replace(self, steps=steps)


@dataclass(frozen=True, eq=False)
class LadderPilot:
    """A tuned ladder, and some 32 draws of each density from its population.

    They are far apart in the population: neighbors have common ancestors.
    """

    ladder: Ladder
    populations: torch.Tensor  # (L, m, P), whitened
    seconds: float  # of a draw of the population


@torch.no_grad()
def tune_ladder(
    target: Target,
    normal: NormalForm,
    generator: torch.Generator,
    n_draws: int = 256,
    orbits: torch.Tensor | None = None,
    report: Report = silent,
) -> LadderPilot:
    """Choose temperatures and step sizes with a resampled population of draws.

    About 60 % of the draws stay effective from a density to the next. Parameters with
    the same number in `orbits` (P,) are equivalent by symmetry and share step sizes.
    """
    size, begin = normal.size, time.monotonic()
    orbits = torch.arange(size, device=CPU) if orbits is None else orbits
    replicas = Positions(target, normal, randn(generator, n_draws, size))
    betas, log_step, reach = [0.0], math.log(0.5), _reach(replicas.log_weights)
    # At 0 positions are redrawn, and no step is needed.
    every = max(1, n_draws // N_KEPT)
    steps, kept = [torch.ones_like(normal.mean)], [replicas.position[::every]]
    while betas[-1] < 1 and len(betas) < MAX_LEVELS:
        if not bool(torch.isfinite(replicas.log_weights).any()):
            raise ValueError(
                "The log joint density is not finite at any draw of the normal that "
                "the path starts from. Check that the prior has support there."
            )
        beta = _next_beta(betas[-1], replicas.log_weights)
        report("ladder of temperatures", 1 + math.log10(max(beta, 1e-8)) / 8)
        increments = (beta - betas[-1]) * replicas.log_weights
        replicas.take(_resample(increments[None], generator)[0])
        at = replicas.position.new_full((n_draws,), beta)
        for _ in range(PILOT_MOVES):
            squares = replicas.force(at).square()
            scales = pooled_scales(squares[None], orbits)[0]
            moved = math.exp(log_step) * scales
            moved = moved.expand(n_draws, -1)
            accepted = replicas.move(moved, N_STEPS, generator, at)
            log_step = min(log_step + float(accepted.mean()) - TARGET_ACCEPTANCE, 0.0)
        betas.append(beta)
        steps.append(math.exp(log_step) * scales)
        kept.append(replicas.position[::every])
    if betas[-1] < 1:
        betas.append(1.0)
        steps.append(steps[-1])
        kept.append(kept[-1])
    n_first = math.ceil(math.log(max(betas[1] * reach / FIRST_REACH, 1.0), RATIO))
    n_first = min(n_first, MAX_FIRST)
    first = [betas[1] * RATIO**-k for k in range(n_first, 0, -1)]
    rungs = torch.tensor([0.0, *first, *betas[1:]], dtype=torch.float64, device=CPU)
    repeated = [0, *[1] * n_first, *range(1, len(betas))]
    ladder = Ladder(target, normal, rungs, torch.stack([steps[i] for i in repeated]))
    # The prior suits rungs near it.
    drawn = [0] * (n_first + 1) + list(range(1, len(betas)))
    seconds = (time.monotonic() - begin) / n_draws
    return LadderPilot(ladder, torch.stack([kept[i] for i in drawn]), seconds)


def pooled_scales(squared_force: torch.Tensor, orbits: torch.Tensor) -> torch.Tensor:
    """Scales of coordinates given all others, (L, P); squared gradients (L, n, P).

    The expected squared gradient is the negative curvature. Scales are at most 1, as r.
    """
    mean = squared_force.mean(1)
    n_orbits = int(orbits.max()) + 1
    index = orbits.expand(len(mean), -1)
    pooled = mean.new_zeros(len(mean), n_orbits)
    pooled = pooled.scatter_reduce(1, index, mean, "mean", include_self=False)
    pooled = torch.nan_to_num(pooled[:, orbits], nan=1.0)
    return pooled.clamp(min=1.0).rsqrt().clamp(min=LEAST_SCALE)


def _reach(log_weights: torch.Tensor) -> float:
    """Distance of the lowest log weight from their median, in nats."""
    finite = log_weights[torch.isfinite(log_weights)]
    return float(finite.median() - finite.min()) if len(finite) else 0.0


def _next_beta(beta: float, log_weights: torch.Tensor) -> float:
    """Farthest beta at which the fraction of effective draws stays above a limit."""

    def is_near(trial: float) -> bool:
        w = torch.softmax((trial - beta) * log_weights, 0)
        return float(1 / w.square().sum()) >= KEPT_FRACTION * len(w)

    most = min(1.0, RATIO * beta) if beta > 0 else 1.0
    if is_near(most):
        return most
    low, high = beta, most
    for _ in range(60):
        # Inverse temperatures span many orders of magnitude.
        middle = math.sqrt(low * high) if low > 1e-12 else 0.1 * high
        middle = middle if low < middle < high else (low + high) / 2
        low, high = (middle, high) if is_near(middle) else (low, middle)
    # The limit may be unattainable if some draws have zero density.
    return high if low <= beta else low


def _resample(log_weights: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Systematic resampling of every row; indices of shape (R, N)."""
    n_islands, n = log_weights.shape
    weights = torch.nan_to_num(torch.softmax(log_weights, 1), nan=1 / n)
    weights = weights.cumsum(1).contiguous()
    order = torch.arange(n, dtype=torch.float64, device=CPU)
    points = (order + rand(generator, n_islands, 1)) / n
    return torch.searchsorted(weights, points).clamp(max=n - 1)


@torch.no_grad()
def anneal(ladder: Ladder, n_draws: int, generator: torch.Generator) -> torch.Tensor:
    """Move draws of the normal along a ladder, independently: (L, S, P), whitened.

    No draw is moved to a better mode: they are overdispersed starts for chains.
    """
    size = ladder.normal.size
    replicas = Positions(ladder.target, ladder.normal, randn(generator, n_draws, size))
    found = [replicas.position]
    for beta, steps in zip(ladder.betas[1:], ladder.steps[1:], strict=True):
        at, moved = beta.expand(n_draws), steps.expand(n_draws, -1)
        for _ in range(PILOT_MOVES):
            replicas.move(moved, N_STEPS, generator, at)
        found.append(replicas.position)
    return torch.stack(found)


@torch.no_grad()
def particle_estimates(
    ladder: Ladder,
    n_islands: int,
    n_particles: int,
    generator: torch.Generator,
    report: Report = silent,
) -> torch.Tensor:
    """Estimates of log Z, (R,), by populations from r to the target (Del Moral 2006).

    Their exponentials have expectation Z, however well the moves mix; they lie below
    log Z on average, by half their variance. The ladder must not depend on the draws.
    """
    n, size = n_islands * n_particles, ladder.normal.size
    replicas = Positions(ladder.target, ladder.normal, randn(generator, n, size))
    total = replicas.log_weights.new_zeros(n_islands)
    first = torch.arange(n_islands, device=CPU)[:, None] * n_particles
    widths = ladder.betas.diff()
    for k, width in enumerate(widths):
        report("particles from the prior to the posterior", k / len(widths))
        increments = (width * replicas.log_weights).reshape(n_islands, n_particles)
        total = total + log_mean_exp(increments)
        if k == len(widths) - 1:
            break
        replicas.take((first + _resample(increments, generator)).flatten())
        at, moved = ladder.betas[k + 1].expand(n), ladder.steps[k + 1].expand(n, -1)
        for _ in range(N_MOVES):
            replicas.move(moved, N_STEPS, generator, at)
    return total


# Rounds of exchanges after every move: their cost is negligible.
N_ROUNDS = 4
# Leapfrog steps of every fourth move, which can leave regions of higher curvature.
FEW_STEPS = 2
# Number of posterior draws to keep, and sweeps that are made even after a deadline.
MAX_KEPT, LEAST_SWEEPS = 2**24, 4


@dataclass(frozen=True, eq=False)
class LadderDraws:
    """Draws of all densities of a ladder, from M systems of chains."""

    ladder: Ladder
    log_weights: torch.Tensor  # (L, M, T) after each of T sweeps, in nats
    chains: Chains  # the draws of the target, thinned if there are many
    round_trips: float  # times a replica went from r to the target, per system

    @property
    def n_sweeps(self) -> int:
        """Number of sweeps after which draws were kept, T."""
        return self.log_weights.shape[2]

    def followed_by(self, later: "LadderDraws") -> "LadderDraws":
        """Join the draws of two successive runs of the same chains."""
        return LadderDraws(
            later.ladder,
            torch.cat([self.log_weights, later.log_weights], 2),
            self.chains.followed_by(later.chains),
            self.round_trips + later.round_trips,
        )


class ReplicaExchange:
    """M systems of Hamiltonian chains at L temperatures, which are exchanged.

    At beta = 0 every sweep draws anew, so that chains leave modes through the prior.
    Geyer (1991); Syed, Bouchard-Côté, Deligiannidis and Doucet (2022).
    """

    @torch.no_grad()
    def __init__(
        self,
        ladder: Ladder,
        starts: torch.Tensor,
        generator: torch.Generator,
        orbits: torch.Tensor | None = None,
        report: Report = silent,
    ) -> None:
        size = ladder.normal.size
        self.ladder, self.generator, self.report = ladder, generator, report
        self.orbits = torch.arange(size, device=CPU) if orbits is None else orbits
        self.n_systems = starts.shape[1]
        flat = starts.reshape(-1, size)
        self.replicas = Positions(ladder.target, ladder.normal, flat)
        self.betas = ladder.betas.repeat_interleave(self.n_systems)
        # Whether a replica has been at beta = 0 since it was at the target.
        self.is_fresh = torch.zeros(len(flat), dtype=torch.bool, device=CPU)
        self.n_sweeps = self.n_trips = 0
        self.is_cut = False  # whether a deadline ended the warm-up or a run

    @torch.no_grad()
    def warm_up(self, n_sweeps: int, deadline: float = math.inf) -> "ReplicaExchange":
        """Run the chains and tune the step sizes of `ladder`.

        After the deadline (`time.monotonic`) 4 sweeps suffice.
        """
        steps = self.ladder.steps
        log_scales = torch.zeros_like(steps[:, 0])
        factors = log_scales.clone()
        mean_force = torch.zeros_like(steps)
        for i in range(n_sweeps):
            accepted = self._sweep()
            force = self.replicas.force(self.betas).square()
            mean_force += self._by_rung(force).mean(1)
            log_scales += (accepted - TARGET_ACCEPTANCE) * 1.5 / (i + 1) ** 0.6
            log_scales.clamp_(max=math.log(4.0))
            weight = (i + 1) ** -0.75
            factors = weight * log_scales + (1 - weight) * factors
            used = log_scales if i < n_sweeps - 1 else factors
            now = (steps * used.exp()[:, None]).clamp(max=1.0)
            if i == n_sweeps // 2:
                # From here on with scales estimated by the chains.
                found = pooled_scales((mean_force / (i + 1))[:, None], self.orbits)
                ratio = (now / found).log().mean(1)
                steps, log_scales = found, ratio
                factors, now = ratio.clone(), (found * ratio.exp()[:, None])
            self.ladder = self.ladder.with_steps(now)
            self.report("warm-up of tempered chains", (i + 1) / n_sweeps)
            if LEAST_SWEEPS <= i + 1 < n_sweeps and time.monotonic() > deadline:
                self.is_cut = True
                break
        return self

    @torch.no_grad()
    def run(self, n_sweeps: int, deadline: float = math.inf) -> LadderDraws:
        """Run the chains with all settings fixed, and keep their draws.

        Stops at the deadline (`time.monotonic`), after at least 4 sweeps.
        """
        size, n = self.ladder.normal.size, self.n_systems
        thin = max(1, math.ceil(n_sweeps * n * size / MAX_KEPT))
        found, kept, accepted, before = [], [], [], self.n_trips
        for i in range(n_sweeps):
            accepted.append(float(self._sweep()[1:].mean()))
            found.append(self._by_rung(self.replicas.log_weights))
            if i % thin == 0:
                kept.append(self.replicas.position[-n:])
            self.report("tempered chains", (i + 1) / n_sweeps)
            if LEAST_SWEEPS <= i + 1 < n_sweeps and time.monotonic() > deadline:
                self.is_cut = True
                break
        weights, position = torch.stack(found), torch.stack(kept, 1)
        theta = self.ladder.normal.transform(position.flatten(0, 1))
        # Recover the log joint density from its weight.
        top = weights[::thin, -1].T
        log_r = self.ladder.normal.log_prob(theta).reshape(top.shape)
        acceptance = sum(accepted) / len(accepted)
        chains = Chains(theta.reshape(position.shape), top + log_r, acceptance)
        trips = (self.n_trips - before) / n
        return LadderDraws(
            self.ladder, weights.permute(1, 2, 0).contiguous(), chains, trips
        )

    def _by_rung(self, values: torch.Tensor) -> torch.Tensor:
        """Values of replicas, (L, M, ...)."""
        return values.reshape(self.ladder.size, self.n_systems, *values.shape[1:])

    def _sweep(self) -> torch.Tensor:
        """Move all, redraw at 0, exchange; return mean acceptances, (L,)."""
        steps = self.ladder.steps.repeat_interleave(self.n_systems, 0)
        n_steps = FEW_STEPS if self.n_sweeps % 4 == 3 else N_STEPS
        accepted = self.replicas.move(steps, n_steps, self.generator, self.betas)
        first = torch.arange(self.n_systems, device=CPU)
        fresh = randn(self.generator, self.n_systems, self.ladder.normal.size)
        self.replicas.replace(first, fresh)
        for i in range(N_ROUNDS):
            self._exchange((self.n_sweeps + i) % 2)
        self.n_sweeps += 1
        return self._by_rung(accepted).mean(1)

    def _exchange(self, parity: int) -> None:
        """Propose swaps to all neighboring pairs that begin at even, or odd, rungs."""
        n, size = self.n_systems, self.ladder.size
        lower = torch.arange(parity, size - 1, 2, device=CPU)
        weights = self._by_rung(self.replicas.log_weights)
        widths = self.ladder.betas.diff()[lower, None]
        gain = widths * (weights[lower] - weights[lower + 1])
        probability = torch.nan_to_num(gain, nan=-math.inf).clamp(max=0).exp()
        accept = rand(self.generator, len(lower), n) < probability
        rung, system = accept.nonzero(as_tuple=True)
        below = lower[rung] * n + system
        order = torch.arange(size * n, device=CPU)
        order[below], order[below + n] = below + n, below
        self.replicas.take(order)
        self.is_fresh = self.is_fresh[order]
        self.n_trips += int(self.is_fresh[-n:].sum())
        self.is_fresh[-n:] = False
        self.is_fresh[:n] = True
