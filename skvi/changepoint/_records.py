r"""Records of past rows, in bounded memory, and the changes that they show.

A change is an interval of rows with a change in it, between rows without any: half as
many on either side. Around an anchor, such as a changepoint of the most probable
segmentation, the shortest interval of each expected number of changes is a candidate
I. For the numbers N of changes in it and M beside it,

.. math:: P(N \ge 1, M = 0) \ge P(N \ge 1) - E[M],

both known exactly from the look back. The region of a change is the candidate with the
largest bound; its place is the shortest one with 90 % of the region's probability.
Without the rows beside it, a series that drifts and very many rows with improbable
changes would be full of changes that may be anywhere.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

# Rows on either side that count as the same position.
AROUND = 5
# Candidates of an anchor, and the fraction of the probability in a reported interval.
N_CANDIDATES = 40
COVERAGE = 0.9
# Least probability of changes that are not in the most probable segmentation.
LEAST_PROBABILITY = 0.5

Intervals = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Change:
    """A change in `row`, or elsewhere from `low` to `high`, an interval of 90 %.

    `isolated` is a lower bound of the probability of a change in the region and none
    beside it; `is_best`, whether the most probable segmentation has the row.
    """

    row: int
    low: int
    high: int
    probability: float
    isolated: float
    is_best: bool


class Unchanging:
    """What copies of a stream share."""

    def __deepcopy__(self, memo: dict) -> Self:
        return self


@dataclass(frozen=True)
class RowResult(Unchanging):
    """Results of a row, in the units of the models; the `value` not yet scored.

    Arrays are (n_series,), `models`, the probabilities of the models, (n_models,).
    """

    value: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    scored: np.ndarray
    log_density: float
    models: np.ndarray
    run_length: float


@dataclass(frozen=True)
class Posterior(Unchanging):
    """Hypotheses after a row: first row of the segment, and probability; (K,).

    `ended`, of the hypotheses before the row, is the distribution of the segment that
    ended there, if one did.
    """

    start: np.ndarray
    probability: np.ndarray
    ended: np.ndarray


class Records:
    """Posteriors after each of the last rows, and smoothed probabilities of more rows.

    A backward pass starts from the last posterior: the segment before a changepoint is
    distributed as the posterior after the previous row, weighted by the hazard.
    """

    def __init__(self, lag: int, n_kept: int) -> None:
        self.lag, self.n_rows = lag, 0
        self.rows: deque[RowResult] = deque(maxlen=n_kept)
        # The first row whose posterior is kept, and these posteriors.
        self.first = 0
        self.posteriors: deque[Posterior] = deque()
        self.frozen: deque[float] = deque(maxlen=n_kept)
        # Changes in rows that will not be re-evaluated.
        self.settled: list[Change] = []
        self.n_frozen = 0
        # Results of backward passes from the last row.
        self._recent: np.ndarray | None = None
        self._changes: list[Change] | None = None

    def add(self, row: RowResult, posterior: Posterior | None) -> None:
        """Record a row; those before the first that is scored have no posterior."""
        self.rows.append(row)
        self.n_rows += 1
        self._recent = self._changes = None
        if posterior is not None:
            self.posteriors.append(posterior)
        else:
            self.first = self.n_frozen = self.n_rows
            self.frozen.append(0.0)

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
        while len(self.posteriors) > self.n_rows - self.first:
            self.posteriors.popleft()

    def changes(self, starts: Sequence[int]) -> list[Change]:
        """Changes at the starts of segments, and others that are probable."""
        if self._changes is None:
            self._changes = list(self.settled)
            if self.posteriors:
                found = find_changes(
                    self.recent(),
                    [start for start in starts if start >= max(self.first, 1)],
                    self.first,
                    self._probability_of,
                )
                self._changes += [c for c in found if c.row >= self.n_frozen]
        return self._changes

    def column(self, name: str) -> np.ndarray:
        """One result of all recorded rows."""
        return np.array([getattr(row, name) for row in self.rows])

    def smoothed(self) -> np.ndarray:
        """Probability that a segment began, given all rows, for every kept row.

        For rows older than `lag` the last rows may be left out.
        """
        recent = self.recent()[self.n_frozen - self.first :]
        found = np.concatenate([np.array(self.frozen, float), recent])
        return found[-len(self.rows) :]

    def recent(self) -> np.ndarray:
        """Smoothed probabilities of the rows whose posteriors are kept."""
        if self._recent is None:
            self._recent = self._backward({})
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

    def _backward(self, asked: dict[int, dict[int, float]]) -> np.ndarray:
        """Smoothed probabilities of the rows whose posteriors are kept.

        Fills in what is asked: last row -> first row -> probability of a segment that
        began before the first row and contains the last one.
        """
        # One entry in front for all earlier rows.
        posteriors = list(self.posteriors)
        shift, found = 1 - self.first, np.zeros(1 + len(posteriors))
        begins, ended = 1.0, None
        for row in range(self.n_rows - 1, self.first - 1, -1):
            after = posteriors[row - self.first]
            share = after.probability if ended is None else ended
            if begins > 0 and len(share):
                np.add.at(found, np.maximum(after.start + shift, 0), begins * share)
            for low in asked.get(row, ()):
                asked[row][low] = found[: low + shift].sum()
            begins, ended = found[row + shift], after.ended
        if self.first == 0 and len(found) > 1:
            found[1] = 0.0  # it begins the series; nothing changed
        return found[1:]


def nearby_sums(values: np.ndarray) -> np.ndarray:
    """Sums over the entries around every entry."""
    if not len(values):
        return values
    total = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(len(values))
    last = np.minimum(place + AROUND + 1, len(values))
    return total[last] - total[np.maximum(place - AROUND, 0)]


def find_changes(
    mass: np.ndarray,
    starts: Sequence[int],
    first: int,
    probability_of: Callable[[Intervals], np.ndarray],
) -> list[Change]:
    """Changes at the starts of the most probable segmentation, and other probable ones.

    `mass`, (n,), is the probability of a change in every row from `first` on;
    `probability_of` gives that of any change in intervals.
    """
    places = [start - first for start in starts]
    middles = [(a + b) // 2 for a, b in pairwise(places)]
    windows = zip(
        [0, *(middle + 1 for middle in middles)],
        places,
        [*middles, len(mass) - 1],
        strict=False,
    )
    found = locate(mass, list(windows), first, probability_of, is_best=True)
    # What is left between them, where places are too uncertain for a single path.
    ends = [0, *(change.high + 1 - first for change in found)]
    nexts = [*(change.low - first for change in found), len(mass)]
    gaps = [
        (end, end + center(mass[end:following]), following - 1)
        for end, following in zip(ends, nexts, strict=True)
        if mass[end:following].sum() >= LEAST_PROBABILITY
    ]
    others = locate(mass, gaps, first, probability_of, is_best=False)
    found += [change for change in others if change.isolated >= LEAST_PROBABILITY]
    return sorted(found, key=lambda change: change.row)


def locate(
    mass: np.ndarray,
    windows: Sequence[tuple[int, int, int]],
    first: int,
    probability_of: Callable[[Intervals], np.ndarray],
    is_best: bool,
) -> list[Change]:
    """Change of each window: (first row, anchor, last row)."""
    nested = [candidates(mass, *window) for window in windows]
    if not nested:
        return []
    ends = np.concatenate(nested)
    probability = probability_of([(a + first, b + first) for a, b in ends.tolist()])
    total = np.concatenate([[0.0], np.cumsum(mass)])
    isolated = probability - beside(total, ends)
    found, end = [], 0
    for (_, anchor, _), pairs in zip(windows, nested, strict=True):
        part, end = slice(end, end + len(pairs)), end + len(pairs)
        p, best = probability[part], int(isolated[part].argmax())
        place = int((p >= COVERAGE * p[best]).argmax())
        low, high = (pairs[place] + first).tolist()
        bounds = float(p[best]), float(isolated[part][best])
        found.append(Change(anchor + first, low, high, *bounds, is_best))
    return found


def candidates(mass: np.ndarray, low: int, anchor: int, high: int) -> np.ndarray:
    """Shortest intervals around an anchor with given sums of the mass, (n, 2).

    From the shortest to the longest; the ends are included.
    """
    total = np.concatenate([[0.0], np.cumsum(mass[low : high + 1])])
    starts = np.arange(anchor - low + 1)
    found = [(anchor, anchor)]
    for fraction in np.linspace(0, 1, N_CANDIDATES + 1)[1:]:
        start, end = shortest(total, starts, anchor - low + 1, fraction)
        found.append((low + start, low + end - 1))
    pairs = np.array(sorted(set(found), key=lambda pair: (pair[1] - pair[0], pair)))
    return pairs.reshape(-1, 2)


def shortest(
    total: np.ndarray, starts: np.ndarray, least: int, fraction: float
) -> tuple[int, int]:
    """Start and end of the shortest interval with a fraction of all mass.

    Takes cumulative sums of the mass, possible starts, and the least end.
    """
    needed = total[starts] + fraction * total[-1] * (1 - 1e-12)
    ends = np.maximum(np.searchsorted(total, needed), least)
    length = np.where(ends < len(total), ends - starts, 2 * len(total))
    best = int(length.argmin())
    return int(starts[best]), int(ends[best])


def center(mass: np.ndarray) -> int:
    """Median of the densest half of the mass."""
    total = np.concatenate([[0.0], np.cumsum(mass)])
    start, end = shortest(total, np.arange(len(mass)), 1, 0.5)
    middle = (total[start] + total[end]) / 2
    return min(int(np.searchsorted(total, middle, side="right")) - 1, end - 1)


def beside(total: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Mass in half as many rows on either side of intervals; infinite beyond the ends.

    Takes cumulative sums of the mass. Single rows have none beside them.
    """
    low, high = pairs[:, 0], pairs[:, 1] + 1
    width = (high - low - 1) // 2
    exists = (low >= width) & (high + width < len(total))
    left, right = np.maximum(low - width, 0), np.minimum(high + width, len(total) - 1)
    found = total[right] - total[high] + total[low] - total[left]
    return np.where(exists, found, np.inf)
