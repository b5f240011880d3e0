"""The recursion: probabilities of all hypotheses on the present segment, row by row.

A hypothesis says when the present segment began, and by which model its rows are
distributed. Its weight is the posterior probability, and its path the joint probability
of the best segmentation that ends in it, both relative to the evidence so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skvi.changepoint._groups import Group
from skvi.changepoint._store import Store
from skvi.changepoint.base import Hazard

__all__ = ["Filter", "Posterior"]


@dataclass(frozen=True)
class Posterior:
    """Hypotheses after a row: first row of the segment, model, probability, (K,)."""

    start: np.ndarray
    model: np.ndarray
    probability: np.ndarray


class Filter:
    """All hypotheses of a detector.

    Parameters
    ----------
    groups : list of Group
    hazard : Hazard
    model_prior : ndarray of shape (n_models,)
        Probabilities of the models at the start of a segment.
    max_hypotheses : int or None
        How many are kept; None for all.
    min_probability : float
        Less probable ones are dropped.
    tilts : bool
        Whether to follow derivatives of the log weights in the order of the loss.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        hazard: Hazard,
        model_prior: np.ndarray,
        max_hypotheses: int | None,
        min_probability: float,
        tilts: bool = False,
    ) -> None:
        self.tilts = tilts
        self.groups, self.hazard = groups, hazard
        with np.errstate(divide="ignore"):
            self.log_prior = np.log(model_prior)
            self.log_bound = np.log(min_probability)
        self.max_hypotheses = max_hypotheses
        self.fresh = [self._new(group) for group in groups]
        self.stores = [Store(rows) for rows in self.fresh]
        self.t = 0
        self.log_evidence = 0.0
        self.dropped_mass = 0.0
        # First row of a segment -> first row and model of the best one before it.
        self.parents: dict[int, tuple[int, int]] = {}

    def _new(self, group: Group) -> dict[str, np.ndarray]:
        """One new hypothesis of each of the group's models."""
        models = np.array(group.models)
        rows = group.prior()
        rows["member"], rows["model"] = np.arange(len(models)), models
        rows["start"] = np.zeros(len(models), np.int64)
        rows["log_weight"] = rows["path"] = np.zeros(len(models))
        if self.tilts:
            rows["tilt"] = np.zeros(len(models))
        return rows

    # --- what is known ----------------------------------------------------------------

    def gather(self, name: str) -> np.ndarray:
        """One array of all hypotheses, (K,)."""
        if len(self.stores) == 1:
            return self.stores[0][name]
        return np.concatenate([store[name] for store in self.stores])

    def posterior(self) -> Posterior:
        """Hypotheses after the last row."""
        return Posterior(
            self.gather("start").copy(),
            self.gather("model").copy(),
            np.exp(self.gather("log_weight")),
        )

    def segmentation(self) -> list[tuple[int, int]]:
        """First row and model of every segment of the most probable segmentation."""
        best = int(np.argmax(self.gather("path")))
        node = int(self.gather("start")[best]), int(self.gather("model")[best])
        found = [node]
        while node[0] in self.parents:
            node = self.parents[node[0]]
            found.append(node)
        return found[::-1]

    # --- one row ----------------------------------------------------------------------

    def begin(self, first: int) -> None:
        """Let the first segment begin, by any model, before row `first` is seen."""
        self.t = first + 1
        self._append(self.log_prior, self.log_prior, 0)

    def branch(self) -> None:
        """Let every segment go on or end, before the next row is seen."""
        start, path = self.gather("start"), self.gather("path")
        ends, stays = self._hazards(self.t - start)
        mass, best = log_sum(self.gather("log_weight") + ends), np.argmax(path + ends)
        value, origin = path[best] + ends[best], int(start[best])
        tilt = 0.0
        if self.tilts and mass > -np.inf:
            leaving = np.exp(self.gather("log_weight") + ends - mass)
            tilt = float(leaving @ self.gather("tilt"))
        model = int(self.gather("model")[best])
        self._add_to_all(stays, stays)
        if mass > -np.inf:
            self.parents[self.t] = origin, model
            self._append(mass + self.log_prior, value + self.log_prior, self.t, tilt)
        self.t += 1

    def weigh(self, gain: np.ndarray, slope: np.ndarray | None = None) -> float:
        """Multiply probabilities by exp(gain), (K,), whose derivative is the slope.

        Returns the log of their total.
        """
        total = log_sum(self.gather("log_weight") + gain)
        if not np.isfinite(total):
            raise ValueError(
                f"Row {self.t - 1} is impossible under every model of the detector "
                "(its log density is not finite). Add a model that can produce such "
                "values, or mark the row as missing (NaN)."
            )
        self._add_to_all(gain - total, gain - total)
        self.log_evidence += total
        if slope is not None:
            tilt = self.gather("tilt") + slope
            tilt = tilt - np.exp(self.gather("log_weight")) @ tilt
            place = 0
            for store in self.stores:
                store["tilt"][...] = tilt[place : place + store.n]
                place += store.n
        return total

    def prune(self) -> None:
        """Drop hypotheses that are too many or too improbable."""
        weight = self.gather("log_weight")
        drop = weight < self.log_bound
        if self.max_hypotheses is not None and len(weight) > self.max_hypotheses:
            excess = len(weight) - self.max_hypotheses
            drop[np.argpartition(weight, excess - 1)[:excess]] = True
        if not drop.any():
            return
        lost = float(np.exp(weight[drop]).sum())
        self._drop(drop)
        self.dropped_mass += lost
        self.log_evidence += np.log1p(-lost)
        for store in self.stores:
            store["log_weight"][...] -= np.log1p(-lost)
            store["path"][...] -= np.log1p(-lost)

    def _hazards(self, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log probabilities that segments end, and that they go on."""
        p = np.asarray(self.hazard.probability(length), float)
        if p.shape != length.shape or not (p.min() >= 0 and p.max() <= 1):
            raise ValueError(
                f"{type(self.hazard).__name__}.probability must return one "
                "probability, between 0 and 1, for each length."
            )
        with np.errstate(divide="ignore"):
            return np.log(p), np.log1p(-p)

    def _append(
        self, weight: np.ndarray, path: np.ndarray, start: int, tilt: float = 0.0
    ) -> None:
        for store, rows in zip(self.stores, self.fresh, strict=True):
            if self.tilts:
                rows["tilt"] = np.full(len(rows["model"]), tilt)
            rows["start"] = np.full(len(rows["model"]), start)
            rows["log_weight"] = weight[rows["model"]]
            rows["path"] = path[rows["model"]]
            store.append(rows)

    def _add_to_all(self, weight: np.ndarray, path: np.ndarray) -> None:
        place = 0
        for store in self.stores:
            end = place + store.n
            store["log_weight"][...] += weight[place:end]
            store["path"][...] += path[place:end]
            place = end

    def _drop(self, drop: np.ndarray) -> None:
        place = 0
        for store in self.stores:
            end = place + store.n
            store.drop(drop[place:end])
            place = end

    def collect(self) -> set[int]:
        """Forget segments that no kept hypothesis leads back to; return the others."""
        reachable: set[int] = set()
        for start in set(self.gather("start").tolist()):
            while start in self.parents and start not in reachable:
                reachable.add(start)
                start = self.parents[start][0]
        self.parents = {key: self.parents[key] for key in sorted(reachable)}
        return reachable


def log_sum(values: np.ndarray) -> float:
    """Return log sum exp."""
    top = values.max()
    if not np.isfinite(top):
        return float(top)
    return float(top + np.log(np.exp(values - top).sum()))
