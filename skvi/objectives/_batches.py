"""Rows of the next gradient steps of several members, gathered at once."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from skvi.objectives._steps import MAX_ELEMENTS, MAX_STEPS, Rows

__all__ = ["Batch", "MemberBatches"]


class Batch(NamedTuple):
    """Rows of one step of M members; short batches are padded with weight 0.

    X is (M, n, d + 1) and ends in ones; weights, (M, 1, n), scale a minibatch up to all
    rows, and average over draws: `total`, (M,), is their sum over both.
    """

    X: torch.Tensor
    y: torch.Tensor
    weight: torch.Tensor
    total: torch.Tensor
    offset: torch.Tensor | None


class MemberBatches:
    """Buffers with the rows of some steps: `steps` of `n_rows` rows each."""

    def __init__(
        self,
        targets: Sequence[Any],
        batch_size: int | None,
        n_draws: int,
        like: torch.Tensor,
    ) -> None:
        self.targets, self.n_draws = targets, n_draws
        constants = [float(target.constant) for target in targets]
        self.constant = like.new_tensor(constants, dtype=torch.float64)
        largest = max(target.n_rows for target in targets)
        self.n_rows = largest if batch_size is None else batch_size
        first = targets[0]
        width = math.prod(first.X.shape[1:]) + 1
        self.max_steps, n_kept = MAX_STEPS, 1
        if batch_size is not None:
            n_kept = max(1, min(MAX_STEPS, MAX_ELEMENTS // (batch_size * width)))
            self.max_steps = n_kept
        shape = (n_kept, len(targets), self.n_rows)
        self._X = like.new_ones(*shape, width)
        self._y = like.new_zeros(*shape, *first.y.shape[1:])
        self._weight = like.new_zeros(shape)
        self._count = like.new_zeros(shape[:2])
        self._offset = None
        if first.rows.offset is not None:
            self._offset = like.new_zeros(shape)
        self._sizes: list[list[int]] = [[] for _ in targets]
        self.steps = [self._step(k) for k in range(n_kept)]
        if batch_size is None:
            for m in range(len(targets)):
                rows = torch.arange(targets[m].n_rows, device=like.device)
                self._fill(m, [rows])
            self.steps *= MAX_STEPS
        self._is_full = batch_size is None

    def _step(self, k: int) -> Batch:
        offset = None if self._offset is None else self._offset[k][:, None, :, None]
        y, weight = self._y[k][:, None], self._weight[k][:, None]
        return Batch(self._X[k], y, weight, self._count[k], offset)

    def fill(self, rows: Sequence[Sequence[Rows]]) -> None:
        """Gather the rows of the next steps, of each member."""
        if self._is_full:
            return
        for m, of_member in enumerate(rows):
            self._fill(m, [part for part in of_member if part is not None])

    def _fill(self, m: int, rows: list[torch.Tensor]) -> None:
        target, sizes = self.targets[m], [len(part) for part in rows]
        index = _padded(rows, sizes, self.n_rows)
        flat, shape, steps = index.view(-1), index.shape, slice(len(rows))
        part = target.rows.take(flat)
        self._X[steps, m, :, :-1] = part.X.view(*shape, -1)
        self._y[steps, m] = part.y.view(*shape, *part.y.shape[1:])
        if self._offset is not None:
            self._offset[steps, m] = part.offset.view(shape)
        if target.rows.weight is None and self._sizes[m] == sizes:
            return  # the weights are there
        self._sizes[m] = sizes
        counts = torch.tensor(sizes, dtype=torch.float64, device=index.device)[:, None]
        scale = target.n_rows / (counts * self.n_draws)
        inside = torch.arange(self.n_rows, device=index.device) < counts
        weight = torch.where(inside, scale, 0.0)
        if target.rows.weight is not None:
            weight = weight * part.weight.view(shape)
        self._weight[steps, m] = weight
        self._count[steps, m] = self.n_draws * weight.sum(1)


def _padded(rows: list[torch.Tensor], sizes: list[int], length: int) -> torch.Tensor:
    """Positions of rows, (T, length); short parts are padded with the first row."""
    if min(sizes) == length:
        return torch.stack(rows)
    index = pad_sequence(rows, batch_first=True)
    return torch.nn.functional.pad(index, (0, length - index.shape[1]))
