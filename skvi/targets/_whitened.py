"""Targets in the whitened coordinates of a normal, for moves of chains."""

from typing import Any

import torch

from skvi.base import NormalForm
from skvi.utils._tensors import Movable
from skvi.utils._validation import CACHE_ELEMENTS, row_chunks


class WhitenedTarget(Movable):
    """Log joint density, that of theta, at ``theta = mean + scale @ position``."""

    def __init__(self, target: Any, normal: NormalForm) -> None:
        self.target, self.normal = target, normal

    def value_and_slope(
        self, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, (S,), and its gradient in the position, (S, P)."""
        theta = self.normal.transform(position)
        value, gradient = self.target.log_joint_and_gradient(theta)
        return value, self._pull_back(gradient)

    def slope(self, position: torch.Tensor) -> torch.Tensor:
        """Gradient alone, (S, P)."""
        theta = self.normal.transform(position)
        return self._pull_back(self.target.log_joint_gradient(theta))

    def _pull_back(self, gradient: torch.Tensor) -> torch.Tensor:
        scale = self.normal.scale
        return gradient * scale if self.normal.is_diagonal else gradient @ scale


class WhitenedLinear(WhitenedTarget):
    """Whitened target of a linear model: its design is whitened only once.

    ``f = A mean + (A scale) position``. One output, dense features and log loss only.
    """

    def __init__(self, target: Any, normal: NormalForm) -> None:
        super().__init__(target, normal)
        self.prior, self.likelihood = target.prior, target.likelihood
        A = target.predictor.design(target.X)
        self.shift = A @ normal.mean
        if target.rows.offset is not None:
            self.shift = self.shift + target.rows.offset
        whitened = A * normal.scale if normal.is_diagonal else A @ normal.scale
        # One row for each coordinate, with which both kinds of products are faster.
        self.columns = whitened.T.contiguous()
        q = self.prior.as_normal()
        is_factorized = q is not None and q.is_diagonal
        self.quadratic = _Quadratic(q, normal) if is_factorized else None

    def value_and_slope(
        self, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, (S,), and its gradient in the position, (S, P)."""
        slope = self._prior_slope(position)
        if self.quadratic is not None:
            value = self.quadratic.value(position, slope)
        else:
            value = self.prior.log_prob(self.normal.transform(position))
        value = value + self.target.constant
        return value, self._add_rows(position, slope, value)

    def slope(self, position: torch.Tensor) -> torch.Tensor:
        """Gradient alone, (S, P)."""
        return self._add_rows(position, self._prior_slope(position), None)

    def _prior_slope(self, position: torch.Tensor) -> torch.Tensor:
        if self.quadratic is not None:
            return self.quadratic.slope(position)
        theta = self.normal.transform(position)
        return self._pull_back(self.prior.log_prob_gradient(theta))

    def _add_rows(
        self, position: torch.Tensor, slope: torch.Tensor, value: torch.Tensor | None
    ) -> torch.Tensor:
        """Add the contribution of the data, in place, and return the slope."""
        weight = self.target.rows.weight
        for rows in row_chunks(len(self.shift), len(position), CACHE_ELEMENTS):
            columns, y = self.columns[:, rows], self.target.y[rows]
            f = torch.addmm(self.shift[rows], position, columns)[..., None]
            if value is not None:
                own = None if weight is None else weight[rows]
                value += self.likelihood._total_log_prob(f, y, own)
            change = self.likelihood._log_prob_slope(f, y)
            slope += (change if weight is None else change * weight[rows]) @ columns.T
        return slope


class _Quadratic(Movable):
    """Log density of a factorized normal in whitened coordinates."""

    def __init__(self, density: NormalForm, normal: NormalForm) -> None:
        gap = normal.mean - density.mean
        precision = density.variance.reciprocal()
        self.at_zero = density.log_prob(normal.mean[None])
        if normal.is_diagonal:
            self.linear = -gap * precision * normal.scale
            self.curvature = -precision * normal.scale.square()
        else:
            self.linear = -(gap * precision) @ normal.scale
            self.curvature = -(normal.scale.T * precision) @ normal.scale

    def slope(self, position: torch.Tensor) -> torch.Tensor:
        if self.curvature.ndim == 1:
            return self.linear + self.curvature * position
        return torch.addmm(self.linear, position, self.curvature)

    def value(self, position: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        return self.at_zero + 0.5 * (position * (slope + self.linear)).sum(1)
