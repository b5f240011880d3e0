"""Proposals for a posterior of one mode: normals, and Student-t around them."""

import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeGuard

import torch

from skvi._sampling._chains import N_CHAINS, Chains
from skvi._sampling._importance import (
    StudentT,
    WeightedDraws,
    adapt_proposal,
    badness,
    draw_weighted,
)
from skvi.base import NormalForm
from skvi.base._protocols import Density, Proposal
from skvi.evidence._proposals import (
    Above,
    Explored,
    ProposalFamily,
    Setting,
    closest,
)
from skvi.solvers._wide_start import dispersed_starts
from skvi.targets import SupervisedTarget, Target

__all__ = ["MAX_PARAMS", "OneMode", "chain_moments", "is_heavy_tailed"]

# With fewer rows gradients cost next to nothing, and posteriors are skewed.
MIN_ROWS = 1000
# Degrees of freedom that are tried: few bound the weights, many are closer to normal,
# whose radius is the more certain the more parameters there are.
MANY, FEW, PER_PARAMETER = 100, 20, 10
# Widths of the normals above such proposals.
WIDTHS = (1.0, 0.97, 0.93, 0.88)
# A prior that is not log-concave matters for linear models up to this size.
MAX_PARAMS = 30
# Draws of chains per parameter required to estimate a full covariance.
DRAWS_PER_PARAMETER = 10
# A proposal fails with a smaller fraction of effective draws, or a heavier tail.
LOST_FRACTION, LOST_KHAT, MAX_RESCUES = 0.05, 0.7, 2


class OneMode(ProposalFamily):
    """A normal near the posterior, and what is fitted from there."""

    def __init__(self, normal: NormalForm) -> None:
        self.normal = normal

    def nearly_constant(
        self, target: Target, generator: torch.Generator, n_draws: int
    ) -> Iterator[tuple[Proposal, WeightedDraws]]:
        """Two Student-t around the normal, for many rows and a log-concave density."""
        is_simple = target.is_log_concave and target.has_design
        if is_simple and target.cost_per_draw >= MIN_ROWS:
            yield from self.student_t(target, generator, n_draws)

    def student_t(
        self, target: Target, generator: torch.Generator, n_draws: int
    ) -> Iterator[tuple[Proposal, WeightedDraws]]:
        """Proposals around the normal, and draws of each."""
        for df in (max(MANY, PER_PARAMETER * self.normal.size), FEW):
            proposal = self._proposal(df)
            yield proposal, draw_weighted(target, proposal, n_draws, generator)

    def _proposal(self, df: int) -> Proposal:
        return StudentT(self.normal, df)

    def starts(
        self, target: Target, n_chains: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Starts of chains in a normal three times as wide; see `dispersed_starts`."""
        return dispersed_starts(target, self.normal, generator, n_chains)

    def explore(self, setting: Setting, n_pilot: int) -> Explored:
        """Fit a Student-t, from chains if need be.

        Weights under a factorized q can be useless; chains still reach the posterior.
        """
        target, generator = setting.target, setting.generator
        deadline = setting.deadline
        proposal, pilot = adapt_proposal(
            target, self.normal, generator, n_pilot, deadline=deadline
        )
        normal = proposal.normal
        starts = dispersed_starts(target, normal, generator, N_CHAINS)
        jump = proposal if self.jumps(target) else None
        sampler = setting.chains(starts, normal, jump)
        for _ in range(MAX_RESCUES):
            is_late = time.monotonic() > deadline
            if is_late or not _is_lost(pilot) or _are_few(sampler.pilot):
                break
            near = chain_moments(sampler.pilot, proposal.normal)
            trial, draws = adapt_proposal(target, near, generator, deadline=deadline)
            if badness(draws) >= badness(pilot):
                break
            proposal, pilot = trial, draws
            sampler = setting.chains(sampler.pilot.theta[:, -1], trial.normal)
        return Explored(proposal, pilot, sampler)

    def jumps(self, target: Target) -> bool:
        """Whether chains are offered draws: they take long to leave heavy tails."""
        return is_heavy_tailed(target)

    def lighter(
        self, chains: Chains, widths: Sequence[float], more: Sequence[NormalForm] = ()
    ) -> list[Density]:
        """Normals of all widths."""
        return [
            NormalForm(base.mean, width * base.scale)
            for base, width in product((self.normal, *more), widths)
        ]

    def above_nearly_constant(self, chains: Chains) -> Above:
        """Normal of the least variance: log-concave posteriors have no edge."""
        return closest(self.lighter(chains, WIDTHS), chains, tail=lambda _: 0.0)


def is_heavy_tailed(target: Target) -> TypeGuard[SupervisedTarget]:
    """Whether a linear model of few parameters has a prior that is not log-concave."""
    is_small = target.has_design and target.layout.size <= MAX_PARAMS
    return is_small and not target.reference.is_log_concave


def _is_lost(pilot: WeightedDraws) -> bool:
    return pilot.ess < LOST_FRACTION * len(pilot.theta) or pilot.khat > LOST_KHAT


def _are_few(chains: Chains) -> bool:
    size = chains.theta.shape[-1]
    return chains.log_joint.numel() < DRAWS_PER_PARAMETER * size


def chain_moments(chains: Chains, fallback: NormalForm) -> NormalForm:
    """Normal with the moments of the draws; factorized if there are too few."""
    theta = chains.theta.flatten(0, 1)
    mean, centered = theta.mean(0), theta - theta.mean(0)
    if _are_few(chains):
        return NormalForm(mean, centered.std(0).clamp(min=1e-150))
    covariance = centered.T @ centered / (len(theta) - 1)
    factor, info = torch.linalg.cholesky_ex(covariance)
    return fallback if int(info) else NormalForm(mean, factor)
