"""The recursion: probabilities of all hypotheses about the current segment, row by row.

A hypothesis states when the current segment began, and which model its rows follow. Its
weight is the posterior probability, and its path the joint probability of the best
segmentation that ends in it.

Hypotheses are stored in blocks of rows: a block begins with the remaining hypotheses,
and has slots for all that begin in it. Within a block nothing moves, so that many rows
are computed in one operation; the blocks do not depend on how the rows are divided into
calls.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skvi.changepoint._groups import Group, Reading, Window
from skvi.changepoint.base import Hazard

__all__ = ["Block", "Filter", "Passed", "Posterior"]


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


@dataclass(frozen=True)
class Passed:
    """Results for R processed rows.

    Probabilities of hypotheses before and after each row, (R, K), and increments of the
    log evidence, (R,), in nats.
    """

    predictive: np.ndarray
    posterior: np.ndarray
    log_total: np.ndarray


class Filter:
    """All hypotheses of a detector; those below `log_least` are dropped.

    Rows before `first` are not scored, and only serve as the past.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        hazard: Hazard,
        model_prior: np.ndarray,
        max_hypotheses: int | None,
        log_least: float,
        first: int,
    ) -> None:
        self.groups, self.hazard, self.first = groups, hazard, first
        self.model_prior = model_prior
        with np.errstate(divide="ignore"):
            self.log_prior = np.log(model_prior)
        self.max_hypotheses = math.inf if max_hypotheses is None else max_hypotheses
        self.log_least = log_least
        self._prunes = log_least > -math.inf or max_hypotheses is not None
        self.n_rows = min(group.rows_at_once for group in groups)
        self.fresh = [group.fresh(self.n_rows) for group in groups]
        self.states = [{n: a[:0] for n, a in state.items()} for state in self.fresh]
        # Log weights and paths, relative to each other, and the log of the sum of the
        # former.
        self.weights = np.zeros((2, 0))
        self.log_total = 0.0
        self.n_alive = 0
        self.before = np.zeros(0)
        self.block = Block.empty([group.models for group in groups])
        self.t = 0
        self.settled_evidence = 0.0
        self.dropped_mass = 0.0
        # First row of a segment -> first row and model of the best one before it.
        self.parents: dict[int, tuple[int, int]] = {}

    # --- what is known ----------------------------------------------------------------

    @property
    def log_evidence(self) -> float:
        """Log density of all rows so far."""
        return self.settled_evidence + self.log_total

    def current(self) -> np.ndarray:
        """Probabilities after the last row, (K,)."""
        passed = self.t - self.block.first
        return self.block.probability[passed - 1] if passed else self.before

    def posterior(self) -> Posterior:
        """Remaining hypotheses after the last row."""
        if not self.n_alive:
            return Posterior(self.block.start, self.block.model, np.zeros(0))
        alive = self.weights[0] > -np.inf
        start, model = self.block.start[alive], self.block.model[alive]
        return Posterior(start, model, self.current()[alive])

    def segmentation(self) -> list[tuple[int, int]]:
        """First row and model of every segment of the most probable segmentation."""
        if not self.n_alive:
            return [(0, 0)]
        best = int(self.weights[1].argmax())
        node = int(self.block.start[best]), int(self.block.model[best])
        found = [node]
        while node[0] in self.parents:
            node = self.parents[node[0]]
            found.append(node)
        return found[::-1]

    # --- blocks -----------------------------------------------------------------------

    def make_room(self) -> int:
        """Begin a new block if the current one is full; return the free rows."""
        if self.t >= self.block.end:
            self._compact()
        return self.block.end - self.t

    def _compact(self) -> None:
        """Begin the next block with the remaining hypotheses."""
        alive = self.weights[0] > -np.inf
        block = self.block.next(self.t, self.n_rows, alive)
        if self.t == self.first:  # the first segment begins with the series
            block.start[block.places[0]] = 0
        for state, new, old, place in zip(
            self.states, self.fresh, self.block.slices(), block.slices(), strict=True
        ):
            kept = alive[old]
            for name, array in new.items():
                state[name] = np.concatenate([state[name][kept], array])
            state["start"] = block.start[place]
        weights = np.full((2, len(block.start)), -np.inf)
        old = np.ones(len(block.start), bool)
        old[block.places.ravel()] = False
        weights[:, old] = self.weights[:, alive] - self.log_total
        # The row before the block, for the step to its first row.
        before = np.zeros(len(block.start))
        if self.n_alive:
            before[old] = self.current()[alive]
        self.before = before
        self.settled_evidence += self.log_total
        self.log_total = 0.0
        self.block, self.weights = block, weights

    # --- rows -------------------------------------------------------------------------

    def read(self, rows: Window, usable: np.ndarray) -> list[Reading]:
        """Predictions of rows by each group's hypotheses, none beyond the block."""
        j = np.arange(self.t, self.t + len(rows)) - self.block.first
        return [
            group.read(state, rows, usable, n_older + (j + 1) * len(models))
            for group, state, (n_older, models) in zip(
                self.groups, self.states, self.block.groups, strict=True
            )
        ]

    def predictive(self) -> np.ndarray:
        """Probabilities of hypotheses at the next row, (1, K)."""
        before = self.current()
        return self._predictive(before, self.block.probability[:0], self._hazards(1))

    def _predictive(
        self, before: np.ndarray, posterior: np.ndarray, ends: np.ndarray
    ) -> np.ndarray:
        """The same at the next R rows: from (K,) before, and (R - 1, K) inside."""
        j = self.t - self.block.first
        found = np.concatenate([before[None], posterior])
        ended = (found * ends).sum(1)
        found *= 1 - ends
        if self.t == self.first:
            ended[0] = 1.0
        rows = np.arange(len(found))[:, None]
        found[rows, self.block.places[j : j + len(found)]] = (
            ended[:, None] * self.model_prior
        )
        return found

    def advance(self, gain: np.ndarray, judged: np.ndarray) -> Passed:
        """Let segments continue or end, and reweight them by rows within the block.

        `gain`, (R, K), are log factors of probabilities. Rows that are not `judged`
        change no probability.
        """
        n, block = len(gain), self.block
        j = self.t - block.first
        ends = self._hazards(n)
        with np.errstate(divide="ignore"):
            leaves, stays = np.log(ends), np.log1p(-ends)
        posterior, total = block.probability[j : j + n], np.zeros(n)
        before, places = self.current(), block.places[j : j + n]
        # Existing hypotheses continue; those that begin later still have weight 0.
        new = np.arange(n)[:, None], places
        moves = gain + stays
        moves[new] = gain[new]
        sums, weights, weight = np.empty(n), self.weights, self.weights[0]
        prior = self.log_prior.tolist()
        for i, (row, move, p) in enumerate(
            zip(places.tolist(), moves, posterior, strict=True)
        ):
            self._branch(leaves[i] if leaves.ndim else float(leaves), row, prior, i)
            weights += move
            top = weight.item(weight.argmax())
            if not math.isfinite(top):
                raise ValueError(
                    f"Row {self.t + i} is impossible under every model of the detector "
                    "(its log density is not finite). Add a model that can produce "
                    "such values, or mark the row as missing (NaN)."
                )
            np.subtract(weight, top, out=p)
            np.exp(p, out=p)
            sums[i] = size = float(np.add.reduce(p))
            after = top + math.log(size)
            if judged[i]:
                total[i] = after - self.log_total
                self.log_total = after
            if self._prunes:
                sums[i] = self._prune(p, size, after + self.log_least)
        posterior /= sums[:, None]
        predictive = self._predictive(before, posterior[:-1], ends)
        self.t += n
        return Passed(predictive, posterior, total)

    def _branch(
        self, leaves: np.ndarray | float, places: list[int], prior: list[float], i: int
    ) -> None:
        """Start new segments in row i of the coming rows."""
        weight, path = self.weights
        mass = value = 0.0
        if self.n_alive:
            if isinstance(leaves, float):
                best = int(path.argmax())
                mass, value = self.log_total + leaves, path.item(best) + leaves
            else:
                leaving = path + leaves
                mass, best = log_sum(weight + leaves), int(leaving.argmax())
                value = leaving.item(best)
            if mass == -math.inf:
                return
            block = self.block
            self.parents[self.t + i] = block.start.item(best), block.model.item(best)
        for place, log_prior in zip(places, prior, strict=True):
            weight[place], path[place] = mass + log_prior, value + log_prior
        self.n_alive += len(places)

    def _prune(self, probability: np.ndarray, size: float, least: float) -> float:
        """Drop hypotheses that are too many or too improbable; return the sum kept.

        Takes probabilities times their sum, the size, and the least log weight.
        """
        n, weight = len(probability), self.weights[0]
        crowded = self.n_alive > self.max_hypotheses
        few = weight < least
        if not crowded and np.count_nonzero(few) <= n - self.n_alive:
            return size
        if crowded:
            excess = n - int(self.max_hypotheses)
            few[weight.argpartition(excess - 1)[:excess]] = True
        few[weight.argmax()] = False
        places = few.nonzero()[0]
        lost = float(probability[places].sum()) / size
        probability[places] = 0.0
        self.weights[:, places] = -np.inf
        self.n_alive = n - len(places)
        self.dropped_mass += lost
        self.log_total += math.log1p(-lost)
        return size * (1 - lost)

    def _hazards(self, n_rows: int) -> np.ndarray:
        """Probabilities that segments end before rows, (R, K); one if all are equal."""
        rows = np.arange(self.t, self.t + n_rows)[:, None]
        length = np.maximum(rows - self.block.start, 1)
        p = np.asarray(self.hazard.probability(length.ravel()), float)
        if p.shape != (length.size,) or not (p.min() >= 0 and p.max() <= 1):
            raise ValueError(
                f"{type(self.hazard).__name__}.probability must return one "
                "probability, between 0 and 1, for each length."
            )
        return p[0] if p.min() == p.max() else p.reshape(length.shape)

    def collect(self) -> None:
        """Forget segments that precede no kept hypothesis."""
        reachable: set[int] = set()
        for start in set(self.posterior().start.tolist()):
            while start in self.parents and start not in reachable:
                reachable.add(start)
                start = self.parents[start][0]
        self.parents = {key: self.parents[key] for key in sorted(reachable)}


def log_sum(values: np.ndarray) -> float:
    """Return log sum exp."""
    top = values.max()
    if not np.isfinite(top):
        return float(top)
    return float(top + np.log(np.exp(values - top).sum()))
