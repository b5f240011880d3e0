"""Noise of known size around a level."""

import math

import numpy as np

from skvi.changepoint._rows import BurnIn, Row, State
from skvi.changepoint.base import POSITIVE, ObservationModel
from skvi.utils._validation import StrOptions

__all__ = ["KnownNoise"]


class KnownNoise(ObservationModel):
    """Noise of known size around a level that changes with the segment.

    Parameters
    ----------
    noise_scale : float or "auto", default="auto"
        Standard deviation of the noise, in units of the scale of the burn-in; "auto"
        takes it from the differences of neighboring rows.
    mean_scale : float, default=2.0
        Prior standard deviation of the level, in the same units.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint import BayesianChangepointDetector, KnownNoise
    >>> X = np.random.default_rng(0).standard_normal((90, 1))
    >>> X[40:] += 4.0
    >>> detector = BayesianChangepointDetector(
    ...     KnownNoise(noise_scale=1.0), scaling=None
    ... )
    >>> detector.fit(X).changepoints_
    array([40])
    """

    takes_parts = True
    instead_of_beta = (
        'Use loss="log", or Regression(noise_scale=..., noise_df=1000.0), whose '
        "noise is almost known."
    )
    _parameter_constraints: dict = {
        "noise_scale": [POSITIVE, StrOptions({"auto"})],
        "mean_scale": [POSITIVE],
    }

    def __init__(
        self, noise_scale: float | str = "auto", mean_scale: float = 2.0
    ) -> None:
        self.noise_scale = noise_scale
        self.mean_scale = mean_scale

    def prior(self, burn_in: BurnIn) -> State:
        """Normal distribution of the level; see `ObservationModel.prior`."""
        n, noise = burn_in.n_series, burn_in.noise
        if self.noise_scale != "auto":
            noise = np.full(n, float(self.noise_scale))
        precision = np.full(n, 1 / self.mean_scale**2)
        return {"mean": np.zeros(n), "precision": precision, "noise": noise}

    def log_predictive(self, state: State, row: Row) -> np.ndarray:
        """Normal; see `ObservationModel.log_predictive`."""
        mean, variance = self.moments(state, row)
        error = row.values - mean
        return -0.5 * (np.log(2 * math.pi * variance) + error * error / variance)

    def update(self, state: State, row: Row) -> State:
        """One more row; see `ObservationModel.update`."""
        return self.update_part(state, row, 1.0)

    def update_part(self, state: State, row: Row, weight: float) -> State:
        """A fraction of a row; see `ObservationModel.update_part`."""
        information = weight / state["noise"] ** 2
        precision = state["precision"] + information
        step = (row.values - state["mean"]) * information / precision
        return {
            "mean": state["mean"] + step,
            "precision": precision,
            "noise": state["noise"],
        }

    def moments(self, state: State, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """Moments of the level plus the noise; see `ObservationModel.moments`."""
        return state["mean"], 1 / state["precision"] + state["noise"] ** 2
