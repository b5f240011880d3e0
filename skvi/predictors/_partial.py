"""Predictors with some blocks as point parameters."""

from collections.abc import Iterable
from copy import copy
from typing import Self

import torch

from skvi.base import Layout, NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.predictors.base import Predictor

__all__ = ["PartialPredictor"]

# Seed for the start of blocks that a predictor draws at random.
SEED = 0


class PartialPredictor(Predictor):
    """A predictor with the blocks `names` as point parameters, not part of theta.

    They are learned by type-II maximum likelihood, like noise and prior scales: for
    example a normalization layer, or an embedding whose uncertainty is of no interest.
    They start at the mean of `Predictor.initial_normal`, if there is one, else at 0.
    """

    def __init__(self, predictor: Predictor, names: Iterable[str]) -> None:
        names, full = list(names), predictor.layout
        if not set(names) < set(full):
            raise IncompatibleComponentsError(
                f"deterministic={names} must name some, but not all blocks of the "
                f"predictor, which has {list(full)}."
            )
        self.predictor, self.n_outputs = predictor, predictor.n_outputs
        self.layout = full.without(*names)
        self.point_layout = full.only(*names)
        self._random = full.positions(self.layout)
        self._fixed = full.positions(names)
        self._point = self.initial_point()

    @property
    def row_width(self) -> int:
        """That of the predictor."""
        return self.predictor.row_width

    def initial_point(self) -> torch.Tensor:
        """Start of the point parameters; see `Predictor.initial_point`."""
        if not len(self.point_layout):
            return super().initial_point()
        start = self.predictor.initial_normal(torch.Generator().manual_seed(SEED))
        if start is None:
            return super().initial_point()
        return start.mean[self._fixed.to(start.mean.device)].double()

    def initial_normal(self, generator: torch.Generator) -> NormalForm | None:
        """Start of theta; see `Predictor.initial_normal`."""
        start = self.predictor.initial_normal(generator)
        if start is None:
            return None
        return NormalForm(start.mean[self._random], start.scale[self._random])

    def bind(self, point: torch.Tensor) -> Self:
        """Fix the points; see `Predictor.bind`."""
        if not len(self.point_layout):  # they are fixed already
            return self
        bound = copy(self)
        bound._point, bound.point_layout = point, Layout({})
        return bound

    def forward(self, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """Evaluate f, (S, n, K), also differentiable in the points."""
        full = theta.new_empty(len(theta), self.predictor.layout.size)
        full = full.index_copy(1, self._random, theta)
        point = self._point.to(theta.dtype).expand(len(theta), -1)
        return self.predictor.forward(full.index_copy(1, self._fixed, point), X)
