"""Evidence of posteriors that a fitted proposal nearly is: weights, and no gradients.

Where a log-concave posterior is close to a Student-t, independent draws of that are
accepted nearly always: chains of the independence sampler forget their start in a few
steps, at the cost of one evaluation for each. The work follows the asked precision.
"""

import math
import time
from dataclasses import dataclass
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.base._protocols import Density, Proposal
from skvi.evidence._clock import UNLIMITED, Clock
from skvi.evidence._estimates import block_size, width_so_far
from skvi.evidence._scale_modes import ScaleModes
from skvi.evidence._sides import (
    NEARLY_CONSTANT,
    Sides,
    error_of,
    is_loose,
    n_draws_for,
)
from skvi.sampling import (
    Chains,
    StudentT,
    WeightedDraws,
    draw_limit,
    draw_weighted,
    pareto_khat,
)
from skvi.sampling._importance import tail_score
from skvi.sampling._state import Report, silent
from skvi.solvers import dispersed_starts
from skvi.targets import Target
from skvi.utils._random import rand

__all__ = ["near_normal_sides"]

# Largest weight of the pilot draws, in means: chains forget at a rate of one over it.
MAX_RATIO = 8.0
# With fewer rows gradients cost next to nothing, and posteriors are skewed.
MIN_ROWS = 1000
# Degrees of freedom that are tried: few bound the weights, many are closer to normal,
# whose radius is the more certain the more parameters there are.
MANY, FEW, PER_PARAMETER = 100, 20, 10
# What may be left of a start when draws begin to count, and the fewest steps to that.
FORGOTTEN, LEAST_FORGET = 0.005, 4
# Iterations that are kept although the clock has run out.
LEAST_KEPT = 10
# Widths that are tried for the density above where the scale of a prior is unknown.
REVERSE_SCALES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


@dataclass(frozen=True)
class _Effort:
    """Fewest draws of everything, by the precision that is asked for.

    Parameters
    ----------
    pilot, below : int
        Draws of the proposal: for its choice, and for the lower bound.
    chains : int
    choose, iterations : int
        Of every chain: for the choice of the density above, and for the upper bound.
    efficiency : float
        Fraction of effective draws that makes a proposal good.
    """

    pilot: int
    below: int
    chains: int
    choose: int
    iterations: int
    efficiency: float

    @staticmethod
    def of(precision: float | None) -> "_Effort":
        # The error of nearly constant weights includes 2 / n for an unseen tail: half.
        below = max(math.ceil(2 * NEARLY_CONSTANT / error_of(precision)), 128)
        if is_loose(precision):
            return _Effort(64, below, 32, 8, 20, efficiency=0.5)
        return _Effort(256, below, 64, 10, 24, efficiency=0.8)


