"""What is kept of the rows that have passed, in bounded memory."""

from collections import deque

import numpy as np

from skvi.changepoint._filter import Posterior
from skvi.changepoint.base import Hazard

__all__ = ["Records", "nearby_sums"]

# Rows to either side that count as the same place.
AROUND = 5


class Records:
    """Posteriors after each of the last rows, and smoothed probabilities of more rows.

    Whether row s began a segment is answered by what came after: a backward pass
    starts from the posterior after the last row. Where a segment begins, what ended
    before it is distributed as the posterior after the row before, by the hazard.

    Parameters
    ----------
    hazard : Hazard
    lag : int
        Backward passes go over so many rows at least. Posteriors of twice as many
        are kept.
    n_kept : int
        Number of rows of which the smoothed probability and the prediction are kept.
    """

    def __init__(self, hazard: Hazard, lag: int, n_kept: int) -> None:
        self.hazard, self.lag, self.n_kept = hazard, lag, n_kept
        self.n_rows = 0
        self.posteriors: deque[Posterior] = deque()
        self.rows: deque[dict] = deque(maxlen=n_kept)
        self.frozen: deque[float] = deque(maxlen=n_kept)
        # Row that will not be judged anew -> expected changes around it.
        self.support: dict[int, float] = {}
        self._smoothed: np.ndarray | None = None

    def add(self, posterior: Posterior, row: dict) -> None:
        """Keep the posterior after a row, and what else is to be known of the row."""
        self.posteriors.append(posterior)
        self.rows.append(row)
        self.n_rows += 1
        self._smoothed = None
        if len(self.posteriors) > 2 * self.lag:
            self._freeze()

    def _freeze(self) -> None:
        """Judge the oldest rows for good, and forget their posteriors."""
        before = list(self.frozen)[-AROUND:]
        first = self.n_rows - len(self.posteriors) - len(before)
        found = np.concatenate([before, self._backward()])
        around = nearby_sums(found)
        for i in range(max(len(before) - AROUND, 0), len(before) + self.lag):
            self.support[first + i] = float(around[i])
        self.frozen.extend(found[len(before) : len(before) + self.lag])
        for _ in range(self.lag):
            self.posteriors.popleft()

    def forget(self, kept: set[int]) -> None:
        """Forget the support of rows that begin no possible segment."""
        self.support = {s: x for s, x in self.support.items() if s in kept}

    def supports(self, rows: np.ndarray) -> np.ndarray:
        """Expected number of changes in the rows around each of some rows."""
        found = self.smoothed()
        first, around = self.n_rows - len(found), nearby_sums(found)
        return np.array(
            [
                around[row - first] if row >= first else self.support.get(row, 1.0)
                for row in rows.tolist()
            ]
        )

    def column(self, name: str) -> np.ndarray:
        """One item of all rows that are kept."""
        return np.array([row[name] for row in self.rows])

    def smoothed(self) -> np.ndarray:
        """Probability that a segment began, given all rows, of the rows that are kept.

        Rows that are more than `lag` rows old may have been judged without the last
        ones.
        """
        if self._smoothed is None:
            found = np.concatenate([np.array(self.frozen, float), self._backward()])
            self._smoothed = found[-len(self.rows) :] if self.rows else found
        return self._smoothed

    def _backward(self) -> np.ndarray:
        """Of the rows whose posteriors are kept."""
        if not self.posteriors:
            return np.zeros(0)
        first = self.n_rows - len(self.posteriors)
        found = np.zeros(self.n_rows)
        add_at(found, self.posteriors[-1].start, self.posteriors[-1].probability)
        for s in range(self.n_rows - 1, first, -1):
            if found[s] > 0:
                before = self.posteriors[s - 1 - first]
                ends = before.probability * self.hazard.probability(s - before.start)
                add_at(found, before.start, found[s] * ends / ends.sum())
        return found[first:]


def add_at(array: np.ndarray, index: np.ndarray, values: np.ndarray) -> None:
    """Add to an array, as often as an index occurs."""
    np.add.at(array, index, values)


def nearby_sums(values: np.ndarray) -> np.ndarray:
    """Sums over the entries around every entry."""
    if not len(values):
        return values
    total = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(len(values))
    last = np.minimum(place + AROUND + 1, len(values))
    return total[last] - total[np.maximum(place - AROUND, 0)]
