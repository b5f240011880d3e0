"""Counts and binary series with conjugate priors."""

import numpy as np
from scipy.special import gammaln

from skvi.changepoint.base import POSITIVE, BurnIn, ObservationModel, Row, State

__all__ = ["BernoulliTrials", "PoissonCounts"]


class PoissonCounts(ObservationModel):
    """Poisson counts; their rate changes with the segment, and has a gamma prior.

    Parameters
    ----------
    shape : float, default=1.0
        Shape of the gamma prior, whose mean is that of the burn-in: the prior is worth
        about this number of counted events.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint import BayesianChangepointDetector, PoissonCounts
    >>> rng = np.random.default_rng(0)
    >>> X = np.r_[rng.poisson(2.0, 50), rng.poisson(9.0, 50)][:, None]
    >>> BayesianChangepointDetector(PoissonCounts()).fit(X).changepoints_
    array([50])
    """

    support = "count"
    takes_parts = True
    instead_of_beta = (
        'Use loss="log", or Regression for 2 * sqrt(X + 3 / 8), whose noise is '
        "about 1 whatever the rate."
    )
    _parameter_constraints: dict = {"shape": [POSITIVE]}

    def __init__(self, shape: float = 1.0) -> None:
        self.shape = shape

    def prior(self, burn_in: BurnIn) -> State:
        """Gamma distribution of the rate; see `ObservationModel.prior`."""
        shape = np.full(burn_in.n_series, float(self.shape))
        return {"shape": shape, "rate": shape / np.maximum(burn_in.mean, 0.1)}

    def log_predictive(self, state: State, row: Row) -> np.ndarray:
        """Negative binomial; see `ObservationModel.log_predictive`."""
        a, b, y = state["shape"], state["rate"], row.values
        return (
            gammaln(a + y)
            - gammaln(a)
            - gammaln(y + 1)
            - a * np.log1p(1 / b)
            - y * np.log1p(b)
        )

    def update(self, state: State, row: Row) -> State:
        """One more count; see `ObservationModel.update`."""
        return self.update_part(state, row, 1.0)

    def update_part(self, state: State, row: Row, weight: float) -> State:
        """A fraction of a row; see `ObservationModel.update_part`."""
        return {
            "shape": state["shape"] + weight * row.values,
            "rate": state["rate"] + weight,
        }

    def moments(self, state: State, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """Moments of the negative binomial; see `ObservationModel.moments`."""
        mean = state["shape"] / state["rate"]
        return mean, mean * (1 + 1 / state["rate"])


class BernoulliTrials(ObservationModel):
    """Zeros and ones; the probability of 1 changes with the segment.

    Parameters
    ----------
    ones, zeros : float, default=1.0
        Parameters of the beta prior of this probability: the number of rows of either
        kind that the prior is worth.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint import BayesianChangepointDetector, BernoulliTrials
    >>> rng = np.random.default_rng(0)
    >>> X = np.r_[rng.random(80) < 0.1, rng.random(80) < 0.8][:, None].astype(int)
    >>> BayesianChangepointDetector(BernoulliTrials()).fit(X).changepoints_
    array([80])
    """

    support = "binary"
    takes_parts = True
    instead_of_beta = 'Use loss="log": zeros and ones have no outliers.'
    _parameter_constraints: dict = {"ones": [POSITIVE], "zeros": [POSITIVE]}

    def __init__(self, ones: float = 1.0, zeros: float = 1.0) -> None:
        self.ones = ones
        self.zeros = zeros

    def prior(self, burn_in: BurnIn) -> State:
        """Beta distribution of the probability; see `ObservationModel.prior`."""
        n = burn_in.n_series
        return {"ones": np.full(n, self.ones), "zeros": np.full(n, self.zeros)}

    def log_predictive(self, state: State, row: Row) -> np.ndarray:
        """Log probability of 0 or 1; see `ObservationModel.log_predictive`."""
        ones, zeros = state["ones"], state["zeros"]
        return np.log(np.where(row.values > 0.5, ones, zeros)) - np.log(ones + zeros)

    def update(self, state: State, row: Row) -> State:
        """One more row; see `ObservationModel.update`."""
        return self.update_part(state, row, 1.0)

    def update_part(self, state: State, row: Row, weight: float) -> State:
        """A fraction of a row; see `ObservationModel.update_part`."""
        return {
            "ones": state["ones"] + weight * row.values,
            "zeros": state["zeros"] + weight * (1 - row.values),
        }

    def moments(self, state: State, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """Moments of a Bernoulli variable; see `ObservationModel.moments`."""
        p = state["ones"] / (state["ones"] + state["zeros"])
        return p, p * (1 - p)
