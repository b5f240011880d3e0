"""A series that comes row by row, and all that follows from a row."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from skvi.changepoint._filter import Filter, log_sum
from skvi.changepoint._judge import Judge, predict
from skvi.changepoint._records import Records
from skvi.changepoint._scaling import Scaling
from skvi.changepoint.base import Row, SegmentModel

__all__ = ["Stream"]

# Rows between two looks at which segments of the past can still be part of the best
# segmentation.
COLLECT_EVERY = 1000


class Stream:
    """The state of a detector in mid-stream: nothing else is needed to go on.

    Parameters
    ----------
    models : sequence of SegmentModel
    scaling : Scaling
    filter_ : Filter
    records : Records
    judge : Judge
        The loss by which hypotheses are judged.
    """

    def __init__(
        self,
        models: Sequence[SegmentModel],
        scaling: Scaling,
        filter_: Filter,
        records: Records,
        judge: Judge,
    ) -> None:
        self.models, self.scaling = models, scaling
        self.filter, self.records = filter_, records
        self.judge = judge
        self.order = max(model.order for model in models)
        n_series = scaling.burn_in.n_series
        # Whether a row counts as a whole or not at all.
        self.joint = any(model.shares_design for model in models)
        # Rows before the present one, the latest first; predictions where missing.
        self.past = np.zeros((self.order, n_series))
        self.observed = np.zeros((self.order, n_series), bool)
        self.log_jacobian = 0.0
        # Names of rows that may turn out to be changepoints, such as dates.
        self.labels: dict[int, Any] = {}

    def push(self, values: np.ndarray, features: np.ndarray, label: Any = None) -> None:
        """Take in the next row, (n_series,) in the units of the series."""
        filter_, scaling = self.filter, self.scaling
        if label is not None:
            self.labels[filter_.t] = label
        values = (values - scaling.location) / scaling.scale
        seen = np.isfinite(values)
        index = filter_.t
        if index < self.order:
            self._wait(values, seen)
            return
        if index == self.order:
            filter_.begin(index)
        else:
            filter_.branch()
        usable = self._usable(seen, features)
        row = Row(np.where(usable, values, 0.0), self.past, features, index)
        mean, std = predict(filter_, row)
        self.judge.adapt(filter_, row, usable)
        density = 0.0
        if usable.any():
            units = np.log(scaling.scale[usable]).sum()
            density = self._learn(row, usable) - units
            self.log_jacobian -= units
        filter_.prune()
        if filter_.t % COLLECT_EVERY == 0:
            kept = filter_.collect()
            self.records.forget(kept)
            self.labels = {s: self.labels[s] for s in self.labels if s in kept}
        self._remember(mean, std, density)
        self._shift(np.where(seen, values, mean), seen)

    def predict_next(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the next row, in the units of the series."""
        filter_, scaling = deepcopy(self.filter), self.scaling
        if filter_.t <= self.order:
            filter_.begin(filter_.t)
        else:
            filter_.branch()
        n = scaling.burn_in.n_series
        mean, std = predict(
            filter_, Row(np.zeros(n), self.past, features, self.filter.t)
        )
        return scaling.location + scaling.scale * mean, scaling.scale * std

    def _learn(self, row: Row, usable: np.ndarray) -> float:
        """Judge hypotheses by a row, let them learn from it; log density of the row."""
        filter_, everything = self.filter, bool(usable.all())
        judgement = self.judge(filter_, row, None if everything else usable)
        if self.judge.power is None:
            total = filter_.weigh(judgement.density)
        else:
            total = log_sum(filter_.gather("log_weight") + judgement.density)
            filter_.weigh(judgement.gain, judgement.slope)
        for group, store in zip(filter_.groups, filter_.stores, strict=True):
            group.learn(store.view(), row, None if everything else usable)
        return total

    def _usable(self, seen: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Which series of the row all models can judge: only those count."""
        observed = np.vstack([seen, self.observed])
        usable = seen.copy()
        for model in self.models:
            usable &= model.usable(observed[: model.order + 1], features)
        return usable & (usable.all() or not self.joint)

    def _wait(self, values: np.ndarray, seen: np.ndarray) -> None:
        """A row that is only the past of others."""
        self.filter.t += 1
        n = self.scaling.burn_in.n_series
        self._remember(np.zeros(n), np.full(n, np.inf), 0.0)
        self._shift(np.where(seen, values, 0.0), seen)

    def _remember(self, mean: np.ndarray, std: np.ndarray, density: float) -> None:
        scaling, posterior = self.scaling, self.filter.posterior()
        n_models = len(self.models)
        of_models = np.bincount(posterior.model, posterior.probability, n_models)
        row = {
            "mean": scaling.location + scaling.scale * mean,
            "std": scaling.scale * std,
            "log_density": density,
            "models": of_models,
            "run_length": float(
                posterior.probability @ (self.filter.t - 1 - posterior.start)
            ),
        }
        self.records.add(posterior, row)

    def _shift(self, values: np.ndarray, seen: np.ndarray) -> None:
        if self.order:
            self.past = np.vstack([values, self.past[:-1]])
            self.observed = np.vstack([seen, self.observed[:-1]])
