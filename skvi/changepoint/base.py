"""What an observation model and a hazard must implement, and what they see."""

from dataclasses import dataclass
from numbers import Real

import numpy as np

from skvi.base._component import Component
from skvi.utils._validation import Interval

__all__ = [
    "BurnIn",
    "ConstantHazard",
    "Hazard",
    "ObservationModel",
    "Row",
    "SegmentModel",
    "State",
]

POSITIVE = Interval(Real, 0, None, closed="neither")

State = dict[str, np.ndarray]


@dataclass(frozen=True)
class BurnIn:
    """Scales of the burn-in of a series, from which models set their priors.

    Parameters
    ----------
    n_series : int
        Number of columns that are modeled.
    n_features : int
        Number of feature columns, for regressions.
    noise : ndarray of shape (n_series,)
        A typical standard deviation of the noise, from the differences of
        neighboring rows, in the units in which models see the series.
    mean : ndarray of shape (n_series,)
        Mean of the rows, in the same units.
    dispersion : ndarray of shape (n_series,) or float, default=0.0
        Dispersion of counts: their variance is mean + dispersion * mean ** 2.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint.base import BurnIn
    >>> BurnIn(1, 0, noise=np.array([0.3]), mean=np.zeros(1)).n_series
    1
    """

    n_series: int
    n_features: int
    noise: np.ndarray
    mean: np.ndarray
    dispersion: np.ndarray | float = 0.0


@dataclass(frozen=True)
class Row:
    """One row of a series, as models see it: in units of the scale of the burn-in.

    Parameters
    ----------
    values : ndarray of shape (n_series,)
        The row; 0 where it is missing or cannot be used.
    past : ndarray of shape (order, n_series)
        The rows before it, most recent first.
    features : ndarray of shape (n_features,)
        Features of the row.
    index : int
        Index of the row in the series.
    time : float, default=0.0
        Its time, in typical steps from one row to the next.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint.base import Row
    >>> Row(np.ones(1), np.zeros((0, 1)), np.zeros(0), index=7).values
    array([1.])
    """

    values: np.ndarray
    past: np.ndarray
    features: np.ndarray
    index: int
    time: float = 0.0


