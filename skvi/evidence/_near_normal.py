"""Evidence of posteriors that a fitted proposal nearly is: weights, and no gradients.

Where a log-concave posterior is close to a Student-t, independent draws of that are
accepted nearly always: chains of the independence sampler forget their start in a few
steps, at the cost of one evaluation for each. The work follows the asked precision.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from skvi._sampling._chains import Chains
from skvi._sampling._importance import WeightedDraws, draw_limit, draw_weighted
from skvi._sampling._positions import Report, silent
from skvi.base._protocols import Proposal
from skvi.evidence._estimates import block_size, weights_of_chains, width_so_far
from skvi.evidence._proposals import ProposalFamily
from skvi.evidence._sides import NEARLY_CONSTANT, Sides, error_of, is_loose
from skvi.targets import Target
from skvi.utils._clock import UNLIMITED, Clock
from skvi.utils._random import rand

__all__ = ["near_normal_sides"]

# Largest weight of the pilot draws, in means: chains forget at a rate of one over it.
MAX_RATIO = 8.0
# Burn-in: probability that a start is not forgotten at its end, and fewest steps.
FORGOTTEN, LEAST_FORGET = 0.005, 4
# Iterations that are kept even if the time is over.
LEAST_KEPT = 10


@dataclass(frozen=True)
class _Effort:
    """Least numbers of draws, by the requested precision."""

    pilot: int  # of the proposal, for its choice
    below: int  # of the proposal, for the lower bound
    chains: int
    choose: int  # per chain, for the choice of the density above
    iterations: int  # per chain, for the upper bound
    efficiency: float  # fraction of effective draws of a good proposal

    @staticmethod
    def of(precision: float | None) -> "_Effort":
        # The error of nearly constant weights includes 2 / n for an unseen tail: half.
        below = max(math.ceil(2 * NEARLY_CONSTANT / error_of(precision)), 128)
        if is_loose(precision):
            return _Effort(64, below, 32, 8, 20, efficiency=0.5)
        return _Effort(256, below, 64, 10, 24, efficiency=0.8)


def near_normal_sides(
    target: Target,
    family: ProposalFamily,
    generator: torch.Generator,
    n_draws: int | None,
    precision: float | None,
    report: Report = silent,
    clock: Clock = UNLIMITED,
) -> Sides | None:
    """Log weights of both sides; None where the posterior is not nearly normal."""
    effort = _Effort.of(precision)
    if family.efficiency is not None:
        effort = replace(effort, efficiency=family.efficiency)
    tried = family.nearly_constant(target, generator, effort.pilot)
    found = _first_good(tried, effort)
    if found is None:
        return None
    proposal, pilot, ratio = found
    limit = draw_limit(target.layout.size)
    n_below = n_draws or family.n_below(pilot, precision, limit, effort.below)
    n_iter = max(math.ceil(2 * n_below / effort.chains), effort.iterations)
    starts = family.starts(target, effort.chains, generator)
    sampler = IndependenceChains(target, proposal, starts, generator, report)
    choose = sampler.run(_n_forget(ratio) + effort.choose).last(effort.choose)
    above = family.above_nearly_constant(choose)
    below = draw_weighted(target, proposal, n_below, generator, clock.until(0.4))
    report(width_so_far(below.log_weights, choose, above.density), 0.5)
    chains = sampler.run(n_iter, clock.until(0.95))
    return Sides(
        method="importance",
        forward=below.log_weights,
        reverse=weights_of_chains(chains, above.density),
        bridge=weights_of_chains(chains, proposal),
        k_below=family.k_below(family.variance(pilot), len(below.log_weights)),
        k_above=block_size(above.variance, chains.log_joint.numel()),
        chains=chains,
        error=math.inf if n_draws is not None else error_of(precision),
        is_cut=len(below.theta) < n_below or chains.theta.shape[1] < n_iter,
        is_block_larger=family.least_block > 1,
    )


def _first_good(
    tried: Iterable[tuple[Proposal, WeightedDraws]], effort: _Effort
) -> tuple[Proposal, WeightedDraws, float] | None:
    """A proposal of nearly constant weights, its draws, and their largest weight."""
    for proposal, pilot in tried:
        n_pilot = len(pilot.theta)
        ratio = n_pilot * float(pilot.weights.max())
        if pilot.ess >= effort.efficiency * n_pilot and ratio <= MAX_RATIO:
            return proposal, pilot, ratio
    return None


def _n_forget(ratio: float) -> int:
    """Steps after which hardly anything is left of a start (Mengersen, Tweedie 1996).

    A step forgets it with a probability of at least one over the largest weight.
    """
    kept = 1 - 1 / max(ratio, 1.01)
    return max(math.ceil(math.log(FORGOTTEN) / math.log(kept)), LEAST_FORGET)


class IndependenceChains:
    """Chains that are offered independent draws of a proposal (Tierney 1994)."""

    def __init__(
        self,
        target: Target,
        proposal: Proposal,
        starts: torch.Tensor,
        generator: torch.Generator,
        report: Report,
    ) -> None:
        self.target, self.proposal, self.generator = target, proposal, generator
        self.report = report
        self.theta, self.value = starts, target.log_joint_batched(starts)

    def run(self, n_iter: int, deadline: float = math.inf) -> Chains:
        """Offer one draw per iteration to every chain; see `HamiltonianChains.run`."""
        theta, value, n_accepted, size = [], [], 0, len(self.theta)
        for i in range(n_iter):
            offered = draw_weighted(self.target, self.proposal, size, self.generator)
            log_prob = self.proposal.log_prob(self.theta)
            gain = offered.log_weights - (self.value - log_prob)
            gain = torch.nan_to_num(gain, nan=-math.inf)
            accept = rand(self.generator, size) < gain.clamp(max=0).exp()
            joint = offered.log_weights + self.proposal.log_prob(offered.theta)
            self.theta = torch.where(accept[:, None], offered.theta, self.theta)
            self.value = torch.where(accept, joint, self.value)
            n_accepted += int(accept.sum())
            theta.append(self.theta)
            value.append(self.value)
            self.report("draws of chains", (i + 1) / n_iter)
            if i + 1 >= LEAST_KEPT and time.monotonic() > deadline:
                break
        shares = n_accepted / (size * len(theta))
        return Chains(torch.stack(theta, 1), torch.stack(value, 1), shares)
