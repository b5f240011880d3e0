r"""Changes whose place is uncertain: where each may be, and whether there is one.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

__all__ = ["Change", "Intervals", "find_changes"]

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
