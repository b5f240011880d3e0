"""A fitted posterior as its own proposal, where gradients do not move chains."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from skvi._sampling._chains import Chains
from skvi._sampling._importance import StudentT, WeightedDraws, draw_weighted
from skvi.base import NormalForm
from skvi.base._protocols import Density, Proposal
from skvi.evidence._proposals import Explored, ProposalFamily, Setting
from skvi.posteriors import Posterior
from skvi.targets import Target
from skvi.utils._random import rand

__all__ = ["TAIL_DF", "UNEVEN", "Fitted", "WideBeside"]

UNEVEN = (
    "weights of draws of the fitted posterior vary too much for bounds from them, and "
    "chains that follow gradients cannot move discrete parameters; the ELBO is a "
    "lower bound. Sum the discrete parameters out of the log density, where that is "
    "possible"
)


# Degrees of freedom of draws that see tails.
TAIL_DF = 4


class WideBeside:
    """Discrete parameters of a product posterior, beside others from a wide density.

    The latter is a Student-t of the posterior's moments.
    """

    def __init__(self, posterior: Posterior, normal: NormalForm) -> None:
        layout = posterior.layout
        self.posterior = posterior
        parts = posterior.parts.items()
        self.discrete = [
            (layout.positions(names), part)
            for names, part in parts
            if part.layout.discrete
        ]
        self.smooth = layout.positions(layout.without(*layout.discrete))
        self.wide = StudentT(normal.marginal(self.smooth), TAIL_DF)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Independent draws, (S, P)."""
        theta = self.posterior.draw(n_draws, generator).theta.clone()
        if len(self.smooth):
            theta[:, self.smooth] = self.wide.sample(n_draws, generator)
        return theta

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density at points, (S,)."""
        logs = [part.log_prob(theta[:, where]) for where, part in self.discrete]
        if len(self.smooth):
            logs.append(self.wide.log_prob(theta[:, self.smooth]))
        return torch.stack(logs).sum(0)


@dataclass(frozen=True)
class _Halves:
    """Half of the draws from a posterior, half from a wider density."""

    posterior: Posterior
    wide: WideBeside

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        first = self.posterior.draw(n_draws, generator).theta
        second = self.wide.sample(n_draws, generator)
        is_first = rand(generator, n_draws, 1) < 0.5
        return torch.where(is_first, first, second)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        pair = self.posterior.log_prob(theta), self.wide.log_prob(theta)
        return torch.logaddexp(*pair) - math.log(2)


@dataclass(frozen=True)
class _Alone:
    """A posterior as a density."""

    posterior: Posterior

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self.posterior.log_prob(theta)


class Fitted(ProposalFamily):
    """A posterior whose weights may be nearly constant, on both sides."""

    efficiency = 0.1  # there is no other method

    def __init__(self, posterior: Posterior, normal: NormalForm) -> None:
        self.posterior, self.normal = posterior, normal
        self.proposal = _Halves(posterior, WideBeside(posterior, normal))

    def nearly_constant(
        self, target: Target, generator: torch.Generator, n_draws: int
    ) -> Iterator[tuple[Proposal, WeightedDraws]]:
        """Itself beside a wider one, and draws."""
        yield self.proposal, draw_weighted(target, self.proposal, n_draws, generator)

    def starts(
        self, target: Target, n_chains: int, generator: torch.Generator
    ) -> torch.Tensor:
        return self.proposal.sample(n_chains, generator)

    def explore(self, setting: Setting, n_pilot: int) -> Explored:
        raise NotImplementedError("Chains need gradients.")

    def lighter(
        self, chains: Chains, widths: Sequence[float], more: Sequence[NormalForm] = ()
    ) -> list[Density]:
        """Itself: how heavy the tails are is for the diagnostics to say."""
        return [_Alone(self.posterior)]
