"""Evidence of posteriors that a fitted proposal nearly is: weights, and no gradients.

Where a log-concave posterior is close to a Student-t, independent draws of that are
accepted nearly always: chains of the independence sampler forget their start in a few
steps, at the cost of one evaluation for each. The work follows the asked precision.
"""

import math
import time

import torch

from skvi.base import NormalForm
from skvi.evidence._clock import UNLIMITED, Clock
from skvi.evidence._estimates import block_size, width_so_far
from skvi.evidence._sides import Sides, error_of, is_loose, n_draws_for
from skvi.sampling import Chains, StudentT, WeightedDraws, draw_limit, draw_weighted
from skvi.sampling._importance import badness
from skvi.sampling._state import Report, silent
from skvi.solvers import dispersed_starts
from skvi.targets import Target
from skvi.utils._random import rand

__all__ = ["near_normal_sides"]

# Fraction of effective draws that makes a proposal good, whatever the precision is,
# and where little is asked for.
GOOD, FAIR = 0.8, 0.5
# Largest weight of the pilot draws, in means: chains forget at a rate of one over it.
MAX_RATIO = 8.0
N_PILOT, MIN_DRAWS, N_CHAINS, MIN_ITER = 256, 512, 64, 24
# With fewer rows gradients cost next to nothing, and posteriors are skewed.
MIN_ROWS = 1000
# Degrees of freedom that are tried: few bound the weights, many are closer to normal.
SHAPES = (100, 20)
# Steps after which a start is forgotten, in units of the largest weight; and those,
# at the end of them, from which the density above is chosen.
FORGET, N_CHOOSE = 5.0, 10


def near_normal_sides(
    target: Target,
    normal: NormalForm,
    generator: torch.Generator,
    n_draws: int | None,
    precision: float | None,
    report: Report = silent,
    clock: Clock = UNLIMITED,
) -> Sides | None:
    """Log weights of both sides; None where the posterior is not nearly normal.

    Parameters
    ----------
    target : Target
    normal : NormalForm
        Near the posterior.
    generator : torch.Generator
    n_draws, precision, report
        As of `importance_sides`.
    clock : Clock

    Returns
    -------
    Sides or None
    """
    is_simple = target.is_log_concave and target.has_design
    if not is_simple or target.cost_per_draw < MIN_ROWS:
        return None
    found = _best_proposal(target, normal, generator, precision)
    if found is None:
        return None
    proposal, pilot, ratio = found
    n_forget = N_CHOOSE + math.ceil(FORGET * ratio)
    variance = len(pilot.theta) / pilot.ess - 1
    limit = draw_limit(target.layout.size)
    variance = max(variance, float(pilot.log_weights.var()))
    n_below = n_draws or n_draws_for(variance, precision, limit, MIN_DRAWS)
    n_iter = max(math.ceil(2 * n_below / N_CHAINS), MIN_ITER)
    sampler = IndependenceChains(target, proposal, normal, generator, report)
    choose = sampler.run(n_forget).last(N_CHOOSE)
    above, variance_above = _narrower(choose, proposal.normal)
    below = draw_weighted(target, proposal, n_below, generator, clock.until(0.4))
    report(width_so_far(below.log_weights, choose, above), 0.5)
    chains = sampler.run(n_iter, clock.until(0.95))
    theta = chains.theta.flatten(0, 1)

    def reverse(density: NormalForm | StudentT) -> torch.Tensor:
        log_prob = density.log_prob(theta).reshape(chains.log_joint.shape)
        return chains.log_joint - log_prob

    n_above = chains.log_joint.numel()
    return Sides(
        method="importance",
        forward=below.log_weights,
        reverse=reverse(above),
        bridge=reverse(proposal),
        k_below=block_size(variance, len(below.log_weights)),
        k_above=block_size(variance_above, n_above),
        chains=chains,
        error=math.inf if n_draws is not None else error_of(precision),
    )


def _best_proposal(
    target: Target,
    normal: NormalForm,
    generator: torch.Generator,
    precision: float | None,
) -> tuple[StudentT, WeightedDraws, float] | None:
    """Best of few Student-t proposals, pilot draws, and their largest weight."""
    trials = [StudentT(normal, df) for df in SHAPES]
    pairs = [(t, draw_weighted(target, t, N_PILOT, generator)) for t in trials]
    proposal, pilot = min(pairs, key=lambda pair: badness(pair[1]))
    wanted = FAIR if is_loose(precision) else GOOD
    ratio = N_PILOT * float(pilot.weights.max())
    is_good = pilot.ess >= wanted * N_PILOT and ratio <= MAX_RATIO
    return (proposal, pilot, ratio) if is_good else None


def _narrower(chains: Chains, normal: NormalForm) -> tuple[NormalForm, float]:
    """Normal whose ratio to the posterior varies least at draws, and its variance."""
    theta, best, least = chains.theta.flatten(0, 1), normal, math.inf
    for factor in (1.0, 0.97, 0.93, 0.88):
        trial = NormalForm(normal.mean, factor * normal.scale)
        log_u = trial.log_prob(theta) - chains.log_joint.flatten()
        u = torch.exp(log_u - log_u.max())
        variance = float(u.var() / u.mean() ** 2)
        if variance < least:
            best, least = trial, variance
    return best, least


class IndependenceChains:
    """Chains that are offered independent draws of a proposal (Tierney 1994).

    Parameters
    ----------
    target : Target
    proposal : StudentT
    normal : NormalForm
        Near the posterior: chains start around it, and in the prior.
    generator : torch.Generator
    report : callable
    """

    def __init__(
        self,
        target: Target,
        proposal: StudentT,
        normal: NormalForm,
        generator: torch.Generator,
        report: Report,
    ) -> None:
        self.target, self.proposal, self.generator = target, proposal, generator
        self.report = report
        self.theta = dispersed_starts(target, normal, generator, N_CHAINS)
        self.value = target.log_joint_batched(self.theta)

    def run(self, n_iter: int, deadline: float = math.inf) -> Chains:
        """Offer so many draws to every chain; see `HamiltonianChains.run`."""
        theta, value, n_accepted = [], [], 0
        for i in range(n_iter):
            offered = draw_weighted(
                self.target, self.proposal, N_CHAINS, self.generator
            )
            log_prob = self.proposal.log_prob(self.theta)
            gain = offered.log_weights - (self.value - log_prob)
            gain = torch.nan_to_num(gain, nan=-math.inf)
            accept = rand(self.generator, N_CHAINS) < gain.clamp(max=0).exp()
            joint = offered.log_weights + self.proposal.log_prob(offered.theta)
            self.theta = torch.where(accept[:, None], offered.theta, self.theta)
            self.value = torch.where(accept, joint, self.value)
            n_accepted += int(accept.sum())
            theta.append(self.theta)
            value.append(self.value)
            self.report("draws of chains", (i + 1) / n_iter)
            if i + 1 >= MIN_ITER and time.monotonic() > deadline:
                break
        shares = n_accepted / (N_CHAINS * len(theta))
        return Chains(torch.stack(theta, 1), torch.stack(value, 1), shares)
