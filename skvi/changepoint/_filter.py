"""The recursion: probabilities of all hypotheses about the current segment, row by row.

A hypothesis states when the current segment began, and which model its rows follow. Its
weight is the posterior probability, and its path the joint probability of the best
segmentation that ends in it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skvi.changepoint.base import BurnIn, Hazard, ObservationModel, Row, State


class Group:
    """Some of a detector's models, with the arithmetic of their hypotheses."""

    models: Sequence[int]  # their indices among the detector's models

    def prior(self) -> State:
        """State of one new hypothesis for each model, (n_models, ...)."""
        raise NotImplementedError

    def n_parameters(self) -> int:
        """Number of parameters of a segment, of all series, under the largest model."""
        raise NotImplementedError

    def read(self, state: State, row: Row, usable: np.ndarray) -> Sequence[np.ndarray]:
        """What a `Reading` has of a row, (K, n_series) each; learn the row, in place.

        Only series that are `usable`, (n_series,), change.
        """
        raise NotImplementedError


class SingleModel(Group):
    """One model with its own arithmetic."""

    def __init__(
        self, number: int, model: ObservationModel, burn_in: BurnIn, temper: float = 1.0
    ) -> None:
        self.models = [number]
        self.model, self.burn_in, self.temper = model, burn_in, temper

    def prior(self) -> State:
        """See `Group.prior`."""
        prior = self.model.prior(self.burn_in)
        return {name: np.asarray(a, float)[None] for name, a in prior.items()}

    def n_parameters(self) -> int:
        """See `Group.n_parameters`; a model keeps at least one statistic for each."""
        return sum(array.size for array in self.prior().values())

    def read(self, state: State, row: Row, usable: np.ndarray) -> Sequence[np.ndarray]:
        """See `Group.read`."""
        # Copies: a model may return the state itself, which is about to change.
        density = np.array(self.model.log_predictive(state, row))
        mean, variance = map(np.array, self.model.moments(state, row))
        learned = (
            self.model.update(state, row)
            if self.temper == 1
            else self.model.update_part(state, row, self.temper)
        )
        assign(state, learned, usable)
        return density, mean, variance


def assign(state: State, learned: State, usable: np.ndarray) -> None:
    """Write new values of the usable series, on axis 1, over the old ones."""
    for name, array in learned.items():
        place = state[name]
        if usable.all() or place.shape[1] != len(usable):
            place[...] = array
        else:
            place[:, usable] = array[:, usable]


