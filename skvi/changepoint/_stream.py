"""A series that arrives row by row, and everything computed from its rows."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from skvi.changepoint._conjugate import ConjugateGroup
from skvi.changepoint._filter import Filter, Group, Reading, SingleModel
from skvi.changepoint._input import Settings, check_order, power_of
from skvi.changepoint._models import RegressionModel
from skvi.changepoint._records import Change, Posterior, Records, RowResult
from skvi.changepoint._robust import RobustGroup
from skvi.changepoint._units import (
    Scaling,
    clock_of,
    first_change,
    first_observed,
    measure,
    moments,
    scale_of,
)
from skvi.changepoint.base import BurnIn, ObservationModel, Row
from skvi.losses.base import Loss

# An error of a prediction counts up to so many standard deviations of the noise: where
# the influence of a row is largest under the default beta loss.
LARGEST_ERROR = 2.0
# Rows between two searches for past segments that can still be part of the best
# segmentation.
COLLECT_EVERY = 1000


@dataclass(frozen=True)
class Batch:
    """Consecutive rows: (n, n_series), (n, n_features), and (n,) or None the others."""

    values: np.ndarray
    features: np.ndarray
    labels: np.ndarray | None
    times: np.ndarray | None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> "Batch":
        return Batch(*(None if c is None else c[rows] for c in vars(self).values()))

    def append(self, other: "Batch") -> "Batch":
        """Rows before others, with labels and times if all have some."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Batch(
            *(
                None if any(c is None for c in pair) else np.concatenate(pair)
                for pair in pairs
            )
        )


