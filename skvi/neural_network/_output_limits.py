"""What a module can return at all: outputs that an activation limits."""

from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["OutputLimits"]

# A linear layer of small features has small outputs, which grow with its weights.
GROWTH = 1.5


@dataclass(frozen=True, eq=False)
class OutputLimits:
    """Limits of every output, (n_outputs,), over parameters of several scales.

    `saturates` says of which outputs all are in [-1, 1], and do not grow with the
    scale.
    """

    low: np.ndarray
    high: np.ndarray
    saturates: np.ndarray

    @classmethod
    def of(cls, f: torch.Tensor) -> "OutputLimits":
        """Find limits of outputs, (n_scales, ..., n_outputs), by increasing scales."""
        f = f.detach().double().flatten(1, -2)
        size = f.abs().amax(1)
        saturates = (size[-1] <= 1) & (size[-1] <= GROWTH * size[-2])
        low, high = f.amin((0, 1)), f.amax((0, 1))
        return cls(low.numpy(), high.numpy(), saturates.numpy())

    def of_columns(self, columns: np.ndarray) -> "OutputLimits":
        """Limits of some outputs."""
        found = (part[columns] for part in (self.low, self.high, self.saturates))
        return OutputLimits(*found)

    def __str__(self) -> str:
        low, high = np.round([self.low.min(), self.high.max()], 2) + 0.0
        kind = "probabilities" if low >= 0 and high <= 1 else "limited"
        return f"{kind}, {low:.4g} to {high:.4g}"

    @property
    def one_sided(self) -> np.ndarray:
        """Whether an output never has one of the signs."""
        return (self.low >= 0) | (self.high <= 0)