@dataclass(frozen=True)
class Reading:
    """Predictions of a row by all hypotheses, (K, n_series), before it is seen.

    `probability`, (K,), are those of the hypotheses. `integral`, under a robust
    run-length loss only, is the log of the integral of the density to the power beta.
    """

    probability: np.ndarray
    log_density: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    integral: np.ndarray | None = None

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Predictive mean and standard deviation over all hypotheses, (n_series,)."""
        p, variance = self.probability[:, None], self.variance
        mean = (p * self.mean).sum(0)
        # Infinite variances without weight do not count.
        variance = np.where(p > 0, variance, 0.0) + (self.mean - mean) ** 2
        return mean, np.sqrt((p * variance).sum(0))


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
        self.max_hypotheses = math.inf if max_hypotheses is None else max_hypotheses
        self.log_least, self.model_prior = log_least, model_prior
        # What a new segment adds, and the group of each model.
        possible = [[m for m in group.models if model_prior[m] > 0] for group in groups]
        self.new = np.array([m for models in possible for m in models], int)
        self.fresh = []
        self.group_of = np.zeros(len(model_prior), int)
        for i, (group, models) in enumerate(zip(groups, possible, strict=True)):
            member = np.flatnonzero(np.isin(group.models, models))
            fresh = {name: array[member] for name, array in group.prior().items()}
            nan = np.full(len(member), np.nan)
            self.fresh.append(fresh | {"member": member, "begin": nan, "start": nan})
            self.group_of[list(group.models)] = i
        self.states = [{n: a[:0] for n, a in state.items()} for state in self.fresh]
        # Of every hypothesis: first row, model, log probability, log path up to a
        # constant, and probability.
        self.start = self.model = np.zeros(0, int)
        self.weights = np.zeros((2, 0))
        self.probability = np.zeros(0)
        self.t = 0
        self.log_evidence = self.dropped_mass = 0.0
        # First row of a segment -> first row and model of the best one before it.
        self.parents: dict[int, tuple[int, int]] = {}

    def segmentation(self) -> list[tuple[int, int]]:
        """First row and model of every segment of the most probable segmentation."""
        if not len(self.start):
            return [(0, 0)]
        best = int(self.weights[1].argmax())
        found = [(self.start.item(best), self.model.item(best))]
        while found[-1][0] in self.parents:
            found.append(self.parents[found[-1][0]])
        return found[::-1]

    def branch(self) -> np.ndarray:
        """Let segments continue or end before the next row.

        Returns which segment has ended if one has: probabilities of the hypotheses
        before, (K,), or all 0.
        """
        if self.t == self.first:  # the first segment begins with the series
            self._begin(0, 0.0, 0.0)
            return np.zeros(0)
        p = np.asarray(self.hazard.probability(self.t - self.start), float)
        if p.shape != self.start.shape or not (p.min() >= 0 and p.max() <= 1):
            raise ValueError(
                f"{type(self.hazard).__name__}.probability must return one "
                "probability, between 0 and 1, for each length."
            )
        ended = self.probability * p
        total = ended.sum()
        with np.errstate(divide="ignore"):
            leaving, stays = self.weights + np.log(p), np.log1p(-p)
        self.weights += stays
        self.probability = self.probability * (1 - p)
        best = int(leaving[1].argmax())
        top = leaving[0].max()
        if top > -math.inf:
            self.parents[self.t] = self.start.item(best), self.model.item(best)
            mass = float(top + np.log(np.exp(leaving[0] - top).sum()))
            self._begin(self.t, mass, leaving.item((1, best)))
        return ended / total if total > 0 else ended

    def _begin(self, start: int, mass: float, path: float) -> None:
        """Add the hypotheses of a segment that begins, from their logarithms."""
        n, prior = len(self.new), self.model_prior[self.new]
        self.start = np.append(self.start, np.full(n, start))
        self.model = np.append(self.model, self.new)
        new = np.log(prior) + np.array([[mass], [path]])
        self.weights = np.concatenate([self.weights, new], axis=1)
        self.probability = np.append(self.probability, math.exp(mass) * prior)
        for state, fresh in zip(self.states, self.fresh, strict=True):
            for name, array in fresh.items():
                state[name] = np.concatenate([state[name], array])
            state["start"][len(state["start"]) - len(fresh["start"]) :] = start

    def read(self, row: Row, usable: np.ndarray) -> Reading:
        """Predictions of a row by all hypotheses, which learn it."""
        if len(self.groups) == 1:
            found = self.groups[0].read(self.states[0], row, usable)
            return Reading(self.probability, *found)
        n, of = len(self.start), self.group_of[self.model]
        parts: list[np.ndarray] = []
        for i, (group, state) in enumerate(zip(self.groups, self.states, strict=True)):
            read = group.read(state, row, usable)
            parts = parts or [np.zeros((n, len(usable))) for _ in read]
            for whole, part in zip(parts, read, strict=True):
                whole[of == i] = part
        return Reading(self.probability, *parts)

    def advance(self, gain: np.ndarray, judged: bool) -> float:
        """Reweight hypotheses by a row; return the increment of the log evidence.

        `gain`, (K,), are log factors of probabilities, in nats. A row that is not
        `judged` changes no probability.
        """
        self.weights += gain
        weight = self.weights[0]
        top = weight.max()
        if not math.isfinite(top):
            raise ValueError(
                f"Row {self.t} is impossible under every model of the detector "
                "(its log density is not finite). Add a model that can produce "
                "such values, or mark the row as missing (NaN)."
            )
        p = np.exp(weight - top)
        size = float(p.sum())
        self.probability = p / size
        change = top + math.log(size) if judged else 0.0
        self.weights -= change
        self.log_evidence += change
        self._prune()
        self.t += 1
        return change

    def _prune(self) -> None:
        """Drop hypotheses that are too many or too improbable."""
        weight = self.weights[0]
        few = (weight < self.log_least) | (weight == -math.inf)
        if (excess := len(weight) - self.max_hypotheses) > 0:
            few[weight.argpartition(int(excess) - 1)[: int(excess)]] = True
        few[weight.argmax()] = False
        if not few.any():
            return
        lost, kept = float(self.probability[few].sum()), ~few
        of = self.group_of[self.model]
        for i, state in enumerate(self.states):
            left = kept if len(self.states) == 1 else kept[of == i]
            for name, array in state.items():
                state[name] = array[left]
        self.start, self.model = self.start[kept], self.model[kept]
        self.probability = self.probability[kept] / (1 - lost)
        self.weights = self.weights[:, kept] - math.log1p(-lost)
        self.dropped_mass += lost
        self.log_evidence += math.log1p(-lost)

    def collect(self) -> None:
        """Forget segments that precede no kept hypothesis."""
        reachable: set[int] = set()
        for start in set(self.start.tolist()):
            while start in self.parents and start not in reachable:
                reachable.add(start)
                start = self.parents[start][0]
        self.parents = {key: self.parents[key] for key in sorted(reachable)}
