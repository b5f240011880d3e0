"""Markov chains: whitened, Metropolis-corrected Hamiltonian moves, vectorized."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from skvi._sampling._importance import disagreement
from skvi.base import NormalForm
from skvi.base._component import Proposal
from skvi.targets import Target
from skvi.utils._interrupts import check_time
from skvi.utils._tensors import rand, randn

#: Takes a description of the current step, and its completed fraction.
Report = Callable[[str, float], object]


def silent(what: str, fraction: float) -> None:
    """Report nothing."""


class Positions:
    """N positions in the whitened coordinates of a normal r, with their densities.

    Moves leave ``r^(1 - beta) p(D, theta)^beta`` invariant. `log_weights` (N,) are log
    joint densities relative to r in nats, and `slope` (N, P) is the gradient of the log
    joint density.
    """

    def __init__(
        self, target: Target, normal: NormalForm, position: torch.Tensor
    ) -> None:
        self.normal, self.density = normal, target.whitened(normal)
        #: Log density of r at its mean.
        self.peak = normal.log_prob_whitened(torch.zeros_like(normal.mean)[None])
        self.position = position
        self.log_weights, self.slope = self._evaluate(position)

    @property
    def theta(self) -> torch.Tensor:
        """The positions as parameters, (N, P)."""
        return self.normal.transform(self.position)

    @property
    def log_joint(self) -> torch.Tensor:
        """Log joint densities, (N,)."""
        return self._log_joint(self.position, self.log_weights)

    def _log_joint(
        self, position: torch.Tensor, log_weights: torch.Tensor
    ) -> torch.Tensor:
        return log_weights + self.peak - 0.5 * position.square().sum(1)

    def _evaluate(self, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value, slope = self.density.value_and_slope(position)
        value = value - self.peak + 0.5 * position.square().sum(1)
        # Positions outside the support are rejected, and do not spread NaN.
        value = torch.nan_to_num(value, nan=-math.inf, neginf=-math.inf)
        return value, _finite(slope)

    def replace(self, rows: torch.Tensor, position: torch.Tensor) -> None:
        """Set some of the positions."""
        log_weights, slope = self._evaluate(position)
        self.position = self.position.index_copy(0, rows, position)
        self.log_weights = self.log_weights.index_copy(0, rows, log_weights)
        self.slope = self.slope.index_copy(0, rows, slope)

    def take(self, rows: torch.Tensor) -> None:
        """Reorder, or resample, the positions."""
        self.position, self.slope = self.position[rows], self.slope[rows]
        self.log_weights = self.log_weights[rows]

    def force(self, beta: torch.Tensor | None) -> torch.Tensor:
        """Gradients of the log densities, (N, P)."""
        return _force(beta, self.position, self.slope)

    def move(
        self,
        steps: torch.Tensor,
        n_steps: int,
        generator: torch.Generator,
        beta: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Move all by Hamiltonian trajectories; acceptance probabilities, (N,).

        `steps` of the leapfrog are one number or (N, P); `beta` (N,), None for 1.
        """
        position, momentum = self.position, randn(generator, *self.position.shape)
        start = self._energy(beta, position, self.log_weights, momentum)
        momentum.addcmul_(0.5 * steps, self.force(beta))
        for _ in range(n_steps - 1):
            check_time()
            position = torch.addcmul(position, steps, momentum)
            slope = _finite(self.density.slope(position))
            momentum.addcmul_(steps, _force(beta, position, slope))
        position = torch.addcmul(position, steps, momentum)
        log_weights, slope = self._evaluate(position)
        momentum.addcmul_(0.5 * steps, _force(beta, position, slope))
        gain = start - self._energy(beta, position, log_weights, momentum)
        return self._accept(gain, position, log_weights, slope, generator)

    def jump(self, proposal: Proposal, generator: torch.Generator) -> torch.Tensor:
        """Offer every position a draw of a proposal; acceptance probabilities, (N,).

        An independence sampler, which leaves the target (beta = 1) invariant.
        """
        offered = proposal.sample(len(self.position), generator)
        position = self.normal.whiten(offered - self.normal.mean)
        log_weights, slope = self._evaluate(position)
        gain = self._log_joint(position, log_weights) - proposal.log_prob(offered)
        gain = gain - (self.log_joint - proposal.log_prob(self.theta))
        return self._accept(gain, position, log_weights, slope, generator)

    def _accept(
        self,
        gain: torch.Tensor,
        position: torch.Tensor,
        log_weights: torch.Tensor,
        slope: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Metropolis step of every position."""
        probability = torch.nan_to_num(gain, nan=-math.inf).clamp(max=0).exp()
        accept = rand(generator, len(position)) < probability
        self.position = torch.where(accept[:, None], position, self.position)
        self.slope = torch.where(accept[:, None], slope, self.slope)
        self.log_weights = torch.where(accept, log_weights, self.log_weights)
        return probability

    def _energy(
        self,
        beta: torch.Tensor | None,
        position: torch.Tensor,
        log_weights: torch.Tensor,
        momentum: torch.Tensor,
    ) -> torch.Tensor:
        """Minus the log density of position and momentum, (N,)."""
        squares = position.square().sum(1) + momentum.square().sum(1)
        if beta is not None:
            log_weights = torch.where(beta > 0, beta * log_weights, 0.0)
        return 0.5 * squares - log_weights


def _force(
    beta: torch.Tensor | None, position: torch.Tensor, slope: torch.Tensor
) -> torch.Tensor:
    """Gradient of the log density at every beta."""
    if beta is None:
        return slope
    return beta[:, None] * slope - (1 - beta)[:, None] * position


def _finite(slope: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0)


#: Chains that run side by side.
N_CHAINS = 64

#: Acceptance to which steps are tuned.
TARGET_ACCEPTANCE = 0.8
# In whitened units; leapfrog on a standard normal is unstable above 2.
MAX_STEP = 1.0
# Average length of a trajectory, in whitened units.
PATH_LENGTH = 1.6
# Maximum of leapfrog steps of a trajectory: few if this fraction of jumps is accepted.
MOST_STEPS, FEW_STEPS, GOOD_JUMPS = 64, 4, 0.2
# Every fourth step is shorter, by these factors in turn.
SHORT_STEPS = 0.3, 0.3, 0.1
# Iterations that are kept even after the deadline.
LEAST_KEPT = 20
MAX_RANKED = 2**23
# In the warm-up also for starts so far out that the gradient alone carries a chain
# across the posterior, to where an exponential rate is steep.
WARM_UP_STEPS = 0.3, 0.01, 0.1


def _shortening(i: int, factors: tuple[float, ...]) -> float:
    """Factor of the step of an iteration."""
    return factors[i // 4 % len(factors)] if i % 4 == 3 else 1.0


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
            shortening = _shortening(i, WARM_UP_STEPS)
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
            shortening = _shortening(i, SHORT_STEPS)
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
