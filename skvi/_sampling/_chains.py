"""Markov chains: whitened, Metropolis-corrected Hamiltonian moves, vectorized."""

import math
import time
from dataclasses import dataclass

import torch

from skvi._sampling._diagnostics import disagreement
from skvi._sampling._positions import Positions, Report, silent
from skvi.base import NormalForm
from skvi.base._protocols import Proposal
from skvi.targets import Target
from skvi.utils._random import rand

__all__ = ["N_CHAINS", "Chains", "HamiltonianChains"]

#: Chains that run side by side.
N_CHAINS = 64

TARGET_ACCEPTANCE = 0.8
# In whitened units; leapfrog on a standard normal is unstable above 2.
MAX_STEP = 1.0
# Average length of a trajectory, in whitened units.
PATH_LENGTH = 1.6
# Maximum of leapfrog steps of a trajectory: few if this fraction of jumps is accepted.
MOST_STEPS, FEW_STEPS, GOOD_JUMPS = 64, 4, 0.2
SHORT_STEPS = (1.0, 1.0, 1.0, 0.3, 1.0, 1.0, 1.0, 0.3, 1.0, 1.0, 1.0, 0.1)
# Iterations that are kept even after the deadline.
LEAST_KEPT = 20
MAX_RANKED = 2**23
# In the warm-up also for starts so far out that the gradient alone carries a chain
# across the posterior, to where an exponential rate is steep.
WARM_UP_STEPS = (1.0, 1.0, 1.0, 0.3, 1.0, 1.0, 1.0, 0.01, 1.0, 1.0, 1.0, 0.1)


