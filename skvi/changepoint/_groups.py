"""Models of one kind, whose hypotheses are computed together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from skvi.changepoint.base import BurnIn, ObservationModel, Row, State

__all__ = ["Group", "Reading", "SingleModel", "Window", "assign"]


@dataclass(frozen=True)
class Window:
    """Consecutive rows, as arrays; single `Row` objects are made on request.

    `past`, (order + n_rows, n_series), has the rows before the first and the rows
    themselves; `index` is that of the first row, and `times` are (n_rows,).
    """

    values: np.ndarray
    past: np.ndarray
    features: np.ndarray
    index: int
    times: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Row]:
        order = len(self.past) - len(self.values)
        for i, (values, features, time) in enumerate(
            zip(self.values, self.features, self.times.tolist(), strict=True)
        ):
            past = self.past[i : i + order][::-1]
            yield Row(values, past, features, self.index + i, time)


@dataclass(frozen=True)
class Reading:
    """Predictive distributions of rows by hypotheses, before each is seen.

    All arrays have shape (R, n_series, K); those of hypotheses that do not exist are 0.
    `integral`, under a robust run-length loss only, is the log of the integral of the
    density to the power beta.
    """

    log_density: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    integral: np.ndarray | None = None


class Group:
    """Some of a detector's models, with the arithmetic of their hypotheses.

    A hypothesis has a position in the state's arrays, (K, ...). Its predictions do not
    depend on probabilities: many rows are read in one call, and weighted afterwards.
    """

    models: Sequence[int]  # their indices among the detector's models
    # Rows for whose new hypotheses there is room before the others are compacted: many
    # if a call costs more than the arithmetic of a hypothesis.
    rows_at_once = 16

    def prior(self) -> State:
        """State of one new hypothesis for each model, (n_models, ...)."""
        raise NotImplementedError

    def n_parameters(self) -> int:
        """Number of parameters of a segment, of all series, under the largest model."""
        raise NotImplementedError

    def fresh(self, n_rows: int) -> State:
        """States of the hypotheses that begin in some rows, row by row."""
        n = len(self.models)
        prior = self.prior() | {"member": np.arange(n), "begin": np.full(n, np.nan)}
        return {
            name: np.tile(array, (n_rows, *(1 for _ in array.shape[1:])))
            for name, array in prior.items()
        }

    def read(
        self, state: State, rows: Window, usable: np.ndarray, born: np.ndarray
    ) -> Reading:
        """Read rows one after the other, and update the state with each, in place.

        Only series that are `usable`, (R, n_series), change. At each row the first
        `born`, (R,), hypotheses exist.
        """
        found: list[np.ndarray] = []
        for i, (row, seen, n) in enumerate(zip(rows, usable, born, strict=True)):
            part = {name: array[:n] for name, array in state.items()}
            results = self.read_one(part, row, seen)
            if not found:
                shape = (len(rows), usable.shape[1], len(state["member"]))
                found = [np.zeros(shape) for _ in results]
            for place, result in zip(found, results, strict=True):
                place[i, :, :n] = result.T
        return Reading(*found)

    def read_one(
        self, state: State, row: Row, usable: np.ndarray
    ) -> Sequence[np.ndarray]:
        """What a `Reading` has of one row, (K, n_series) each; learn the row."""
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

    def read_one(self, state: State, row: Row, usable: np.ndarray) -> Sequence:
        """See `Group.read_one`."""
        # Copies: a model may return the state itself, which is about to change.
        density = np.array(self.model.log_predictive(state, row))
        mean, variance = map(np.array, self.model.moments(state, row))
        learned = (
            self.model.update(state, row)
            if self.temper == 1
            else self.model.update_part(state, row, self.temper)
        )
        for name, array in learned.items():
            assign(state[name], array, usable)
        return density, mean, variance


def assign(place: np.ndarray, array: np.ndarray, usable: np.ndarray) -> None:
    """Write new values of the usable series, on axis 1, over the old ones."""
    if usable.all() or place.shape[1] != len(usable):
        place[...] = array
    else:
        place[:, usable] = array[:, usable]
