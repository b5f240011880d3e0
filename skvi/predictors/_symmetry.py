"""Finite groups that leave networks unchanged: permutations and signs of units."""

import math
from dataclasses import dataclass

import torch

from skvi.utils._device import CPU

__all__ = ["Symmetry"]


@dataclass(frozen=True, eq=False)
class Symmetry:
    """Permutations of the units of hidden layers, and flips of their signs.

    Parameters
    ----------
    units : tuple of Tensor of int of shape (H, m)
        For each hidden layer the m parameters of each of its H units: incoming weights,
        intercept and outgoing weights, in the same order for all units.
    flips : bool
        Whether the sign of all parameters of a unit may change, as for odd activations.

    Examples
    --------
    >>> import torch
    >>> from skvi.predictors import MLPPredictor
    >>> predictor = MLPPredictor(1, 1, (2,), "tanh")
    >>> symmetry = predictor.symmetry
    >>> round(symmetry.log_order, 4)  # 2! permutations, times 2 ** 2 signs
    2.0794
    >>> symmetry.orbits(predictor.layout.size)
    tensor([0, 0, 1, 1, 2, 2, 3])
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
        """Number the sets of parameters that the group maps to one another.

        Parameters
        ----------
        size : int
            P.

        Returns
        -------
        Tensor of int of shape (P,)
            From 0; equal for parameters of one set.
        """
        labels = torch.arange(size, device=CPU)
        while True:
            before = labels.clone()
            for layer in self.units:
                labels[layer] = labels[layer].amin(0).expand(layer.shape)
            if torch.equal(labels, before):
                return torch.unique(labels, return_inverse=True)[1]