@dataclass(frozen=True, eq=False)
class Chains:
    """Draws of many chains, after warm-up."""

    theta: torch.Tensor  # (n_chains, n_iterations, P)
    log_joint: torch.Tensor  # (n_chains, n_iterations), in nats
    acceptance: float  # mean acceptance probability

    @property
    def rhat(self) -> float:
        """Largest split-R-hat of parameters and log density; see `disagreement`."""
        n_chains, n_iter, size = self.theta.shape
        # Ranks of more numbers would take a second.
        thin = math.ceil(n_chains * n_iter * (size + 1) / MAX_RANKED)
        thin = max(1, min(thin, n_iter // LEAST_KEPT))
        theta, log_joint = self.theta[:, ::thin], self.log_joint[:, ::thin]
        return disagreement(torch.cat([theta, log_joint[..., None]], 2))

    def last(self, n_iterations: int) -> "Chains":
        """Return the last iterations."""
        theta, value = self.theta[:, -n_iterations:], self.log_joint[:, -n_iterations:]
        return Chains(theta, value, self.acceptance)

    def followed_by(self, later: "Chains") -> "Chains":
        """Join the draws of two successive runs of the same chains."""
        first, second = self.theta.shape[1], later.theta.shape[1]
        accepted = first * self.acceptance + second * later.acceptance
        return Chains(
            torch.cat([self.theta, later.theta], 1),
            torch.cat([self.log_joint, later.log_joint], 1),
            accepted / (first + second),
        )


class HamiltonianChains:
    """Hamiltonian Monte Carlo, one chain for each start, vectorized over chains.

    The warm-up tunes one step size, in whitened space, to an acceptance of 0.8. A
    `jump` offers independent draws of a fixed proposal, to change modes.
    """

    @torch.no_grad()
    def __init__(
        self,
        target: Target,
        starts: torch.Tensor,
        normal: NormalForm,
        generator: torch.Generator,
        report: Report = silent,
        jump: Proposal | None = None,
    ) -> None:
        self.target, self.jump, self.most_steps = target, jump, MOST_STEPS
        self.state = Positions(target, normal, normal.whiten(starts - normal.mean))
        self.normal, self.generator = normal, generator
        self.report = report
        self.step = 0.5
        self.is_cut = False  # whether a deadline ended a warm-up or a run
        self._pilot: Chains | None = None

    @property
    def pilot(self) -> Chains:
        """The last third of the warm-up: draws for choosing settings."""
        if self._pilot is None:
            raise RuntimeError("Call warm_up first.")
        return self._pilot

    @torch.no_grad()
    def warm_up(self, n_iter: int, deadline: float = math.inf) -> "HamiltonianChains":
        """Move the chains and tune the step size.

        After the deadline (`time.monotonic`) 20 more iterations suffice.
        """
        log_step, log_mean = math.log(self.step), math.log(self.step)
        kept, jumped = _Recorder(), 0.0
        for i in range(n_iter):
            # Short paths suffice here, and cost less if steps are small.
            shortening = WARM_UP_STEPS[i % len(WARM_UP_STEPS)]
            probability = self._move(math.exp(log_step), shortening, 16)
            if self.jump is not None:
                accepted = self.state.jump(self.jump, self.generator)
                jumped += float(accepted.mean()) / n_iter
            self.report("warm-up of chains", (i + 1) / n_iter)
            is_late = time.monotonic() > deadline
            if i >= 2 * n_iter // 3 or is_late:
                kept.add(self.state, probability)
            if shortening == 1:
                # Robbins-Monro with averaging, as in Nesterov's dual averaging.
                log_step += (probability - TARGET_ACCEPTANCE) * 3 / (i + 1) ** 0.6
                weight = (i + 1) ** -0.75
                log_mean = weight * log_step + (1 - weight) * log_mean
            if is_late and len(kept.accepted) >= LEAST_KEPT:
                self.is_cut = True
                break
        self.step, self._pilot = math.exp(log_mean), kept.chains()
        self.most_steps = FEW_STEPS if jumped > GOOD_JUMPS else MOST_STEPS
        return self

    @torch.no_grad()
    def multiply(self, factor: int) -> None:
        """Go on with several times as many chains, from states of the warm-up."""
        states = self.pilot.theta
        factor = min(factor, states.shape[1])
        starts = states[:, :: states.shape[1] // factor][:, :factor].flatten(0, 1)
        white = self.normal.whiten(starts - self.normal.mean)
        self.state = Positions(self.target, self.normal, white)

    @torch.no_grad()
    def run(self, n_iter: int, deadline: float = math.inf) -> Chains:
        """Move the chains with everything fixed, and keep the draws.

        Stops at the deadline (`time.monotonic`), after at least 20 iterations.
        """
        kept = _Recorder()
        for i in range(n_iter):
            shortening = SHORT_STEPS[i % len(SHORT_STEPS)]
            probability = self._move(self.step, shortening, self.most_steps)
            if self.jump is not None:
                self.state.jump(self.jump, self.generator)
            kept.add(self.state, probability)
            self.report("draws of chains", (i + 1) / n_iter)
            if LEAST_KEPT <= i + 1 < n_iter and time.monotonic() > deadline:
                self.is_cut = True
                break
        return kept.chains()

    def _move(self, step: float, shortening: float, most_steps: int) -> float:
        # Steps that suit the bulk can be unstable in regions of higher curvature: short
        # steps let a chain escape from there.
        step = min(step, MAX_STEP) * shortening
        # A random path length avoids the periods of near-normal targets.
        length = PATH_LENGTH * (0.5 + float(rand(self.generator, 1)))
        n_steps = min(max(1, round(length / step)), most_steps)
        steps = self.normal.mean.new_tensor(step)
        return float(self.state.move(steps, n_steps, self.generator).mean())


class _Recorder:
    """Collects the states of the chains."""

    def __init__(self) -> None:
        self.theta: list[torch.Tensor] = []
        self.log_joint: list[torch.Tensor] = []
        self.accepted: list[float] = []

    def add(self, state: Positions, probability: float) -> None:
        self.theta.append(state.theta)
        self.log_joint.append(state.log_joint)
        self.accepted.append(probability)

    def chains(self) -> Chains:
        acceptance = sum(self.accepted) / len(self.accepted)
        return Chains(
            torch.stack(self.theta, 1), torch.stack(self.log_joint, 1), acceptance
        )
