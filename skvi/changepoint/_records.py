"""What is kept of the rows that have passed, in bounded memory."""

from collections import deque

import numpy as np

from skvi.changepoint._filter import Posterior
from skvi.changepoint.base import Hazard

__all__ = ["Records"]


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

    def add(self, posterior: Posterior, row: dict) -> None:
        """Keep the posterior after a row, and what else is to be known of the row."""
        self.posteriors.append(posterior)
        self.rows.append(row)
        self.n_rows += 1
        if len(self.posteriors) > 2 * self.lag:
            self.frozen.extend(self._backward()[: self.lag])
            for _ in range(self.lag):
                self.posteriors.popleft()

    def column(self, name: str) -> np.ndarray:
        """One item of all rows that are kept."""
        return np.array([row[name] for row in self.rows])

    def smoothed(self) -> np.ndarray:
        """Probability that a segment began, given all rows, of the rows that are kept.

        Rows that are more than `lag` rows old may have been judged without the last
        ones.
        """
        found = np.concatenate([np.array(self.frozen, float), self._backward()])
        return found[-len(self.rows) :] if self.rows else found

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
