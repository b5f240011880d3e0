"""Models of one kind, whose hypotheses are computed together."""

from collections.abc import Sequence

import numpy as np

from skvi.changepoint._conjugate import Regressions, prior_of
from skvi.changepoint.base import (
    BurnIn,
    ObservationModel,
    RegressionModel,
    Row,
    State,
)

__all__ = ["ConjugateGroup", "Group", "SingleModel"]


class Group:
    """Some of a detector's models, with the arithmetic of their hypotheses.

    Every hypothesis has a place in the state's arrays, (K, ...), and says in the array
    "member" which of the group's models it is about. `score` comes before `learn`.
    """

    models: Sequence[int]  # their numbers among the detector's models

    def prior(self) -> State:
        """State of one new hypothesis for each model, (n_models, ...)."""
        raise NotImplementedError

    def score(self, state: State, row: Row) -> np.ndarray:
        """Log density of every value of a row, (K, n_series)."""
        raise NotImplementedError

    def learn(self, state: State, row: Row, usable: np.ndarray | None) -> None:
        """Take the row of the last `score` into the state, in place.

        Series that are not usable stay as they are; None if all are.
        """
        raise NotImplementedError

    def log_power_integral(self, state: State, power: float) -> np.ndarray:
        """Log of the integral of the density of the last `score`, to a power."""
        raise NotImplementedError

    def moments(self, state: State, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the prediction of a row, (K, n_series) each."""
        raise NotImplementedError


class SingleModel(Group):
    """One model with its own arithmetic."""

    def __init__(self, number: int, model: ObservationModel, burn_in: BurnIn) -> None:
        self.models = [number]
        self.model, self.burn_in = model, burn_in

    def prior(self) -> State:
        """See `Group.prior`."""
        prior = self.model.prior(self.burn_in)
        return {name: np.asarray(a, float)[None] for name, a in prior.items()}

    def score(self, state: State, row: Row) -> np.ndarray:
        """See `Group.score`."""
        return self.model.log_predictive(state, row)

    def learn(self, state: State, row: Row, usable: np.ndarray | None) -> None:
        """See `Group.learn`."""
        for name, array in self.model.update(state, row).items():
            assign(state[name], array, usable)

    def moments(self, state: State, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """See `Group.moments`."""
        return self.model.moments(state, row)


class ConjugateGroup(Group):
    """Regressions under the log loss; shorter ones are padded with idle regressors.

    Parameters
    ----------
    numbers : sequence of int
    models : sequence of RegressionModel
        All with a design that series share, or all without.
    burn_in : BurnIn
    temper : float
        Weight of every row: the inverse of the weight of the KL divergence.
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
        self.sizes = [len(model.coefficient_prior(burn_in)[0]) for model in models]
        self._row: Row | None = None
        self._scored: Regressions | None = None

    def prior(self) -> State:
        """See `Group.prior`."""
        size = max(self.sizes)
        priors = [prior_of(model, self.burn_in, size) for model in self.members]
        return {name: np.stack([p[name] for p in priors]) for name in priors[0]}

    def _regressions(self, state: State, row: Row) -> Regressions:
        """Predictions of a row, which are the same until hypotheses change."""
        if row is not self._row or self._scored is None:
            design = self.design(row)
            if len(design) > 1:
                design = design[state["member"]]
            self._row, self._scored = row, Regressions(state, design)
        return self._scored

    def design(self, row: Row) -> np.ndarray:
        """Regressors of all models, (n_models, G, p)."""
        parts = [model.regressors(row) for model in self.members]
        if len(parts) == 1:
            return parts[0][None]
        sets = max(len(part) for part in parts)
        found = np.zeros((len(parts), sets, max(self.sizes)))
        for place, part in zip(found, parts, strict=True):
            place[:, : part.shape[1]] = part
        return found

    def score(self, state: State, row: Row) -> np.ndarray:
        """See `Group.score`."""
        return self._regressions(state, row).log_density(row.values)

    def learn(self, state: State, row: Row, usable: np.ndarray | None) -> None:
        """See `Group.learn`."""
        found = self._regressions(state, row).learned(self.temper)
        for name, array in found.items():
            assign(state[name], array, usable)
        self._row = self._scored = None

    def moments(self, state: State, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """See `Group.moments`."""
        return self._regressions(state, row).moments()


def assign(place: np.ndarray, array: np.ndarray, usable: np.ndarray | None) -> None:
    """Write new values of the usable series, on axis 1, over the old ones."""
    if usable is None or place.shape[1] != len(usable):
        place[...] = array
    else:
        place[:, usable] = array[:, usable]
