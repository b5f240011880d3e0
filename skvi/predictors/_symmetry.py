"""Finite groups that leave networks unchanged: permutations and signs of units."""

import math
from dataclasses import dataclass

import torch

from skvi.utils._device import CPU

__all__ = ["Symmetry"]


@dataclass(frozen=True, eq=False)
class Symmetry:
    """Permutations of the units of hidden layers, and flips of their signs.

    `units` has for each hidden layer the m parameters of each of its H units, (H, m):
    incoming weights, intercept and outgoing weights, in the same order for all units.
    `flips`: whether the sign of all parameters of a unit may change, as for odd
    activations.
    """

    units: tuple[torch.Tensor, ...]
    flips: bool = False

    @property
    def log_order(self) -> float:
        """Log of the number of elements of the group, |G|."""
        sizes = [len(layer) for layer in self.units]
        flip = math.log(2) if self.flips else 0.0
        return sum(math.lgamma(size + 1) + size * flip for size in sizes)

    def orbits(self, size: int) -> torch.Tensor:
        """Number the sets of parameters that the group maps to one another, (P,)."""
        labels = torch.arange(size, device=CPU)
        while True:
            before = labels.clone()
            for layer in self.units:
                labels[layer] = labels[layer].amin(0).expand(layer.shape)
            if torch.equal(labels, before):
                return torch.unique(labels, return_inverse=True)[1]
