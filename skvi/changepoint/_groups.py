"""Models of one kind, whose hypotheses are computed together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skvi.changepoint._conjugate import Designs, Regressions, prior_of
from skvi.changepoint._rows import BurnIn, Row, State, Window
from skvi.changepoint.base import ObservationModel, RegressionModel

__all__ = ["ConjugateGroup", "Group", "Reading", "SingleModel"]


@dataclass(frozen=True)
class Reading:
    """Predictive distributions of rows by hypotheses, before each is seen.

    Log density, mean and variance have shape (R, n_series, K).
    """

    log_density: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    def log_power_integral(self, power: float) -> np.ndarray:
        """Log of the integrals of the densities to a power, (R, n_series, K)."""
        raise NotImplementedError

    @classmethod
    def empty(cls, n_rows: int, n_series: int, n_hypotheses: int) -> "Reading":
        """Allocate a reading; hypotheses that do not exist stay 0."""
        shape = (n_rows, n_series, n_hypotheses)
        return cls(np.zeros(shape), np.zeros(shape), np.zeros(shape))


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
        prior = self.prior() | {"member": np.arange(len(self.models))}
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
        reading = Reading.empty(len(rows), usable.shape[1], len(state["member"]))
        for i, (row, seen, n) in enumerate(zip(rows, usable, born, strict=True)):
            part = {name: array[:n] for name, array in state.items()}
            found = self.read_one(part, row, seen)
            reading.log_density[i, :, :n] = found[0].T
            reading.mean[i, :, :n], reading.variance[i, :, :n] = found[1].T, found[2].T
        return reading

    def read_one(self, state: State, row: Row, usable: np.ndarray) -> tuple:
        """Log density, mean and variance, (K, n_series) each, of one row; learn it."""
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

    def read_one(self, state: State, row: Row, usable: np.ndarray) -> tuple:
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


class ConjugateGroup(Group):
    """Regressions under the log loss; shorter ones are padded with zero regressors.

    Either all models have a design that the series share, or none has. `temper`, the
    weight of every row, is the inverse of the weight of the KL divergence.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        models: Sequence[RegressionModel],
        burn_in: BurnIn,
        temper: float = 1.0,
    ) -> None:
        self.models, self.members, self.burn_in = numbers, models, burn_in
        self.temper = temper
        self.designs = Designs(models, burn_in)
        self.n_sets = 1 if models[0].shares_design else burn_in.n_series

    def prior(self) -> State:
        """See `Group.prior`."""
        size = max(self.designs.sizes)
        priors = [prior_of(model, self.burn_in, size) for model in self.members]
        return {name: np.stack([p[name] for p in priors]) for name in priors[0]}

    def n_parameters(self) -> int:
        """See `Group.n_parameters`: coefficients and noise."""
        return self.burn_in.n_series * (max(self.designs.sizes) + 1)

    def read_one(self, state: State, row: Row, usable: np.ndarray) -> tuple:
        """See `Group.read_one`."""
        design = self.designs.of_hypotheses(
            self.designs.of_row(row, self.n_sets),
            state["member"],
            row.index - state["start"],
        )
        found = Regressions(state, design)
        density, moments = found.log_density(row.values), found.moments()
        if usable.any():
            for name, array in found.learned(self.temper).items():
                assign(state[name], array, usable)
        return density, *moments


def assign(place: np.ndarray, array: np.ndarray, usable: np.ndarray) -> None:
    """Write new values of the usable series, on axis 1, over the old ones."""
    if usable.all() or place.shape[1] != len(usable):
        place[...] = array
    else:
        place[:, usable] = array[:, usable]