class SegmentModel(Component):
    """Distribution of the rows of one segment: the interface shared by all models.

    Models extend `ObservationModel` or `RegressionModel`.

    Attributes
    ----------
    support : {"real", "count", "binary"}
        Type of the values of a series.
    order : int
        Number of past rows that a row depends on.
    instead_of_beta : str
        Advice of the detector if a beta loss is requested and not available; empty if
        it is.

    Notes
    -----
    Models with different supports have densities in different units and are never
    compared. The attributes are class attributes or properties.

    Examples
    --------
    >>> from skvi.changepoint import PoissonCounts, Regression
    >>> Regression(order=2).order, PoissonCounts().support
    (2, 'count')
    """

    support = "real"
    order = 0
    shares_design = False
    instead_of_beta = 'loss="log", or regressions, such as Regression'

    def usable(self, observed: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Which series of each row the model can predict and learn from.

        Parameters
        ----------
        observed : bool ndarray of shape (n_rows, order + 1, n_series)
            Which values are observed: of each row itself, then of those before it.
        features : ndarray of shape (n_rows, n_features)
            Features of the rows.

        Returns
        -------
        bool ndarray of shape (n_rows, n_series)
            By default, true if the value and the `order` values before it are observed.
        """
        return observed.all(1)


class ObservationModel(SegmentModel):
    """Distribution of the rows of one segment: base class for custom models.

    A model keeps, for each of K hypotheses ("the segment began at row 17"), a few
    arrays that sum up the rows of the segment so far: its *state*, a dict of arrays
    of shape (K, n_series, ...). It predicts the next row, and updates the state with
    it, for all hypotheses at once: a subclass must implement `prior`, `log_predictive`,
    `moments`, and `update` or, for fractions of a row too, `update_part`. Series are
    independent given the model. A model need not handle missing values: its results are
    not used for them.

    Examples
    --------
    Waiting times with an exponential distribution of unknown rate, whose conjugate
    prior is a gamma distribution:

    >>> import numpy as np
    >>> from skvi.changepoint import BayesianChangepointDetector, ObservationModel
    >>> class Exponential(ObservationModel):
    ...     def __init__(self, shape=1.0):
    ...         self.shape = shape
    ...
    ...     def prior(self, burn_in):
    ...         shape = np.full(burn_in.n_series, self.shape)
    ...         return {"shape": shape, "total": shape * burn_in.mean}
    ...
    ...     def log_predictive(self, state, row):
    ...         a, b = state["shape"], state["total"]
    ...         return np.log(a) + a * np.log(b) - (a + 1) * np.log(b + row.values)
    ...
    ...     def update(self, state, row):
    ...         return {
    ...             "shape": state["shape"] + 1,
    ...             "total": state["total"] + row.values,
    ...         }
    ...
    ...     def moments(self, state, row):
    ...         mean = state["total"] / state["shape"]
    ...         return mean, mean**2
    >>> rng = np.random.default_rng(0)
    >>> X = np.r_[rng.exponential(1.0, 60), rng.exponential(8.0, 60)][:, None]
    >>> detector = BayesianChangepointDetector(Exponential(), scaling=None).fit(X)
    >>> detector.changepoints_
    array([61])
    """

    def prior(self, burn_in: BurnIn) -> State:
        """State before the first row of a segment.

        Parameters
        ----------
        burn_in : BurnIn
            Sizes, and scales for the prior.

        Returns
        -------
        dict
            Name -> array of shape (n_series, ...).
        """
        raise NotImplementedError(f"{type(self).__name__} must implement prior.")

    def log_predictive(self, state: State, row: Row) -> np.ndarray:
        """Log density of the row's values, given the segment so far.

        Parameters
        ----------
        state : dict
            Name -> array of shape (K, n_series, ...).
        row : Row

        Returns
        -------
        ndarray of shape (K, n_series)
            In nats.
        """
        raise NotImplementedError

    def update(self, state: State, row: Row) -> State:
        """State updated with the row; the given state is not modified.

        Parameters
        ----------
        state : dict
            Name -> array of shape (K, n_series, ...).
        row : Row

        Returns
        -------
        dict
            Name -> array of the same shape; by default that of `update_part`.
        """
        return self.update_part(state, row, 1.0)

    def update_part(self, state: State, row: Row, weight: float) -> State:
        """State updated with a row of fractional weight.

        Called in place of `update` under ``KLDivergence(weight=...)``, which models
        without it refuse.

        Parameters
        ----------
        state : dict
            Name -> array of shape (K, n_series, ...).
        row : Row
        weight : float
            Power of the likelihood of the row.

        Returns
        -------
        dict
            Name -> array of the same shape.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement update.")

    def moments(self, state: State, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the prediction of a row.

        Parameters
        ----------
        state : dict
            Name -> array of shape (K, n_series, ...).
        row : Row
            Its values must not be used.

        Returns
        -------
        mean, variance : ndarray of shape (K, n_series)
        """
        raise NotImplementedError(f"{type(self).__name__} must implement moments.")


class Hazard(Component):
    """Base class of hazards: the probability that a segment ends, given its length.

    Examples
    --------
    Segments that are never shorter than 10 rows:

    >>> import numpy as np
    >>> from skvi.changepoint import BayesianChangepointDetector, Hazard
    >>> class AtLeastTen(Hazard):
    ...     def probability(self, length):
    ...         return np.where(length < 10, 0.0, 0.01)
    >>> X = np.r_[np.zeros(30), np.ones(4), np.full(30, 2.0)][:, None]
    >>> X = X + 0.01 * np.sin(np.arange(64.0))[:, None]
    >>> BayesianChangepointDetector(hazard=AtLeastTen()).fit(X).changepoints_
    array([30, 40])
    """

    def probability(self, length: np.ndarray) -> np.ndarray:
        """Probability that a segment of the given length is complete.

        Parameters
        ----------
        length : int ndarray of shape (K,)
            Rows of segments so far, at least 1.

        Returns
        -------
        ndarray of shape (K,)
            In [0, 1]; each depends on its own length only.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement probability.")


class ConstantHazard(Hazard):
    """Every row is equally likely to begin a new segment.

    Parameters
    ----------
    mean_length : float, default=100.0
        Mean number of rows of a segment, more than 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint.base import ConstantHazard
    >>> ConstantHazard(mean_length=50.0).probability(np.array([1, 1000]))
    array([0.02, 0.02])
    """

    _parameter_constraints: dict = {
        "mean_length": [Interval(Real, 1, None, closed="neither")]
    }

    def __init__(self, mean_length: float = 100.0) -> None:
        self.mean_length = mean_length

    def probability(self, length: np.ndarray) -> np.ndarray:
        """1 / mean_length, whatever the length; see `Hazard.probability`."""
        return np.full(length.shape, 1 / self.mean_length)
