"""Mixtures of normals over the precisions of a linear regression."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.utils import gen_batches

from skvi._likelihood_mixture import LikelihoodMixture, OfRows
from skvi.utils._arrays import as_tensor
from skvi.utils._device import Movable

__all__ = ["Directions", "PrecisionMixture"]

# Numbers of components and rows at once.
CHUNK_ELEMENTS = 2**20


@dataclass(frozen=True, eq=False)
class Directions(Movable):
    """Linear combinations of coefficients and intercept, as the data see them.

    `along`, (n, k), are directions that the data inform, and that of the intercept;
    `outside`, (n,), squared lengths in the others; `shift`, (n,), is added to values.
    """

    along: torch.Tensor
    outside: torch.Tensor
    shift: torch.Tensor


@dataclass(frozen=True, eq=False)
class PrecisionMixture(LikelihoodMixture):
    """Linear combinations, or targets, whose distribution is normal at each of m nodes.

    `means` and `variances` have shape (m, k); `outside`, the variance in directions
    without data, and `noise` have shape (m,).
    """

    directions: Directions
    means: torch.Tensor
    variances: torch.Tensor
    outside: torch.Tensor
    noise: torch.Tensor

    def repeat(self, row: int, n_rows: int) -> "PrecisionMixture":
        """One of the linear combinations, `n_rows` times."""
        given, index = self.directions, [row] * n_rows
        parts = (x[index] for x in (given.along, given.outside, given.shift))
        return replace(self, directions=Directions(*parts))

    def normals(self, rows: slice = slice(None)) -> tuple[torch.Tensor, torch.Tensor]:
        """Means and standard deviations of the components at some rows, (m, n) each."""
        given = self.directions
        along, outside = given.along[rows], given.outside[rows]
        variance = self.variances @ along.square().T
        variance += self.noise[:, None] + self.outside[:, None] * outside
        return self.means @ along.T + given.shift[rows], variance.sqrt()

    def _by_rows(self, function: OfRows, *columns: np.ndarray) -> np.ndarray:
        tensors = [as_tensor(column) for column in columns]
        size = max(1, CHUNK_ELEMENTS // len(self.means))
        parts: list[Any] = []
        for rows in gen_batches(len(self.directions.along), size):
            mean, std = self.normals(rows)
            some = (tensor[rows] for tensor in tensors)
            bound = self.likelihood.at_scale(std)
            parts.append(function(bound, self.log_weights, mean[..., None], *some))
        return torch.cat(parts).numpy()
