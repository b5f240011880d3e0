"""Records of past rows, in bounded memory."""

from collections import deque

import numpy as np

from skvi.changepoint._blocks import Block, Posterior
from skvi.changepoint.base import Hazard

__all__ = ["AROUND", "Records", "nearby_sums"]

# Rows on either side that count as the same position.
AROUND = 5


class Records:
    """Posteriors after each of the last rows, and smoothed probabilities of more rows.

    The smoothed probability that row s began a segment takes later rows into account: a
    backward pass starts from the posterior after the last row. The segment that ended
    before a changepoint is distributed as the posterior after the previous row,
    weighted by the hazard.

    Parameters
    ----------
    hazard : Hazard
    lag : int
        Minimum number of rows of a backward pass. Posteriors of twice as many are kept.
    n_kept : int
        Number of rows whose smoothed probability and prediction are kept.
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
        # Row that will not be re-evaluated -> expected changes around it.
        self.support: dict[int, float] = {}
        self._smoothed: np.ndarray | None = None

    def room(self) -> int:
        """Maximum number of rows of one part: then follows the next backward pass."""
        return 2 * self.lag + 1 - (self.n_rows - self.first)

    def wait(self, rows: dict[str, np.ndarray]) -> None:
        """Record the rows before the first that is scored."""
        self._add(rows)
        self.first = self.n_rows
        self.frozen.extend([0.0] * len(rows["log_density"]))

    def add(self, block: Block, rows: dict[str, np.ndarray]) -> None:
        """Record the posteriors of a block, and other results of its rows."""
        if not self.blocks or self.blocks[-1] is not block:
            self.blocks.append(block)
        self._add(rows)
        if self.n_rows - self.first > 2 * self.lag:
            self._freeze()

    def _add(self, rows: dict[str, np.ndarray]) -> None:
        n = len(rows["log_density"])
        self.parts.append(rows)
        self.n_rows += n
        self.n_in_parts += n
        self._smoothed = None
        while self.n_in_parts - len(self.parts[0]["log_density"]) >= self.n_kept:
            self.n_in_parts -= len(self.parts.popleft()["log_density"])

    def n_known(self) -> int:
        """Number of recorded rows."""
        return min(self.n_rows, self.n_kept)

    def _freeze(self) -> None:
        """Finalize the oldest rows, and forget their posteriors."""
        before = list(self.frozen)[-AROUND:]
        first = self.first - len(before)
        found = np.concatenate([before, self._backward()])
        around = nearby_sums(found)
        for i in range(max(len(before) - AROUND, 0), len(before) + self.lag):
            self.support[first + i] = float(around[i])
        self.frozen.extend(found[len(before) : len(before) + self.lag])
        self.first += self.lag
        while self.blocks[0].end <= self.first:
            self.blocks.popleft()

    def forget(self, kept: set[int]) -> None:
        """Forget the support of rows that begin no possible segment."""
        self.support = {s: x for s, x in self.support.items() if s in kept}

    def supports(self, rows: np.ndarray) -> np.ndarray:
        """Expected number of changes in the rows around each given row."""
        found = self.smoothed()
        first, around = self.n_rows - len(found), nearby_sums(found)
        return np.array(
            [
                around[row - first] if row >= first else self.support.get(row, 1.0)
                for row in rows.tolist()
            ]
        )

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

        Rows that are more than `lag` rows old may have been judged without the last
        ones.
        """
        if self._smoothed is None:
            found = np.concatenate([np.array(self.frozen, float), self._backward()])
            self._smoothed = found[-self.n_known() :]
        return self._smoothed

    def _backward(self) -> np.ndarray:
        """Smoothed probabilities of the rows whose posteriors are kept."""
        if not self.blocks:
            return np.zeros(0)
        last = self.blocks[-1]
        # One entry in front for all earlier rows; future rows at the end.
        found = np.zeros(1 + last.end - self.first)
        now = last.probability[self.n_rows - 1 - last.first]
        np.add.at(found, self._places(last), now)
        for block in reversed(self.blocks):
            self._look_back(block, found)
        if self.first == 0:
            found[1] = 0.0  # it begins the series; nothing changed
        return found[1 : 1 + self.n_rows - self.first]

    def _places(self, block: Block) -> np.ndarray:
        """Positions of the first rows of a block's hypotheses in a backward pass."""
        return np.maximum(1 + block.start - self.first, 0)

    def _look_back(self, block: Block, found: np.ndarray) -> None:
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
        np.add.at(found, self._places(block), said)


def nearby_sums(values: np.ndarray) -> np.ndarray:
    """Sums over the entries around every entry."""
    if not len(values):
        return values
    total = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(len(values))
    last = np.minimum(place + AROUND + 1, len(values))
    return total[last] - total[np.maximum(place - AROUND, 0)]