class Stream:
    """The state of a detector within a stream: all that is needed to continue.

    Of several with different losses that with the least `risk` predicts best.
    """

    def __init__(
        self,
        settings: Settings,
        scaling: Scaling,
        n_kept: int,
        losses: tuple[Loss, Loss],
    ) -> None:
        self.settings, self.scaling, self.losses = settings, scaling, losses
        self.power, self.run_power = map(power_of, losses)
        self.risk = 0.0
        groups = make_groups(settings, scaling.burn_in, self.power, self.run_power)
        self.order = max(model.order for model in settings.models)
        self.filter = Filter(
            groups,
            settings.hazard,
            settings.model_prior,
            settings.max_hypotheses,
            settings.log_least(max(group.n_parameters() for group in groups)),
            self.order,
        )
        self.records = Records(settings.history, n_kept)
        n_series = scaling.burn_in.n_series
        # The rows before the next one, in order; missing values replaced by
        # predictions.
        self.past = np.zeros((self.order, n_series))
        self.observed = np.zeros((self.order, n_series), bool)
        # Values of every series that the evidence includes, and the log of the slope
        # of their normal scores.
        self.n_scored = np.zeros(n_series)
        self.log_slope = 0.0
        # That of the last row, in typical steps; rows without times are one apart.
        self.time = -1.0
        # Labels of rows that may turn out to be changepoints, such as dates.
        self.labels: dict[int, Any] = {}

    def steps(self, batch: "Batch") -> Iterator[None]:
        """Process rows, one for each step.

        Values are in the units of the series, NaN where missing.
        """
        scaling = self.scaling
        units = (batch.values - scaling.location) / scaling.scale
        values, slopes = scaling.score(units)
        seen = np.isfinite(values)
        usable = self._usable(seen, batch.features)
        slopes = np.where(usable, slopes, 0.0).sum(1)
        known = np.where(usable, values, 0.0)
        for i in range(len(batch)):
            index = self.filter.t
            if batch.labels is not None:
                self.labels[index] = batch.labels[i]
            self.time += 1
            if batch.times is not None and scaling.clock is not None:
                first, step = scaling.clock
                self.time = float((batch.times[i] - first) / step)
            past, features = self.past[::-1], batch.features[i]
            row = Row(known[i], past, features, index, self.time)
            mean = self._take(row, usable[i], units[i], float(slopes[i]))
            self._shift(np.where(seen[i], values[i], mean), seen[i])
            yield

    def _take(
        self, row: Row, usable: np.ndarray, units: np.ndarray, slope: float
    ) -> np.ndarray:
        """Process a row; return its prediction, as models see it."""
        filter_, n_models = self.filter, len(self.settings.models)
        if filter_.t < self.order:  # it only serves as the past of others
            nothing, n_series = np.zeros(n_models), len(usable)
            mean, std = np.zeros(n_series), np.full(n_series, np.inf)
            scored = np.zeros(n_series, bool)
            result = RowResult(units, mean, std, scored, 0.0, nothing, 0.0)
            self.records.add(result, None)
            filter_.t += 1
            return mean
        ended = filter_.branch()
        reading = filter_.read(row, usable)
        density = gain = np.where(usable, reading.log_density, 0.0).sum(1)
        if (power := self.run_power) is not None:
            gain = self._robust_gain(reading, power)
            gain = np.where(usable, gain, 0.0).sum(1)
        mean, std = reading.moments()
        error = np.abs(row.values - mean) / self.scaling.burn_in.noise
        # Rows before the last `history` ones hardly count, as everywhere.
        self.risk -= self.risk / self.settings.history
        self.risk += float(np.minimum(error, LARGEST_ERROR)[usable].sum())
        change = filter_.advance(gain, bool(usable.any()))
        if power is not None and usable.any():
            top = density.max()
            change = top + np.log(reading.probability @ np.exp(density - top))
        self.n_scored += usable
        self.log_slope += slope
        p, start = filter_.probability, filter_.start
        models = np.bincount(filter_.model, p, n_models)
        length = row.index - float(p @ start)
        result = RowResult(units, mean, std, usable, change + slope, models, length)
        self.records.add(result, Posterior(start, p, ended))
        if self.records.n_rows - self.records.first > 2 * self.settings.history:
            self.records.freeze(self.starts())
        if filter_.t % COLLECT_EVERY == 0:
            self._collect()
        return mean

    def _robust_gain(self, reading: Reading, power: float) -> np.ndarray:
        """Minus the beta loss of a row, (K, n_series), in units of the noise.

        A constant is added, so that it is the log density at power 0.
        """
        log_unit = np.log(self.scaling.burn_in.noise)
        score = power * (reading.log_density + log_unit)
        integral = reading.integral + power * log_unit
        gain = np.expm1(score) / power - np.expm1(integral) / (1 + power)
        return gain - log_unit

    def _usable(self, seen: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Which values, (n, n_series), all models can score."""
        observed = np.concatenate([self.observed, seen])
        windows = np.lib.stride_tricks.sliding_window_view(
            observed, self.order + 1, axis=0
        )
        windows = np.swapaxes(windows, 1, 2)[:, ::-1]
        usable = seen
        for model in self.settings.models:
            usable = usable & model.usable(windows[:, : model.order + 1], features)
        if any(model.shares_design for model in self.settings.models):
            usable = usable & usable.all(1, keepdims=True)
        return usable

    def _shift(self, values: np.ndarray, seen: np.ndarray) -> None:
        if self.order:
            self.past = np.concatenate([self.past[1:], values[None]])
            self.observed = np.concatenate([self.observed[1:], seen[None]])

    def _collect(self) -> None:
        """Forget past segments, and labels, that can play no part any more."""
        self.filter.collect()
        kept = {row for c in self.records.settled for row in (c.row, c.low, c.high)}
        first = self.records.first
        self.labels = {s: x for s, x in self.labels.items() if s >= first or s in kept}

    def starts(self) -> list[int]:
        """First rows of the segments of the most probable segmentation after row 0."""
        return [start for start, _ in self.filter.segmentation()[1:]]

    def changes(self) -> list[Change]:
        """Changes, of the most probable segmentation and others."""
        return self.records.changes(self.starts())

    @property
    def log_evidence(self) -> float:
        """Joint log density of all rows, in units of the series."""
        log_unit = float(self.n_scored @ np.log(self.scaling.scale))
        return self.filter.log_evidence + self.log_slope - log_unit

    def predictions(self) -> tuple[np.ndarray, np.ndarray]:
        """Predictive means and standard deviations of the rows, in their own units."""
        mean, std = self.records.column("mean"), self.records.column("std")
        return self._in_units(mean, std)

    def predict_next(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the next row, in the units of the series."""
        filter_ = deepcopy(self.filter)
        filter_.t = max(filter_.t, self.order)
        filter_.branch()
        nothing = np.zeros(self.scaling.burn_in.n_series)
        row = Row(nothing, self.past[::-1], features, filter_.t, self.time + 1)
        mean, std = filter_.read(row, nothing > 0).moments()
        mean, std = self._in_units(mean[None], std[None])
        return mean[0], std[0]

    def _in_units(
        self, mean: np.ndarray, std: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        mean, std = moments(self.scaling.scores, mean, std)
        location, scale = self.scaling.location, self.scaling.scale
        return location + scale * mean, scale * std


def push(streams: Sequence[Stream], batch: Batch, name: str | None = None) -> None:
    """Process rows in all streams, until the last one or Ctrl-C.

    The progress is printed under a name.
    """
    told = time.monotonic()
    steps = zip(*(stream.steps(batch) for stream in streams), strict=True)
    with interrupts_between_rows() as interrupt:
        for i, _ in enumerate(steps):
            if interrupt.is_set():
                break
            if name and time.monotonic() > told + 1:
                told = time.monotonic()
                print(f"[{name}] row {i + 1} of {len(batch)}", flush=True)  # noqa: T201


def make_groups(
    settings: Settings, burn_in: BurnIn, power: float | None, run_power: float | None
) -> list[Group]:
    """Models of one kind share their arithmetic."""
    temper = 1 / settings.divergence.weight
    kinds: dict[bool, list[int]] = {}
    groups: list[Group] = []
    for i, model in enumerate(settings.models):
        if isinstance(model, ObservationModel):
            groups.append(SingleModel(i, model, burn_in, temper))
        elif isinstance(model, RegressionModel):
            kinds.setdefault(power is None and model.shares_design, []).append(i)
    for numbers in kinds.values():
        given = numbers, [settings.models[i] for i in numbers], burn_in, temper
        if power is None:
            groups.append(ConjugateGroup(*given))
        else:
            groups.append(RobustGroup(*given, power=power, run_power=run_power))
    return groups


class Feed:
    """Streams, one for each loss, and the rows whose units are not settled yet.

    Units are measured from `burn_in` rows, those from which the series begins to vary:
    a constant series is 0 in any scale, and the rows since it varies wait once more.
    The stream of waiting rows, in units of those so far, is computed on request.
    """

    def __init__(self, settings: Settings, burn_in: int, n_kept: int) -> None:
        self.settings, self.burn_in, self.n_kept = settings, burn_in, n_kept
        # The streams up to the first row that waits; none before the burn-in.
        self.settled: list[Stream] = []
        self.waiting: Batch | None = None
        self.last_time = -np.inf
        # Series that have not varied so far, and their constants; NaN: never observed.
        self.is_constant = np.full(settings.n_series, settings.scaling is None)
        self.level = np.full(settings.n_series, np.nan)
        self._current: list[Stream] | None = None
        # The rows of every series from which units were measured, until they are read.
        self.measured: Sequence[np.ndarray] = ()

    def push(self, rows: Batch, closes: bool = False, name: str | None = None) -> None:
        """Take the next rows; process those whose units are known.

        With `closes` units are settled now, however few rows there are. Progress is
        printed under `name`.
        """
        if rows.times is not None and len(rows):
            check_order(np.append(self.last_time, rows.times[0]))
            self.last_time = float(rows.times[-1])
        if self.waiting is not None:
            rows = self.waiting.append(rows)
        self.waiting = self._current = None
        while len(rows):
            begins = self._begins(rows)
            n = self._n_settled(begins, len(rows))
            if n > len(rows) and not closes:
                self.waiting = rows
                return
            now, rows = rows[:n], rows[n:]
            if is_first := not self.settled:
                self.measured = self._burn_in_of(now, begins)
            self.settled = self._settle(self.settled, now, begins)
            self._notice(now, begins)
            push(self.settled, now, name)
            if is_first:
                self.settled = self._normalized(self.settled, now, begins)

    @property
    def n_rows(self) -> int:
        """Number of rows so far."""
        n = self.settled[0].filter.t if self.settled else 0
        return n + (0 if self.waiting is None else len(self.waiting))

    @property
    def current(self) -> Stream:
        """The stream that predicts best, in units measured from the rows so far."""
        if self._current is None:
            self._current = self.settled
            if (rows := self.waiting) is not None:
                begins = self._begins(rows)
                streams = self._settle(deepcopy(self.settled), rows, begins)
                push(streams, rows)
                is_first = not self.settled
                self._current = (
                    self._normalized(streams, rows, begins) if is_first else streams
                )
        return min(self._current, key=lambda stream: stream.risk)

    def replay(self, rows: Batch) -> Self:
        """Return a feed of other rows in the same units, from the first row on."""
        other = copy(self)
        other.settled = self._streams(self.current.scaling, len(rows))
        other.waiting = other._current = None
        push(other.settled, rows)
        return other

    def _streams(self, scaling: Scaling, n_kept: int) -> list[Stream]:
        """New streams, one for each loss."""
        settings = self.settings
        return [Stream(settings, scaling, n_kept, pair) for pair in settings.losses]

    def _begins(self, rows: Batch) -> np.ndarray:
        """First of the rows in which each series varies, if it did not before."""
        n = len(rows)
        return np.array(
            [
                first_change(column, level) if is_constant else n
                for column, level, is_constant in zip(
                    rows.values.T, self.level, self.is_constant, strict=True
                )
            ]
        )

    def _n_settled(self, begins: np.ndarray, n_rows: int) -> int:
        """Number of rows to process next; more than there are if they wait."""
        begins = begins[self.is_constant]
        if self.settled:
            first = int(begins.min(initial=n_rows))
            if first > 0:
                return first
        n = 0 if self.settled else self.burn_in
        for begin in np.sort(begins[begins < n_rows]).tolist():
            if begin < max(n, 1):
                n = max(n, begin + max(self.burn_in - 1, 1))
        return n

    def _settle(
        self, streams: list[Stream], rows: Batch, begins: np.ndarray
    ) -> list[Stream]:
        """Streams in units that suit the rows, which they have not processed yet."""
        columns = rows.values.T
        if not streams:
            parts = self._burn_in_of(rows, begins)
            scaling = measure(parts, self.settings.scaling, rows.features.shape[1])
            scaling = replace(scaling, clock=clock_of(rows.times))
            return self._streams(scaling, self.n_kept)
        scaling = streams[0].scaling
        location, scale = scaling.location.copy(), scaling.scale.copy()
        for j in np.flatnonzero(self.is_constant).tolist():
            if np.isnan(self.level[j]):
                location[j] = first_observed(columns[j], location[j])
            if begins[j] < len(rows):
                varied = columns[j, begins[j] :][: max(self.burn_in - 1, 1)]
                scale[j] = scale_of(np.append(location[j], varied))
        scaling = replace(scaling, location=location, scale=scale)
        for stream in streams:
            stream.scaling = scaling
        return streams

    def _normalized(
        self, streams: list[Stream], rows: Batch, begins: np.ndarray
    ) -> list[Stream]:
        """The stream of the first rows, or that of their normal scores if it is better.

        The evidence pays a nat for each knot, as in Akaike's criterion.
        """
        if not self.settings.normalizes:
            return streams
        parts, n_features = self._burn_in_of(rows, begins), rows.features.shape[1]
        scaling = measure(parts, self.settings.scaling, n_features, scores=True)
        if not scaling.n_knots:
            return streams
        others = self._streams(scaling, self.n_kept)
        push(others, rows)
        gain = others[0].log_evidence - streams[0].log_evidence
        return others if gain > scaling.n_knots else streams

    def _burn_in_of(self, rows: Batch, begins: np.ndarray) -> Sequence[np.ndarray]:
        """First rows of every series, from the last one before it varies."""
        starts = np.where(begins < len(rows), np.maximum(begins - 1, 0), 0)
        return [
            column[start : start + self.burn_in]
            for column, start in zip(rows.values.T, starts.tolist(), strict=True)
        ]

    def _notice(self, rows: Batch, begins: np.ndarray) -> None:
        """Remember which series have varied, and the constants of the others."""
        for j in np.flatnonzero(self.is_constant & np.isnan(self.level)).tolist():
            self.level[j] = first_observed(rows.values[:, j], np.nan)
        self.is_constant &= begins >= len(rows)


@contextmanager
def interrupts_between_rows() -> Iterator[threading.Event]:
    """Defer Ctrl-C until the current rows are finished: it sets the event.

    The block checks it after every row, and returns; then KeyboardInterrupt is raised.
    Only in the main thread, and if the user has no handler installed.
    """
    interrupt = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    installs = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if installs:
        signal.signal(signal.SIGINT, lambda *_: interrupt.set())
    try:
        yield interrupt
    finally:
        if installs:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupt.is_set():
        raise KeyboardInterrupt
