"""Log likelihoods of networks and their gradients, by the networks' own passes."""

from typing import Any

import torch

from skvi.base._rows import Rows
from skvi.targets._rows import shift
from skvi.utils._arrays import like_rows, weighted_sum
from skvi.utils._device import Movable

__all__ = ["NetworkSlopes"]


class NetworkSlopes(Movable):
    """The log likelihood and its gradient, for up to S draws and always n rows.

    For targets with `has_own_passes`. All arithmetic of rows is in `dtype`.
    """

    def __init__(
        self, target: Any, n_draws: int, n_rows: int, dtype: torch.dtype
    ) -> None:
        self.target, self.likelihood = target, target.likelihood
        self._like = target.y.new_empty((), dtype=dtype)
        self._passes = target.predictor.passes(1, n_draws, n_rows, self._like)
        for block in self._passes.weights:  # of draws that are fewer
            block.zero_()

    def __call__(
        self, theta: torch.Tensor, rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Value, (S,), and gradient, (S, P), estimated from n rows."""
        part = self.target.rows.take(rows)
        share = len(self.target.rows) / len(part)
        value = torch.full_like(theta[:, 0], self.target.constant)
        gradient = torch.zeros_like(theta)
        self.add(theta, part, self.columns(part), (value, gradient), share)
        return value, gradient

    def columns(self, part: Rows) -> torch.Tensor:
        """Features as the passes take them."""
        X = torch.nn.functional.pad(part.X.to(self._like.dtype), [0, 1], value=1.0)
        return X.T.contiguous()[None]

    def add(
        self,
        theta: torch.Tensor,
        part: Rows,
        columns: torch.Tensor,
        sums: tuple[torch.Tensor, torch.Tensor],
        share: float = 1.0,
    ) -> None:
        """Add a multiple of the rows' part to values and gradients, in place."""
        passes, n_draws = self._passes, len(theta)
        for block, own in zip(passes.weights, passes.blocks(theta), strict=True):
            block[0, :n_draws] = own
        f = shift(passes.forward(columns)[0], part)
        log_prob = self.likelihood.log_prob(f, part.y)[:n_draws]
        sums[0].add_(weighted_sum(log_prob, part.weight), alpha=share)
        slope = self.likelihood._log_prob_slope(f, part.y)
        if part.weight is not None:
            slope = slope * like_rows(part.weight, slope[0])
        passes.slope[0] = slope.reshape(f.shape)
        passes.pull_back()
        gradients = passes.blocks(sums[1])
        for own, found in zip(gradients, passes.gradients, strict=True):
            own.add_(found[0, 0, :n_draws], alpha=share)
