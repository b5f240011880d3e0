"""Networks in the whitened coordinates of a normal."""

from typing import Any

import torch

from skvi.base import NormalForm
from skvi.targets._rows import shift
from skvi.targets._whitened import CACHE_ELEMENTS, WhitenedTarget
from skvi.utils._arrays import like_rows, weighted_sum

__all__ = ["WhitenedNetwork"]


class WhitenedNetwork(WhitenedTarget):
    """Log joint density of a network in whitened coordinates, by its own passes.

    For targets with `has_row_slopes`, dense features and log loss.
    """

    def __init__(self, target: Any, normal: NormalForm) -> None:
        super().__init__(target, normal)
        rows, self.prior, self.likelihood = target.rows, target.prior, target.likelihood
        predictor, n_rows = target.predictor, len(rows)
        per_draw = n_rows * predictor.row_width
        at_once = CACHE_ELEMENTS * torch.get_num_threads()
        self.n_draws = max(1, at_once // max(per_draw, 1))
        like = normal.mean.new_empty((), dtype=torch.float64)
        self.passes = predictor.passes(1, self.n_draws, n_rows, like)
        for block in self.passes.weights:  # of a block of draws that is not full
            block.zero_()
        X = torch.nn.functional.pad(rows.X.to(like.dtype), [0, 1], value=1.0)
        self.columns = X.T.contiguous()[None]

    def value_and_slope(
        self, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, (S,), and its gradient in the position, (S, P)."""
        theta = self.normal.transform(position)
        value = self.prior.log_prob(theta) + self.target.constant
        gradient = self.prior.log_prob_gradient(theta)
        y, weight = self.target.y, self.target.rows.weight
        for start in range(0, len(theta), self.n_draws):
            part = theta[start : start + self.n_draws]
            at = slice(start, start + len(part))
            for block, own in zip(
                self.passes.weights, self.passes.blocks(part), strict=True
            ):
                block[0, : len(part)] = own
            f = shift(self.passes.forward(self.columns)[0], self.target.rows)
            log_prob = self.likelihood.log_prob(f, y)[: len(part)]
            value[at] += weighted_sum(log_prob, weight)
            slope = self.likelihood.log_prob_slope(f, y)
            if weight is not None:
                slope = slope * like_rows(weight, slope[0])
            self.passes.slope[0] = slope.reshape(f.shape)
            self.passes.pull_back()
            gradients = self.passes.blocks(gradient[at])
            for own, found in zip(gradients, self.passes.gradients, strict=True):
                own += found[0, 0, : len(part)]
        return value, self._pull_back(gradient)

    def slope(self, position: torch.Tensor) -> torch.Tensor:
        """Gradient alone, (S, P)."""
        return self.value_and_slope(position)[1]
