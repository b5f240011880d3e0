"""Positions of chains, and Metropolis-corrected Hamiltonian moves of all of them."""

import math
from collections.abc import Callable

import torch

from skvi.base import NormalForm
from skvi.base._protocols import Proposal
from skvi.targets import Target
from skvi.utils._clock import check_time
from skvi.utils._random import rand, randn

__all__ = ["Positions", "Report", "silent"]

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
