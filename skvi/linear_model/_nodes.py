"""Posteriors of linear models that predictions integrate over without draws."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from skvi.base import NormalForm
from skvi.posteriors import MixtureOverScales, Posterior
from skvi.priors import BuiltPrior
from skvi.solvers._unknown_scale import implied_scale
from skvi.utils._device import Movable

__all__ = ["NormalNodes"]


@dataclass(frozen=True, eq=False)
class NormalNodes(Movable):
    """A mixture of K normals of the predictor's parameters, or a single one.

    `log_weights` has shape (K,), as has `log_scales`, the scales of the prior that the
    normals belong to, or None.
    """

    normals: tuple[NormalForm, ...]
    log_weights: torch.Tensor
    log_scales: torch.Tensor | None = None

    @staticmethod
    def of(posterior: Posterior, normal: NormalForm | None) -> "NormalNodes | None":
        """The nodes of a mixture over scales, or of a normal; None without either."""
        if isinstance(posterior, MixtureOverScales):
            normals = tuple(posterior.normals())
            return NormalNodes(normals, posterior.log_weights, posterior.log_scales)
        return None if normal is None else NormalNodes.single(normal)

    @staticmethod
    def single(normal: NormalForm) -> "NormalNodes":
        """Return the nodes of a single normal."""
        return NormalNodes((normal,), normal.mean.new_zeros(1))

    def moments(
        self, of_normal: Callable[[NormalForm], tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of the mixture, from means and deviations of a normal."""
        found = [of_normal(normal) for normal in self.normals]
        means, stds = (torch.stack(part) for part in zip(*found, strict=True))
        return self.average(means, stds.square())

    def scale(self, prior: BuiltPrior) -> float:
        """Scale of the prior: its geometric mean, or what a single normal implies."""
        if self.log_scales is None:
            return implied_scale(prior, self.normals[0])
        return math.exp(float(self.log_weights.exp() @ self.log_scales))

    def average(
        self, means: torch.Tensor, variances: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of a mixture, from those of its components, (K, ...)."""
        weights = self.log_weights.exp()
        mean = torch.tensordot(weights, means, 1)
        return mean, torch.tensordot(weights, variances + (means - mean).square(), 1)
