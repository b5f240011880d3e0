"""Records of past rows, in bounded memory."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from skvi.changepoint._changes import Change, Intervals, find_changes
from skvi.changepoint._filter import Block, Posterior
from skvi.changepoint.base import Hazard

__all__ = ["AROUND", "Records", "nearby_sums"]

# Rows on either side that count as the same position.
AROUND = 5


class Records:
    """Posteriors after each of the last rows, and smoothed probabilities of more rows.

    A backward pass starts from the last posterior: the segment before a changepoint is
    distributed as the posterior after the previous row, weighted by the hazard.
    """

    def __init__(self, hazard: Hazard, lag: int, n_kept: int) -> None:
        self.hazard, self.lag, self.n_kept = hazard, lag, n_kept
        self.n_rows = 0
        # The first row whose posterior is kept, and the blocks of these rows.
        self.first = 0
        self.blocks: deque[Block] = deque()
        # Other results of rows, several rows in each part.
        self.parts: deque[dict[str, np.ndarray]] = deque()
        self.n_in_parts = 0
        self.frozen: deque[float] = deque(maxlen=n_kept)
        self.n_frozen = 0
        # Changes in rows that will not be re-evaluated.
        self.settled: list[Change] = []
        # Results of backward passes from the last row.
        self._recent: np.ndarray | None = None
        self._changes: list[Change] | None = None

    def room(self) -> int:
        """Maximum number of rows of one part: then follows the next backward pass."""
        return 2 * self.lag + 1 - (self.n_rows - self.first)

    def wait(self, rows: dict[str, np.ndarray]) -> None:
        """Record the rows before the first that is scored."""
        self._add(rows)
        self.first = self.n_frozen = self.n_rows
        self.frozen.extend([0.0] * len(rows["log_density"]))

    def add(self, block: Block, rows: dict[str, np.ndarray]) -> None:
        """Record the posteriors of a block, and other results of its rows."""
        if not self.blocks or self.blocks[-1] is not block:
            self.blocks.append(block)
        self._add(rows)

    @property
    def is_full(self) -> bool:
        """Whether there are enough rows for a backward pass."""
        return self.n_rows - self.first > 2 * self.lag

    def _add(self, rows: dict[str, np.ndarray]) -> None:
        n = len(rows["log_density"])
        self.parts.append(rows)
        self.n_rows += n
        self.n_in_parts += n
        self._recent = self._changes = None
        while self.n_in_parts - len(self.parts[0]["log_density"]) >= self.n_kept:
            self.n_in_parts -= len(self.parts.popleft()["log_density"])

    def n_known(self) -> int:
        """Number of recorded rows."""
        return min(self.n_rows, self.n_kept)

    def freeze(self, starts: Sequence[int]) -> None:
        """Finalize the oldest rows, and forget their posteriors.

        Takes the first rows of the segments of the most probable segmentation. The
        changes of later rows may reach back by a quarter of the rows.
        """
        end = self.first + self.lag
        self.settled = [c for c in self.changes(starts) if c.row < end]
        self.frozen.extend(self.recent()[self.n_frozen - self.first : self.lag])
        self.n_frozen = end
        self.first = end - self.lag // 4
        self._recent = self._changes = None
        while self.blocks[0].end <= self.first:
            self.blocks.popleft()

    def changes(self, starts: Sequence[int]) -> list[Change]:
        """Changes at the starts of segments, and others that are probable."""
        if self._changes is None:
            self._changes = list(self.settled)
            if self.blocks:
                found = find_changes(
                    self.recent(),
                    [start for start in starts if start >= max(self.first, 1)],
                    self.first,
                    self._probability_of,
                )
                self._changes += [c for c in found if c.row >= self.n_frozen]
        return self._changes

    def column(self, name: str) -> np.ndarray:
        """One column of all recorded rows."""
        return np.concatenate([part[name] for part in self.parts])[-self.n_known() :]

    def posteriors(self) -> list[Posterior]:
        """Posteriors after each of the last rows, where kept."""
        found = []
        for block in self.blocks:
            for row in range(max(block.first, self.first), min(block.end, self.n_rows)):
                p = block.probability[row - block.first]
                left = p > 0
                found.append(Posterior(block.start[left], block.model[left], p[left]))
        return found

    def smoothed(self) -> np.ndarray:
        """Probability that a segment began, given all rows, for every kept row.

        For rows older than `lag` the last rows may be left out.
        """
        recent = self.recent()[self.n_frozen - self.first :]
        found = np.concatenate([np.array(self.frozen, float), recent])
        return found[-self.n_known() :]

    def recent(self) -> np.ndarray:
        """Smoothed probabilities of the rows whose posteriors are kept."""
        if self._recent is None:
            self._recent = self._backward()
        return self._recent

    def _probability_of(self, intervals: Intervals) -> np.ndarray:
        """Probabilities of at least one change in intervals, with both ends.

        There is none if the segment of the last row began before the first row: once
        the backward pass has come to the last row, it knows of all such segments.
        """
        asked: dict[int, dict[int, float]] = {}
        for low, high in intervals:
            asked.setdefault(high, {})[low] = 0.0
        self._backward(asked)
        return np.array([1 - asked[high][low] for low, high in intervals])

    def _backward(self, asked: dict[int, dict[int, float]] | None = None) -> np.ndarray:
        """Smoothed probabilities of the rows whose posteriors are kept.

        Fills in what is asked: last row -> first row -> probability of a segment that
        began before the first row and contains the last one.
        """
        if not self.blocks:
            return np.zeros(0)
        last, asked = self.blocks[-1], asked or {}
        # One entry in front for all earlier rows; future rows at the end.
        found = np.zeros(1 + last.end - self.first)
        now = last.probability[self.n_rows - 1 - last.first]
        np.add.at(found, self._places(last), now)
        for low in asked.get(self.n_rows - 1, {}):
            asked[self.n_rows - 1][low] = found[: 1 + low - self.first].sum()
        for block in reversed(self.blocks):
            self._look_back(block, found, asked)
        if self.first == 0:
            found[1] = 0.0  # it begins the series; nothing changed
        return found[1 : 1 + self.n_rows - self.first]

    def _places(self, block: Block) -> np.ndarray:
        """Positions of the first rows of a block's hypotheses in a backward pass."""
        return np.maximum(1 + block.start - self.first, 0)

    def _look_back(
        self, block: Block, found: np.ndarray, asked: dict[int, dict[int, float]]
    ) -> None:
        """Add what a block's rows contribute to the beginnings of earlier segments."""
        low, high = max(block.first, self.first), min(block.end, self.n_rows - 1)
        if low >= high:
            return
        rows = np.arange(low, high)
        length = np.maximum(rows[:, None] + 1 - block.start, 1)
        before = block.probability[low - block.first : high - block.first]
        hazard = self.hazard.probability(length.ravel()).reshape(length.shape)
        ends = before * hazard
        total = ends.sum(1, keepdims=True)
        ends = np.divide(ends, total, out=ends, where=total > 0)
        said = np.zeros(len(block.start))
        for row, share in zip(rows[::-1].tolist(), ends[::-1], strict=True):
            begins = found[2 + row - self.first]
            if row + 1 < block.end:
                begins += said[block.places[row + 1 - block.first]].sum()
            if begins > 0:
                said += begins * share
            for start in asked.get(row, {}):
                earlier = said[block.start < start].sum()
                asked[row][start] = found[: 1 + start - self.first].sum() + earlier
        np.add.at(found, self._places(block), said)


def nearby_sums(values: np.ndarray) -> np.ndarray:
    """Sums over the entries around every entry."""
    if not len(values):
        return values
    total = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(len(values))
    last = np.minimum(place + AROUND + 1, len(values))
    return total[last] - total[np.maximum(place - AROUND, 0)]
