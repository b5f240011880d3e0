"""Positions of chains, and Metropolis-corrected Hamiltonian moves of all of them."""

import math
from collections.abc import Callable

import torch

from skvi.base import NormalForm
from skvi.base._protocols import Proposal
from skvi.targets import Target
from skvi.utils._random import rand, randn

__all__ = ["Report", "State", "silent"]

#: Takes a description of the current step, and its completed fraction.
Report = Callable[[str, float], object]


def silent(what: str, fraction: float) -> None:
    """Report nothing."""


class State:
    """Positions in whitened coordinates with their log joint densities.

    Moves leave ``r^(1 - beta) p(D, theta)^beta`` invariant; r is the whitening normal.
    """

    def __init__(
        self,
        target: Target,
        normal: NormalForm,
        starts: torch.Tensor,
        beta: float = 1.0,
    ) -> None:
        self.normal, self.beta = normal, beta
        self.density = target.whitened(normal)
        self.position = normal.whiten(starts - normal.mean)
        #: Log density of the normal at its mean.
        self.peak = normal.log_prob_whitened(torch.zeros_like(normal.mean)[None])
        self.value, self.slope = self._value_and_slope(self.position)

    def theta(self) -> torch.Tensor:
        return self.normal.transform(self.position)

    def log_weights(self) -> torch.Tensor:
        """Log joint density minus that of the normal, (n_chains,)."""
        return self.value - self.peak + 0.5 * self.position.square().sum(1)

    def _value_and_slope(
        self, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, and its gradient in whitened coordinates."""
        value, slope = self.density.value_and_slope(position)
        # A chain that leaves the support is rejected, not poisoned.
        value = torch.nan_to_num(value, nan=-math.inf, neginf=-math.inf)
        return value, torch.nan_to_num(slope, nan=0.0)

    def _slope(self, position: torch.Tensor) -> torch.Tensor:
        return torch.nan_to_num(self.density.slope(position), nan=0.0)

    def _energy(self, position: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if self.beta == 1:
            return -value
        squares = 0.5 * (1 - self.beta) * position.square().sum(1)
        return squares - self.beta * value

    def _kick(
        self,
        momentum: torch.Tensor,
        position: torch.Tensor,
        slope: torch.Tensor,
        step: float,
    ) -> None:
        """Change the momentum in place by the force during a step."""
        momentum.add_(slope, alpha=step * self.beta)
        if self.beta < 1:
            momentum.sub_(position, alpha=step * (1 - self.beta))

    def move(self, step: float, n_steps: int, generator: torch.Generator) -> float:
        """One Hamiltonian trajectory for all chains; return the mean acceptance."""
        position, momentum = self.position, randn(generator, *self.position.shape)
        start = self._energy(position, self.value)
        start = start + 0.5 * momentum.square().sum(1)
        self._kick(momentum, position, self.slope, 0.5 * step)
        for _ in range(n_steps - 1):
            position = position.add(momentum, alpha=step)
            self._kick(momentum, position, self._slope(position), step)
        position = position.add(momentum, alpha=step)
        value, slope = self._value_and_slope(position)
        self._kick(momentum, position, slope, 0.5 * step)
        end = self._energy(position, value) + 0.5 * momentum.square().sum(1)
        probability = torch.nan_to_num(start - end, nan=-math.inf).clamp(max=0).exp()
        self._accept(probability, position, value, slope, generator)
        return float(probability.mean())

    def jump(self, proposal: Proposal, generator: torch.Generator) -> float:
        """Offer every chain a draw of a proposal; return the mean acceptance.

        An independence sampler, which leaves the target (beta = 1) invariant.
        """
        offered = proposal.sample(len(self.position), generator)
        position = self.normal.whiten(offered - self.normal.mean)
        value, slope = self._value_and_slope(position)
        gain = value - proposal.log_prob(offered)
        gain = gain - (self.value - proposal.log_prob(self.theta()))
        probability = torch.nan_to_num(gain, nan=-math.inf).clamp(max=0).exp()
        self._accept(probability, position, value, slope, generator)
        return float(probability.mean())

    def _accept(
        self,
        probability: torch.Tensor,
        position: torch.Tensor,
        value: torch.Tensor,
        slope: torch.Tensor,
        generator: torch.Generator,
    ) -> None:
        """Metropolis step of every chain."""
        accept = rand(generator, len(position)) < probability
        self.position = torch.where(accept[:, None], position, self.position)
        self.slope = torch.where(accept[:, None], slope, self.slope)
        self.value = torch.where(accept, value, self.value)
