"""Markov chains: whitened, Metropolis-corrected Hamiltonian moves, vectorised."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from skvi.base import NormalForm
from skvi.sampling._diagnostics import split_rhat
from skvi.utils._random import rand, randn

__all__ = ["Chains", "run_chains"]

TARGET_ACCEPTANCE = 0.8
# In whitened units; leapfrog on a standard normal is unstable above 2.
MAX_STEP = 1.0
SHORT_STEPS = (1.0, 1.0, 0.3, 1.0, 1.0, 0.1)


@dataclass(frozen=True, eq=False)
class Chains:
    """Draws of many chains, after warm-up.

    Parameters
    ----------
    theta : Tensor of shape (n_chains, n_iterations, P)
    log_joint : Tensor of shape (n_chains, n_iterations)
    acceptance : float
        Mean acceptance probability.

    Examples
    --------
    >>> import torch
    >>> from skvi.sampling import Chains
    >>> Chains(torch.zeros(4, 10, 1), torch.zeros(4, 10), 0.8).acceptance
    0.8
    """

    theta: torch.Tensor
    log_joint: torch.Tensor
    acceptance: float

    @property
    def rhat(self) -> float:
        """Largest split-R-hat over all parameters and the log joint density."""
        return split_rhat(torch.cat([self.theta, self.log_joint[..., None]], 2))


@torch.no_grad()
def run_chains(
    target: Any,
    starts: torch.Tensor,
    normal: NormalForm,
    generator: torch.Generator,
    n_warmup: int = 150,
    n_iter: int = 100,
    path_length: float = 1.6,
) -> Chains:
    """Run Hamiltonian Monte Carlo, one chain for each start.

    Positions are whitened by a normal near the posterior, so that one step size
    fits all directions. It is tuned in the warm-up by stochastic approximation
    to an acceptance of 0.8 and then frozen: the kept draws are those of an exact
    Markov chain.

    Parameters
    ----------
    target : Target
    starts : Tensor of shape (n_chains, P)
        Over-dispersed, so that `Chains.rhat` can tell whether they met.
    normal : NormalForm
        Whitens the space.
    generator : torch.Generator
    n_warmup, n_iter : int
    path_length : float, default=1.6
        Mean length of a path in whitened units: about a quarter of a period of
        a standard normal, which makes successive draws nearly independent.

    Returns
    -------
    Chains
    """
    state = _State(target, normal, starts)
    log_step, log_step_mean = math.log(0.5), math.log(0.5)
    theta, log_joint, accepted = [], [], []
    for i in range(n_warmup + n_iter):
        warming = i < n_warmup
        step = min(math.exp(log_step if warming else log_step_mean), MAX_STEP)
        # Steps that suit the bulk can be unstable where the density bends more:
        # short ones let a chain escape from there.
        step *= SHORT_STEPS[i % len(SHORT_STEPS)]
        # A random path length avoids the periods of near-normal targets.
        length = path_length * (0.5 + float(rand(generator, 1)))
        # While warming up short paths suffice, and cost less where steps are small.
        n_steps = min(max(1, round(length / step)), 16 if warming else 64)
        probability = state.move(step, n_steps, generator)
        if warming and SHORT_STEPS[i % len(SHORT_STEPS)] == 1:
            # Robbins-Monro with averaging, as in Nesterov's dual averaging.
            log_step += (probability - TARGET_ACCEPTANCE) * 3 / (i + 1) ** 0.6
            weight = (i + 1) ** -0.75
            log_step_mean = weight * log_step + (1 - weight) * log_step_mean
        elif not warming:
            accepted.append(probability)
            theta.append(state.theta())
            log_joint.append(state.value.clone())
    return Chains(
        torch.stack(theta, 1),
        torch.stack(log_joint, 1),
        sum(accepted) / max(1, len(accepted)),
    )


class _State:
    """Positions in whitened coordinates with their densities and gradients."""

    def __init__(self, target: Any, normal: NormalForm, starts: torch.Tensor) -> None:
        self.target, self.normal = target, normal
        self.position = normal.whiten(starts - normal.mean)
        self.value = self._value(self.position)
        self.gradient = self._slope(self.position)

    def theta(self) -> torch.Tensor:
        return self.normal.transform(self.position)

    def _value(self, position: torch.Tensor) -> torch.Tensor:
        # A chain that leaves the support is rejected, not poisoned.
        value = self.target.log_joint(self.normal.transform(position))
        return torch.nan_to_num(value, nan=-math.inf)

    def _slope(self, position: torch.Tensor) -> torch.Tensor:
        gradient = self.target.log_joint_gradient(self.normal.transform(position))
        scale = self.normal.scale
        whitened = gradient * scale if self.normal.is_diagonal else gradient @ scale
        return torch.nan_to_num(whitened, nan=0.0)

    def move(self, step: float, n_steps: int, generator: torch.Generator) -> float:
        """One Hamiltonian trajectory for all chains; return the mean acceptance."""
        momentum = randn(generator, *self.position.shape)
        energy = self.value - 0.5 * momentum.square().sum(1)
        position, gradient = self.position, self.gradient
        momentum = momentum + 0.5 * step * gradient
        for i in range(n_steps):
            position = position + step * momentum
            gradient = self._slope(position)
            momentum = momentum + (step if i < n_steps - 1 else 0.5 * step) * gradient
        value = self._value(position)
        change = value - 0.5 * momentum.square().sum(1) - energy
        probability = torch.nan_to_num(change, nan=-math.inf).clamp(max=0).exp()
        accept = rand(generator, len(position)) < probability
        self.position = torch.where(accept[:, None], position, self.position)
        self.gradient = torch.where(accept[:, None], gradient, self.gradient)
        self.value = torch.where(accept, value, self.value)
        return float(probability.mean())
