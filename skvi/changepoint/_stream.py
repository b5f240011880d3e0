"""A series that arrives row by row, and everything computed from its rows."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from skvi.changepoint._changes import Change
from skvi.changepoint._filter import Filter, Passed
from skvi.changepoint._groups import Reading, Window
from skvi.changepoint._records import Records
from skvi.changepoint._scaling import Scaling
from skvi.changepoint.base import SegmentModel

__all__ = ["Stream"]

# Rows between two searches for past segments that can still be part of the best
# segmentation.
COLLECT_EVERY = 1000
# Predictions that are computed together: more would not fit into the cache.
MOST_TOGETHER = 2**15


class Stream:
    """The state of a detector within a stream: all that is needed to continue."""

    def __init__(
        self,
        models: Sequence[SegmentModel],
        scaling: Scaling,
        filter_: Filter,
        records: Records,
        run_power: float | None,
    ) -> None:
        self.models, self.scaling = models, scaling
        self.filter, self.records = filter_, records
        # That of the loss by which rows weight hypotheses; None for the log loss.
        self.run_power = run_power
        self.order = filter_.first
        n_series = scaling.burn_in.n_series
        # Whether a row counts either completely or not at all.
        self.joint = any(model.shares_design for model in models)
        # The rows before the next one, in order; missing values replaced by
        # predictions.
        self.past = np.zeros((self.order, n_series))
        self.observed = np.zeros((self.order, n_series), bool)
        # Values of every series that the evidence includes, and the log of the slope
        # of their normal scores.
        self.n_scored = np.zeros(n_series)
        self.log_slope = 0.0
        self.next_collection = COLLECT_EVERY
        # That of the last row, in typical steps; rows without times are one apart.
        self.time = -1.0
        # Labels of rows that may turn out to be changepoints, such as dates.
        self.labels: dict[int, Any] = {}

    def push(
        self,
        values: np.ndarray,
        features: np.ndarray,
        labels: np.ndarray | None,
        times: np.ndarray | None = None,
    ) -> int:
        """Process as many of the next rows as can be computed together; their number.

        Values, (n, n_series), are in the units of the series, NaN where missing;
        labels and times, (n,), may be None.
        """
        filter_, scaling = self.filter, self.scaling
        n = self._n_together(values)
        index = filter_.t
        if labels is not None:
            self.labels.update(zip(range(index, index + n), labels[:n], strict=True))
        steps = self.time + np.arange(1.0, n + 1)
        if times is not None and scaling.clock is not None:
            steps = (times[:n] - scaling.clock[0]) / scaling.clock[1]
        self.time = float(steps[-1])
        units = (values[:n] - scaling.location) / scaling.scale
        values, slopes = scaling.score(units)
        seen = np.isfinite(values)
        if index < self.order:
            self._wait(units, values, seen)
            return n
        rows, usable = self._rows(values, seen, features[:n], steps)
        readings = filter_.read(rows, usable)
        density = joined([total(reading.log_density, usable) for reading in readings])
        gain = density
        if self.run_power is not None:
            gain = self._robust_gain(readings, usable, self.run_power)
        passed = filter_.advance(gain, usable.any(1))
        mean, std = predict(readings, passed.predictive)
        self._shift(np.where(seen, values, mean), seen)
        slope = np.where(usable, slopes, 0.0).sum(1)
        density = self._densities(density, passed, usable) + slope
        self.n_scored += usable.sum(0)
        self.log_slope += float(slope.sum())
        mean, std = scaling.unscored(mean, std)
        row = {"mean": mean, "std": std, "scored": usable, "log_density": density}
        self._remember(row | {"value": units}, passed)
        return n

    def starts(self) -> list[int]:
        """First rows of the segments of the most probable segmentation after row 0."""
        return [start for start, _ in self.filter.segmentation()[1:]]

    def changes(self) -> list[Change]:
        """Changes, of the most probable segmentation and others."""
        return self.records.changes(self.starts())

    def predict_next(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the next row, in the units of the series."""
        filter_, scaling = deepcopy(self.filter), self.scaling
        filter_.t = max(filter_.t, self.order)
        filter_.make_room()
        nothing = np.zeros((1, scaling.burn_in.n_series), bool)
        past = np.concatenate([self.past, np.zeros(nothing.shape)])
        time = np.array([self.time + 1])
        row = Window(np.zeros(nothing.shape), past, features[None], filter_.t, time)
        readings = filter_.read(row, nothing)
        mean, std = scaling.unscored(*predict(readings, filter_.predictive()))
        return scaling.location + scaling.scale * mean[0], scaling.scale * std[0]

    def _n_together(self, values: np.ndarray) -> int:
        """How many of the next rows can be computed together."""
        index = self.filter.t
        if index < self.order:
            return min(len(values), self.order - index)
        n = min(len(values), self.filter.make_room(), self.records.room())
        in_a_row = self.filter.block.probability.shape[1] * values.shape[1]
        n = min(n, 1 + MOST_TOGETHER // in_a_row)
        if self.order:  # missing values are predicted before the next row
            missing = ~np.isfinite(values[:n]).all(1)
            n = int(missing.argmax()) + 1 if missing.any() else n
        return n

    def _rows(
        self,
        values: np.ndarray,
        seen: np.ndarray,
        features: np.ndarray,
        times: np.ndarray,
    ) -> tuple[Window, np.ndarray]:
        """Rows in the units of the models, and which values all models can score."""
        observed = np.concatenate([self.observed, seen])
        windows = np.lib.stride_tricks.sliding_window_view(
            observed, self.order + 1, axis=0
        )
        windows = np.swapaxes(windows, 1, 2)[:, ::-1]
        usable = seen
        for model in self.models:
            usable = usable & model.usable(windows[:, : model.order + 1], features)
        if self.joint:
            usable = usable & usable.all(1, keepdims=True)
        past = np.concatenate([self.past, values])
        known = np.where(usable, values, 0.0)
        return Window(known, past, features, self.filter.t, times), usable

    @property
    def log_evidence(self) -> float:
        """Joint log density of all rows, in units of the series."""
        log_jacobian = self.log_slope - float(
            self.n_scored @ np.log(self.scaling.scale)
        )
        return self.filter.log_evidence + log_jacobian

    def _robust_gain(
        self, readings: Sequence[Reading], usable: np.ndarray, power: float
    ) -> np.ndarray:
        """Minus the beta loss of rows, (R, K), in units of the noise.

        A constant is added, so that it is the log density at power 0.
        """
        log_unit = np.log(self.scaling.burn_in.noise)[:, None]
        found = []
        for reading in readings:
            score = power * (reading.log_density + log_unit)
            integral = reading.integral + power * log_unit
            gain = np.expm1(score) / power - np.expm1(integral) / (1 + power)
            found.append(total(gain - log_unit, usable))
        return joined(found)

    def _densities(
        self, density: np.ndarray, passed: Passed, usable: np.ndarray
    ) -> np.ndarray:
        """Log densities of rows, given those before them, in units of the models."""
        if self.run_power is None:
            return passed.log_total
        density = np.where(passed.predictive > 0, density, -np.inf)
        top = density.max(1)
        mean = (passed.predictive * np.exp(density - top[:, None])).sum(1)
        return np.where(usable.any(1), top + np.log(mean), 0.0)

    def _wait(self, units: np.ndarray, values: np.ndarray, seen: np.ndarray) -> None:
        """Rows that only serve as the past of others."""
        n, n_series = values.shape
        self.filter.t += n
        row = {
            "mean": np.zeros((n, n_series)),
            "std": np.full((n, n_series), np.inf),
            "scored": np.zeros((n, n_series), bool),
            "value": units,
            "log_density": np.zeros(n),
            "models": np.zeros((n, len(self.models))),
            "run_length": np.zeros(n),
        }
        self.records.wait(row)
        self._shift(np.where(seen, values, 0.0), seen)

    def _remember(self, rows: dict[str, np.ndarray], passed: Passed) -> None:
        """Record rows, in units of the models, whose scale may still be measured."""
        filter_, p = self.filter, passed.posterior
        block, n_models = filter_.block, len(self.models)
        models = np.ones((len(p), 1))
        if n_models > 1:
            of = [np.where(block.model == m, p, 0.0).sum(1) for m in range(n_models)]
            models = np.stack(of, -1)
        index = np.arange(filter_.t - len(p), filter_.t)
        lengths = index - np.einsum("rk,k->r", p, 1.0 * block.start)
        self.records.add(block, rows | {"models": models, "run_length": lengths})
        if self.records.is_full:
            self.records.freeze(self.starts())
        if filter_.t >= self.next_collection and filter_.t == block.end:
            self.next_collection = filter_.t + COLLECT_EVERY
            filter_.collect()
            first, settled = self.records.first, self.records.settled
            kept = {row for c in settled for row in (c.row, c.low, c.high)}
            self.labels = {
                s: x for s, x in self.labels.items() if s >= first or s in kept
            }

    def _shift(self, values: np.ndarray, seen: np.ndarray) -> None:
        if self.order:
            self.past = np.concatenate([self.past, values])[-self.order :]
            self.observed = np.concatenate([self.observed, seen])[-self.order :]


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """One array of all hypotheses of all groups."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def total(values: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Sum over those series of rows that are usable: (R, K)."""
    if not usable.all():
        values = np.where(usable[..., None], values, 0.0)
    return values[:, 0] if values.shape[1] == 1 else values.sum(1)


def predict(
    readings: Sequence[Reading], weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Predictive mean and standard deviation over all hypotheses, (R, n_series) each.

    In units in which models see the series, from probabilities (R, K) before the rows.
    """
    means = joined([reading.mean for reading in readings])
    variances = joined([reading.variance for reading in readings])
    mean = np.einsum("rk,rsk->rs", weight, means)
    gap = means - mean[..., None]
    variance = np.einsum("rk,rsk->rs", weight, variances)
    if np.isnan(variance).any():  # infinite ones without weight do not count
        variances = np.where(weight[:, None] > 0, variances, 0.0)
        variance = np.einsum("rk,rsk->rs", weight, variances)
    gap *= gap
    return mean, np.sqrt(variance + np.einsum("rk,rsk->rs", weight, gap))
