"""Replica exchange: Markov chains along a ladder of temperatures."""

import math
import time
from dataclasses import dataclass

import torch

from skvi._sampling._chains import Chains
from skvi._sampling._particles import (
    N_STEPS,
    TARGET_ACCEPTANCE,
    Ladder,
    pooled_scales,
)
from skvi._sampling._positions import Positions, Report, silent
from skvi.utils._device import CPU
from skvi.utils._random import rand, randn

__all__ = ["LadderDraws", "ReplicaExchange"]

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
