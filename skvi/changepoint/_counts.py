"""Counts and binary series with conjugate priors."""

from numbers import Real

import numpy as np
from scipy.special import betaln, gammaln

from skvi.changepoint.base import POSITIVE, BurnIn, ObservationModel, Row, State
from skvi.utils._validation import Interval, StrOptions

__all__ = ["BernoulliTrials", "PoissonCounts"]

# Less is none: beside an overdispersed series a Poisson one has this.
LEAST_DISPERSION = 1e-6


class PoissonCounts(ObservationModel):
    r"""Poisson counts; their rate changes with the segment, and has a gamma prior.

    Overdispersed counts are negative binomial: with dispersion :math:`d` and mean
    :math:`m`, their variance is :math:`m + d m^2`, and :math:`1 / (1 + d m)` has a beta
    prior, which for :math:`d \to 0` is the gamma prior of the rate.

    Parameters
    ----------
    shape : float, default=1.0
        Shape of the gamma prior, whose mean is that of the burn-in: the prior is worth
        about this number of counted events.
    dispersion : float or "auto", default="auto"
        Dispersion of the counts, the same in all segments; 0 for Poisson counts.
        "auto" takes it from the differences of neighboring rows.

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
    _parameter_constraints: dict = {
        "shape": [POSITIVE],
        "dispersion": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
    }

    def __init__(self, shape: float = 1.0, dispersion: float | str = "auto") -> None:
        self.shape = shape
        self.dispersion = dispersion

    def prior(self, burn_in: BurnIn) -> State:
        """Gamma distribution of the rate; see `ObservationModel.prior`."""
        shape = np.full(burn_in.n_series, float(self.shape))
        given = self.dispersion
        return {
            "shape": shape,
            "rate": shape / np.maximum(burn_in.mean, 0.1),
            "dispersion": burn_in.dispersion if given == "auto" else given + 0 * shape,
        }

    def log_predictive(self, state: State, row: Row) -> np.ndarray:
        """(Beta) negative binomial; see `ObservationModel.log_predictive`."""
        a, b, y = state["shape"], state["rate"], row.values
        if state["dispersion"].any():
            size = 1 / np.maximum(state["dispersion"], LEAST_DISPERSION)
            c = 1 + size * b
            ways = gammaln(y + size) - gammaln(size) - gammaln(y + 1)
            return ways + betaln(c + size, a + y) - betaln(c, a)
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
        """Moments of the same; see `ObservationModel.moments`.

        Parameters
        ----------
        state : mapping of str to ndarray
        row : Row

        Returns
        -------
        mean, variance : ndarray
        """
        a, b, d = state["shape"], state["rate"], state["dispersion"]
        # c = 1 + b / d, all terms times a power of d. The variance is infinite for c <=
        # 2: below 3 a continuous extension replaces it.
        excess = np.maximum(b - d, (b + d) / 3)
        return a / b, a * (b + 1) * (b + d * a) / (excess * b * b)


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
