"""Positions at many inverse temperatures at once, and Hamiltonian moves of them."""

import math
from dataclasses import dataclass, replace

import torch

from skvi.base import NormalForm
from skvi.targets import Target
from skvi.utils._random import rand, randn

__all__ = ["Ladder", "Replicas"]

# Leapfrog steps of a move, and of every fourth one, which can leave regions of higher
# curvature.
N_STEPS, FEW_STEPS = 8, 2


@dataclass(frozen=True, eq=False)
class Ladder:
    """Densities ``r^(1 - beta) p(D, theta)^beta`` at L inverse temperatures.

    With r and the target, each density is invariant under the symmetries of a network.
    """

    target: Target
    normal: NormalForm  # r, which whitens the space
    betas: torch.Tensor  # (L,), ascending from 0 to 1
    steps: torch.Tensor  # (L, P), leapfrog steps, whitened

    @property
    def size(self) -> int:
        """Number of densities, L."""
        return len(self.betas)

    def with_steps(self, steps: torch.Tensor) -> "Ladder":
        """Return the same densities with other steps."""
        return replace(self, steps=steps)


class Replicas:
    """N whitened positions, each of which moves at its own temperature.

    `log_weights` (N,) are relative to r, in nats; `slope` (N, P) is their gradient.
    """

    def __init__(
        self, target: Target, normal: NormalForm, position: torch.Tensor
    ) -> None:
        self.normal, self.density = normal, target.whitened(normal)
        self.peak = normal.log_prob_whitened(torch.zeros_like(normal.mean)[None])
        self.position = position
        self.log_weights, self.slope = self._evaluate(position)

    @property
    def theta(self) -> torch.Tensor:
        """The positions as parameters, (N, P)."""
        return self.normal.transform(self.position)

    def _evaluate(self, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value, slope = self.density.value_and_slope(position)
        value = value - self.peak + 0.5 * position.square().sum(1)
        # Positions outside the support are rejected, and do not spread NaN.
        value = torch.nan_to_num(value, nan=-math.inf, neginf=-math.inf)
        return value, torch.nan_to_num(
            slope, nan=0.0, posinf=0.0, neginf=0.0
        ) + position

    def replace(self, rows: torch.Tensor, position: torch.Tensor) -> None:
        """Set the positions of some replicas."""
        weights, slope = self._evaluate(position)
        self.position = self.position.index_copy(0, rows, position)
        self.log_weights = self.log_weights.index_copy(0, rows, weights)
        self.slope = self.slope.index_copy(0, rows, slope)

    def take(self, rows: torch.Tensor) -> None:
        """Reorder, or resample, the replicas."""
        self.position, self.slope = self.position[rows], self.slope[rows]
        self.log_weights = self.log_weights[rows]

    def squared_force(self, beta: torch.Tensor) -> torch.Tensor:
        """Squares of the gradients of the log densities, (N, P)."""
        return (beta[:, None] * self.slope - self.position).square()

    def move(
        self,
        beta: torch.Tensor,
        steps: torch.Tensor,
        n_steps: int,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Move replicas by Hamiltonian trajectories; acceptance probabilities, (N,).

        Each at its own beta (N,), with its own leapfrog steps (N, P).
        """
        momentum = randn(generator, *self.position.shape)
        position, weights, slope = self.position, self.log_weights, self.slope
        start = _energy(beta, position, weights, momentum)
        force = beta[:, None] * slope - position
        momentum = momentum + 0.5 * steps * force
        for i in range(n_steps):
            position = position + steps * momentum
            weights, slope = self._evaluate(position)
            force = beta[:, None] * slope - position
            fraction = 1.0 if i < n_steps - 1 else 0.5
            momentum = momentum + fraction * steps * force
        gain = start - _energy(beta, position, weights, momentum)
        probability = torch.nan_to_num(gain, nan=-math.inf).clamp(max=0).exp()
        accept = rand(generator, len(position)) < probability
        self.position = torch.where(accept[:, None], position, self.position)
        self.slope = torch.where(accept[:, None], slope, self.slope)
        self.log_weights = torch.where(accept, weights, self.log_weights)
        return probability


def _energy(
    beta: torch.Tensor,
    position: torch.Tensor,
    log_weights: torch.Tensor,
    momentum: torch.Tensor,
) -> torch.Tensor:
    """Minus the log density of position and momentum, (N,)."""
    squares = position.square().sum(1) + momentum.square().sum(1)
    return 0.5 * squares - torch.where(beta > 0, beta * log_weights, 0.0)


def n_steps_at(move: int) -> int:
    """Leapfrog steps of a move: every fourth one is short."""
    return FEW_STEPS if move % 4 == 3 else N_STEPS
