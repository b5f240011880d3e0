"""Positions of chains, and Metropolis-corrected Hamiltonian moves of all of them."""

import math
from collections.abc import Callable
from typing import Any

import torch

from skvi.base import NormalForm
from skvi.utils._random import rand, randn

__all__ = ["Report", "State", "silent"]

#: Told what is going on, and which share of it is done.
Report = Callable[[str, float], Any]


def silent(what: str, share: float) -> None:
    """Report nothing."""


class State:
    """Positions in whitened coordinates with their log joint densities.

    Moves leave the density ``r^(1 - beta) p(D, theta)^beta`` invariant, where r is
    the normal that whitens: in whitened coordinates a standard one.
    """

    def __init__(
        self, target: Any, normal: NormalForm, starts: torch.Tensor, beta: float = 1.0
    ) -> None:
        self.target, self.normal, self.beta = target, normal, beta
        self.position = normal.whiten(starts - normal.mean)
        self.value, self.slope = self._value_and_slope(self.position)

    def theta(self) -> torch.Tensor:
        return self.normal.transform(self.position)

    def log_weights(self) -> torch.Tensor:
        """Log joint density minus that of the normal, (n_chains,)."""
        return self.value - self.normal.log_prob_whitened(self.position)

    def _value_and_slope(
        self, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, and its gradient in whitened coordinates."""
        theta = self.normal.transform(position)
        value, gradient = self.target.log_joint_and_gradient(theta)
        # A chain that leaves the support is rejected, not poisoned.
        value = torch.nan_to_num(value, nan=-math.inf, neginf=-math.inf)
        return value, self._whitened(gradient)

    def _slope(self, position: torch.Tensor) -> torch.Tensor:
        theta = self.normal.transform(position)
        return self._whitened(self.target.log_joint_gradient(theta))

    def _whitened(self, gradient: torch.Tensor) -> torch.Tensor:
        scale = self.normal.scale
        whitened = gradient * scale if self.normal.is_diagonal else gradient @ scale
        return torch.nan_to_num(whitened, nan=0.0)

    def _energy(self, position: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if self.beta == 1:
            return -value
        squares = 0.5 * (1 - self.beta) * position.square().sum(1)
        return squares - self.beta * value

    def _force(self, position: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        if self.beta == 1:
            return slope
        return torch.lerp(-position, slope, self.beta)

    def move(self, step: float, n_steps: int, generator: torch.Generator) -> float:
        """One Hamiltonian trajectory for all chains; return the mean acceptance."""
        momentum = randn(generator, *self.position.shape)
        start = self._energy(self.position, self.value)
        start = start + 0.5 * momentum.square().sum(1)
        position = self.position
        momentum = momentum + 0.5 * step * self._force(position, self.slope)
        for _ in range(n_steps - 1):
            position = position + step * momentum
            momentum += step * self._force(position, self._slope(position))
        position = position + step * momentum
        value, slope = self._value_and_slope(position)
        momentum += 0.5 * step * self._force(position, slope)
        end = self._energy(position, value) + 0.5 * momentum.square().sum(1)
        probability = torch.nan_to_num(start - end, nan=-math.inf).clamp(max=0).exp()
        accept = rand(generator, len(position)) < probability
        self.position = torch.where(accept[:, None], position, self.position)
        self.slope = torch.where(accept[:, None], slope, self.slope)
        self.value = torch.where(accept, value, self.value)
        return float(probability.mean())
