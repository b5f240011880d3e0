"""Positions of hypotheses in the arrays, for a block of rows at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Block", "Posterior"]


@dataclass(frozen=True)
class Posterior:
    """Hypotheses after a row: first row of the segment, model, probability; (K,)."""

    start: np.ndarray
    model: np.ndarray
    probability: np.ndarray


@dataclass(frozen=True)
class Block:
    """Positions of hypotheses for a block of rows, one group of models after another.

    In a group, those older than the block come first, then those that begin in its
    first row, and so on: at `places`, (n_rows, n_models). `probability` is (n_rows, K).
    """

    first: int
    start: np.ndarray
    model: np.ndarray
    places: np.ndarray
    groups: Sequence[tuple[int, Sequence[int]]]
    probability: np.ndarray

    @classmethod
    def empty(cls, groups: Sequence[Sequence[int]]) -> "Block":
        """Return a block without rows."""
        nothing = np.zeros(0, int)
        places = np.zeros((0, sum(len(models) for models in groups)), int)
        sizes = [(0, models) for models in groups]
        return cls(0, nothing, nothing, places, sizes, np.zeros((0, 0)))

    @property
    def end(self) -> int:
        """The row after the last one."""
        return self.first + len(self.places)

    def slices(self) -> list[slice]:
        """Positions of each group's hypotheses."""
        found, place = [], 0
        for n_older, models in self.groups:
            end = place + n_older + len(self.places) * len(models)
            found.append(slice(place, end))
            place = end
        return found

    def next(self, first: int, n_rows: int, left: np.ndarray) -> "Block":
        """Return the block from a later row on, with the hypotheses left, (K,)."""
        start, model, places, groups = [], [], [], []
        end = 0
        for part, (_, models) in zip(self.slices(), self.groups, strict=True):
            older = left[part]
            start += [
                self.start[part][older],
                first + np.arange(n_rows).repeat(len(models)),
            ]
            model += [self.model[part][older], np.tile(models, n_rows)]
            n = len(start[-2])
            places.append(end + n + np.arange(n_rows * len(models)))
            groups.append((n, models))
            end += n + n_rows * len(models)
        by_number = np.argsort(np.concatenate([models for _, models in groups]))
        by_row = [part.reshape(n_rows, -1) for part in places]
        return Block(
            first,
            np.concatenate(start),
            np.concatenate(model),
            np.concatenate(by_row, axis=1)[:, by_number],
            groups,
            np.zeros((n_rows, end)),
        )