def near_normal_sides(
    target: Target,
    normal: NormalForm,
    generator: torch.Generator,
    n_draws: int | None,
    precision: float | None,
    report: Report = silent,
    clock: Clock = UNLIMITED,
    scales: ScaleModes | None = None,
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
    scales : ScaleModes, default=None
        Mixture to draw from, where the prior has an unknown scale.

    Returns
    -------
    Sides or None
    """
    is_simple = target.is_log_concave and target.has_design
    if scales is None and not (is_simple and target.cost_per_draw >= MIN_ROWS):
        return None
    effort = _Effort.of(precision)
    if scales is None:
        found = _first_good(target, normal, generator, effort)
    else:
        found = _if_good(scales.proposal, scales.pilot, effort)
    if found is None:
        return None
    proposal, pilot, ratio = found
    variance = len(pilot.theta) / pilot.ess - 1
    limit = draw_limit(target.layout.size)
    if scales is None:
        variance = max(variance, float(pilot.log_weights.var()))
    n_below = n_draws or n_draws_for(variance, precision, limit, effort.below)
    if scales is not None and n_draws is None:
        n_below = max(n_below, scales.least_draws)
    n_iter = max(math.ceil(2 * n_below / effort.chains), effort.iterations)
    if scales is None:
        starts = dispersed_starts(target, normal, generator, effort.chains)
    else:
        starts = scales.starts(effort.chains, generator)
    sampler = IndependenceChains(target, proposal, starts, generator, report)
    choose = sampler.run(_n_forget(ratio) + effort.choose).last(effort.choose)
    above, variance_above = _narrower(choose, proposal, scales)
    below = draw_weighted(target, proposal, n_below, generator, clock.until(0.4))
    report(width_so_far(below.log_weights, choose, above), 0.5)
    chains = sampler.run(n_iter, clock.until(0.95))
    theta = chains.theta.flatten(0, 1)

    def reverse(density: Density) -> torch.Tensor:
        log_prob = density.log_prob(theta).reshape(chains.log_joint.shape)
        return chains.log_joint - log_prob

    n_above = chains.log_joint.numel()
    k_below = block_size(variance, len(below.log_weights))
    if scales is not None:
        k_below = max(k_below, scales.least_block(len(below.log_weights)))
    return Sides(
        method="importance",
        forward=below.log_weights,
        reverse=reverse(above),
        bridge=reverse(proposal),
        k_below=k_below,
        k_above=block_size(variance_above, n_above),
        chains=chains,
        error=math.inf if n_draws is not None else error_of(precision),
        is_cut=len(below.theta) < n_below or chains.theta.shape[1] < n_iter,
        is_block_larger=scales is not None,
    )


def _first_good(
    target: Target, normal: NormalForm, generator: torch.Generator, effort: _Effort
) -> tuple[Proposal, WeightedDraws, float] | None:
    """A good proposal of few Student-t, pilot draws, and their largest weight."""
    for df in (max(MANY, PER_PARAMETER * normal.size), FEW):
        proposal = StudentT(normal, df)
        pilot = draw_weighted(target, proposal, effort.pilot, generator)
        found = _if_good(proposal, pilot, effort)
        if found is not None:
            return found
    return None


def _if_good(
    proposal: Proposal, pilot: WeightedDraws, effort: _Effort
) -> tuple[Proposal, WeightedDraws, float] | None:
    """The proposal, its draws and their largest weight, if that is small."""
    n_pilot = len(pilot.theta)
    ratio = n_pilot * float(pilot.weights.max())
    is_good = pilot.ess >= effort.efficiency * n_pilot and ratio <= MAX_RATIO
    return (proposal, pilot, ratio) if is_good else None


def _n_forget(ratio: float) -> int:
    """Steps after which hardly anything is left of a start (Mengersen, Tweedie 1996).

    A step forgets it with a probability of at least one over the largest weight.
    """
    kept = 1 - 1 / max(ratio, 1.01)
    return max(math.ceil(math.log(FORGOTTEN) / math.log(kept)), LEAST_FORGET)


def _narrower(
    chains: Chains, proposal: Proposal, scales: ScaleModes | None
) -> tuple[Density, float]:
    """Density whose ratio to the posterior varies least at draws, and its variance."""
    theta = chains.theta.flatten(0, 1)
    best, least, least_score = None, math.inf, math.inf
    for factor in (1.0, 0.97, 0.93, 0.88) if scales is None else REVERSE_SCALES:
        trial = _lighter(chains, proposal, scales, factor)
        log_u = trial.log_prob(theta) - chains.log_joint.flatten()
        u = torch.exp(log_u - log_u.max())
        variance = float(u.var() / u.mean() ** 2)
        # Mixtures reach beyond the edge of a posterior of classes that are separated.
        score = tail_score(variance, 0.0 if scales is None else pareto_khat(log_u))
        if best is None or score < least_score:
            best, least, least_score = trial, variance, score
    return cast(Density, best), least


def _lighter(
    chains: Chains, proposal: Proposal, scales: ScaleModes | None, factor: float
) -> Density:
    """Narrower version of a proposal with the tails of normals."""
    if isinstance(proposal, StudentT):
        return NormalForm(proposal.normal.mean, factor * proposal.normal.scale)
    return cast(ScaleModes, scales).reverse(chains, [], factor)


class IndependenceChains:
    """Chains that are offered independent draws of a proposal (Tierney 1994).

    Parameters
    ----------
    target : Target
    proposal : Proposal
    starts : Tensor of shape (n_chains, P)
    generator : torch.Generator
    report : callable
    """

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
        """Offer so many draws to every chain; see `HamiltonianChains.run`."""
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
