"""Networks in the whitened coordinates of a normal."""

from typing import Any

import torch

from skvi.base import NormalForm
from skvi.targets._network_slopes import NetworkSlopes
from skvi.targets._whitened import WhitenedTarget
from skvi.utils._arrays import CACHE_ELEMENTS

__all__ = ["WhitenedNetwork"]


class WhitenedNetwork(WhitenedTarget):
    """Log joint density of a network in whitened coordinates, by its own passes."""

    def __init__(self, target: Any, normal: NormalForm) -> None:
        super().__init__(target, normal)
        self.prior, n_rows = target.prior, len(target.rows)
        per_draw = n_rows * target.predictor.row_width
        at_once = CACHE_ELEMENTS * torch.get_num_threads()
        self.n_draws = max(1, at_once // max(per_draw, 1))
        self.slopes = NetworkSlopes(target, self.n_draws, n_rows, torch.float64)
        self.columns = self.slopes.columns(target.rows)

    def value_and_slope(
        self, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, (S,), and its gradient in the position, (S, P)."""
        theta = self.normal.transform(position)
        value = self.prior.log_prob(theta) + self.target.constant
        gradient = self.prior.log_prob_gradient(theta)
        parts = (x.split(self.n_draws) for x in (theta, value, gradient))
        for own, *sums in zip(*parts, strict=True):
            self.slopes.add(own, self.target.rows, self.columns, sums)
        return value, self._pull_back(gradient)

    def slope(self, position: torch.Tensor) -> torch.Tensor:
        """Gradient alone, (S, P)."""
        return self.value_and_slope(position)[1]
