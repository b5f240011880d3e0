"""What draws for both sides come from: one normal, or a mixture for several modes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch

from skvi._sampling._chains import Chains, HamiltonianChains
from skvi._sampling._diagnostics import effective_sample_size, pareto_khat
from skvi._sampling._importance import WeightedDraws, tail_score
from skvi._sampling._positions import Report
from skvi.base import NormalForm
from skvi.base._protocols import Density, Proposal
from skvi.evidence._estimates import block_size, weights_of_chains
from skvi.evidence._sides import MIN_DRAWS, n_draws_for
from skvi.targets import Target

__all__ = [
    "Above",
    "Explored",
    "ProposalFamily",
    "Setting",
    "closest",
    "relative_variance",
]

N_WARMUP = 150
# Widths of densities above that are tried where weights are nearly constant.
WIDTHS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
# Most draws of chains that count as one independent draw.
MAX_CORRELATION = 4.0


@dataclass(frozen=True, eq=False)
class Setting:
    """Arguments that all samplers of a run have in common; see `HamiltonianChains`."""

    target: Target
    generator: torch.Generator
    report: Report
    deadline: float

    def chains(
        self, starts: torch.Tensor, normal: NormalForm, jump: Proposal | None = None
    ) -> HamiltonianChains:
        """Chains, warmed up, that are whitened by a normal."""
        sampler = HamiltonianChains(
            self.target,
            starts,
            normal,
            self.generator,
            report=self.report,
            jump=jump,
        )
        return sampler.warm_up(N_WARMUP, self.deadline)


class Explored(NamedTuple):
    """A fitted proposal, its draws, and chains that are whitened by it."""

    proposal: Proposal
    pilot: WeightedDraws
    sampler: HamiltonianChains


@dataclass(frozen=True, eq=False)
class Above:
    """A density r for the upper side, and what is known of r/p at posterior draws."""

    density: Density
    variance: float  # relative, of r/p
    log_ratios: torch.Tensor  # (n_chains, n_iterations)

    @property
    def variance_of_few(self) -> float:
        """The variance, as for the log mean exp of few weights."""
        return max(self.variance, variance_of_logs(self.log_ratios))

    @property
    def correlation(self) -> float:
        """Draws of chains per effectively independent draw, from 1 to 4."""
        u = torch.exp(self.log_ratios - self.log_ratios.max())
        ess = float(effective_sample_size(u[..., None])[0])
        return min(max(1.0, u.numel() / ess), MAX_CORRELATION)


class ProposalFamily(ABC):
    """Densities near a posterior, of heavier tails and of lighter ones.

    `least_draws` and `least_block` are for a lower bound and for each estimate of it,
    `efficiency` is the fraction of effective draws that is enough; None by precision.
    """

    normal: NormalForm
    efficiency: float | None = None
    least_draws = 0
    least_block = 1

    def nearly_constant(
        self, target: Target, generator: torch.Generator, n_draws: int
    ) -> Iterable[tuple[Proposal, WeightedDraws]]:
        """Proposals under which weights may be nearly constant, and draws of each."""
        return ()

    @abstractmethod
    def starts(
        self, target: Target, n_chains: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Starts of chains, (n_chains, P), farther apart than the posterior."""

    @abstractmethod
    def explore(self, setting: Setting, n_pilot: int) -> Explored:
        """Fit a proposal, with `n_pilot` draws, and warm up chains."""

    @abstractmethod
    def lighter(
        self, chains: Chains, widths: Sequence[float], more: Sequence[NormalForm] = ()
    ) -> list[Density]:
        """Densities of lighter tails than the posterior's, one or more of each width.

        Widths are relative to the normals: these, or those that the family has.
        """

    def above_nearly_constant(self, chains: Chains) -> Above:
        """Density above a proposal under which weights are nearly constant."""
        return closest(self.lighter(chains, WIDTHS), chains)

    def variance(self, pilot: WeightedDraws) -> float:
        """Relative variance of weights that the number of draws follows."""
        return max(relative_variance(pilot), variance_of_logs(pilot.log_weights))

    def n_below(
        self,
        pilot: WeightedDraws,
        precision: float | None,
        limit: int,
        least: int = MIN_DRAWS,
    ) -> int:
        """Draws for a lower bound of a precision; see `n_draws_for`."""
        found = n_draws_for(self.variance(pilot), precision, limit, least)
        return max(found, self.least_draws)

    def k_below(self, variance: float, n_draws: int) -> int:
        """Draws per estimate of a lower bound; see `block_size`."""
        least = min(self.least_block, max(n_draws // 16, 1))
        return max(block_size(variance, n_draws), least)


def relative_variance(pilot: WeightedDraws) -> float:
    """Relative variance of weights, from their effective sample size."""
    return len(pilot.theta) / pilot.ess - 1


def variance_of_logs(log_weights: torch.Tensor) -> float:
    """Variance of log weights, as for the log mean exp of few weights."""
    variance = float(log_weights.var())
    return variance if math.isfinite(variance) else 0.0


def closest(
    trials: Iterable[Density],
    chains: Chains,
    tail: Callable[[torch.Tensor], float] = pareto_khat,
) -> Above:
    """The density r whose ratio r/p varies least under the posterior.

    Narrower versions are tried, too: r must not have heavier tails than the posterior.
    """
    best, least = None, math.inf
    for trial in trials:
        log_ratios = -weights_of_chains(chains, trial)
        u = torch.exp(log_ratios - log_ratios.max())
        variance = float(u.var() / u.mean() ** 2)
        variance = variance if math.isfinite(variance) else math.inf
        score = tail_score(variance, tail(log_ratios.flatten()))
        if best is None or score < least:
            best, least = Above(trial, variance, log_ratios), score
    return cast(Above, best)
