"""Rows on their way into a stream: they wait until their units have been measured."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from skvi.changepoint._assembly import Settings
from skvi.changepoint._input import check_order
from skvi.changepoint._scaling import (
    clock_of,
    first_change,
    first_observed,
    measure,
    scale_of,
)
from skvi.changepoint._stream import Stream

__all__ = ["Batch", "Feed"]


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
        labels = None if self.labels is None else self.labels[rows]
        times = None if self.times is None else self.times[rows]
        return Batch(self.values[rows], self.features[rows], labels, times)

    @staticmethod
    def join(parts: Sequence["Batch"]) -> "Batch":
        """Concatenate rows, and their labels and times if all have some."""

        def joined(columns: list) -> np.ndarray | None:
            return None if any(c is None for c in columns) else np.concatenate(columns)

        return Batch(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.features for part in parts]),
            joined([part.labels for part in parts]),
            joined([part.times for part in parts]),
        )


class Feed:
    """A stream, and the rows after it whose units are not settled yet.

    Units are measured from `burn_in` rows, those from which the series begins to vary:
    a constant series is 0 in any scale, and the rows since it varies wait once more.
    The stream of waiting rows, in units of those so far, is computed on request.
    """

    def __init__(
        self, settings: Settings, burn_in: int, n_kept: int, n_series: int
    ) -> None:
        self.settings, self.burn_in, self.n_kept = settings, burn_in, n_kept
        # The stream up to the first row that waits.
        self.settled: Stream | None = None
        self.waiting: Batch | None = None
        self.last_time = -np.inf
        # Series that have not varied so far, and their constants; NaN: never observed.
        self.is_constant = np.full(n_series, settings.scaling is None)
        self.level = np.full(n_series, np.nan)
        self._current: Stream | None = None
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
            rows = Batch.join([self.waiting, rows])
        self.waiting = self._current = None
        while len(rows):
            begins = self._begins(rows)
            n = self._n_settled(begins, len(rows))
            if n > len(rows) and not closes:
                self.waiting = rows
                return
            now, rows = rows[:n], rows[n:]
            if self.settled is None:
                self.measured = self._burn_in_of(now, begins)
            is_first = self.settled is None
            self.settled = self._settle(self.settled, now, begins)
            self._notice(now, begins)
            run(self.settled, now, name)
            if is_first:
                self.settled = self._normalized(self.settled, now, begins)

    @property
    def n_rows(self) -> int:
        """Number of rows so far."""
        n = 0 if self.settled is None else self.settled.filter.t
        return n + (0 if self.waiting is None else len(self.waiting))

    @property
    def current(self) -> Stream:
        """The stream after all rows, in units measured from those so far."""
        if self.waiting is None and self.settled is not None:
            return self.settled
        if self._current is None:
            rows = self.waiting
            stream = deepcopy(self.settled)
            begins, is_first = self._begins(rows), stream is None
            stream = self._settle(stream, rows, begins)
            run(stream, rows)
            self._current = (
                self._normalized(stream, rows, begins) if is_first else stream
            )
        return self._current

    def replay(self, rows: Batch) -> Self:
        """Return a feed of other rows in the same units, from the first row on."""
        other = copy(self)
        other.settled = self.settings.stream(self.current.scaling, len(rows))
        other.waiting = other._current = None
        run(other.settled, rows)
        return other

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
        if self.settled is not None:
            first = int(begins.min(initial=n_rows))
            if first > 0:
                return first
        n = 0 if self.settled is not None else self.burn_in
        for begin in np.sort(begins[begins < n_rows]).tolist():
            if begin < max(n, 1):
                n = max(n, begin + max(self.burn_in - 1, 1))
        return n

    def _settle(self, stream: Stream | None, rows: Batch, begins: np.ndarray) -> Stream:
        """Stream in units that suit the rows, which it has not processed yet."""
        columns = rows.values.T
        if stream is None:
            parts = self._burn_in_of(rows, begins)
            scaling = measure(parts, self.settings.scaling, rows.features.shape[1])
            scaling = replace(scaling, clock=clock_of(rows.times))
            return self.settings.stream(scaling, self.n_kept)
        location, scale = stream.scaling.location.copy(), stream.scaling.scale.copy()
        for j in np.flatnonzero(self.is_constant).tolist():
            if np.isnan(self.level[j]):
                location[j] = first_observed(columns[j], location[j])
            if begins[j] < len(rows):
                varied = columns[j, begins[j] :][: max(self.burn_in - 1, 1)]
                scale[j] = scale_of(np.append(location[j], varied))
        stream.scaling = replace(stream.scaling, location=location, scale=scale)
        return stream

    def _normalized(self, stream: Stream, rows: Batch, begins: np.ndarray) -> Stream:
        """The stream of the first rows, or that of their normal scores if it is better.

        The evidence pays a nat for each knot, as in Akaike's criterion.
        """
        if not self.settings.normalizes:
            return stream
        parts, n_features = self._burn_in_of(rows, begins), rows.features.shape[1]
        scaling = measure(parts, self.settings.scaling, n_features, scores=True)
        if not scaling.n_knots:
            return stream
        other = self.settings.stream(scaling, self.n_kept)
        run(other, rows)
        gain = other.log_evidence - stream.log_evidence
        return other if gain > scaling.n_knots else stream

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


def run(stream: Stream, rows: Batch, name: str | None = None) -> None:
    """Push rows, until the last one or Ctrl-C; print the progress under a name."""
    told = time.monotonic()
    with interrupts_between_rows() as interrupt:
        i = 0
        while i < len(rows) and not interrupt.is_set():
            rest = rows[i:]
            i += stream.push(rest.values, rest.features, rest.labels, rest.times)
            if name and time.monotonic() > told + 1:
                told = time.monotonic()
                print(f"[{name}] row {i} of {len(rows)}", flush=True)  # noqa: T201


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
