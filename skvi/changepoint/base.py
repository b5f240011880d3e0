"""What an observation model and a hazard must implement."""

from numbers import Real

import numpy as np

from skvi.base import Component
from skvi.changepoint._rows import BurnIn, Row, State
from skvi.utils._validation import Interval, StrOptions

__all__ = [
    "Hazard",
    "ObservationModel",
    "RegressionModel",
    "SegmentModel",
]

POSITIVE = Interval(Real, 0, None, closed="neither")


class SegmentModel(Component):
    """Distribution of the rows of one segment: the interface shared by all models.

    Models extend `ObservationModel` or `RegressionModel`.

    Attributes
    ----------
    support : {"real", "count", "binary"}
        Type of the values of a series.
    order : int
        Number of past rows that a row depends on.
    takes_parts : bool
        Whether a row can be given a fractional weight, as under ``KL(weight=2.0)``.
    instead_of_beta : str
        Advice of the detector if a beta loss is requested and not available.

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
    takes_parts = False
    instead_of_beta = 'Use loss="log", or regressions, such as Regression.'

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


class RegressionModel(SegmentModel):
    r"""Base class of linear regressions on a row's past and its features.

    Every series j has its own coefficients and its own noise variance, both unknown,

    .. math:: y_j = \phi_j^\top w_j + \epsilon, \quad \epsilon \sim N(0, \sigma_j^2),

    with the conjugate prior: :math:`w_j | \sigma_j^2` is normal and
    :math:`\sigma_j^2` inverse gamma.

    Parameters
    ----------
    noise_scale : float or "auto", default="auto"
        A typical standard deviation of the noise, in units of the scale of the
        burn-in; "auto" takes it from the differences of neighboring rows.
    noise_df : float, default=3.0
        Number of rows that the prior of the noise is worth.

    Attributes
    ----------
    shares_design : bool
        Whether all series have the same regressors. They then share one matrix, and a
        row with any missing value is left out by all models.
    is_level : bool
        Whether the only regressor is the constant 1, which is then never requested.

    Examples
    --------
    Segments with a slope in the time that stands in column 1 of X:

    >>> import numpy as np
    >>> from skvi.changepoint import BayesianChangepointDetector, RegressionModel
    >>> class Trend(RegressionModel):
    ...     def regressors(self, row):
    ...         return np.array([[1.0, row.features[0]]])
    ...
    ...     def coefficient_prior(self, burn_in):
    ...         return np.zeros(2), np.full(2, 5.0)
    >>> t = np.arange(80) / 40.0
    >>> noise = 0.05 * np.random.default_rng(0).standard_normal(80)
    >>> X = np.column_stack([np.where(t < 1, t, 2 - t) + noise, t])
    >>> detector = BayesianChangepointDetector(Trend(), feature_columns=[1])
    >>> detector.fit(X).changepoints_
    array([39])
    """

    takes_parts = True
    is_level = False
    _parameter_constraints: dict = {
        "noise_scale": [POSITIVE, StrOptions({"auto"})],
        "noise_df": [POSITIVE],
    }

    def __init__(
        self, noise_scale: float | str = "auto", noise_df: float = 3.0
    ) -> None:
        self.noise_scale = noise_scale
        self.noise_df = noise_df

    def segment_regressors(self, age: np.ndarray) -> np.ndarray:
        """Regressors that depend on the age of the segment, such as a trend.

        Parameters
        ----------
        age : int ndarray of any shape
            Number of rows of the segment before the row.

        Returns
        -------
        ndarray of shape (..., q)
            They are appended to those of `regressors`. By default there are none: q =
            0.
        """
        return np.zeros((*age.shape, 0))

    def regressors(self, row: Row) -> np.ndarray:
        """Regressors of a row.

        Parameters
        ----------
        row : Row
            Its values must not be used.

        Returns
        -------
        ndarray of shape (n_series, p - q) or (1, p - q)
            All except the q `segment_regressors`.
        """
        raise NotImplementedError

    def coefficient_prior(self, burn_in: BurnIn) -> tuple[np.ndarray, np.ndarray]:
        """Prior mean and standard deviation of the coefficients.

        Parameters
        ----------
        burn_in : BurnIn
            Sizes.

        Returns
        -------
        mean, scale : ndarray of shape (p,)
            In the units in which models see the series. The standard deviation is given
            at the prior value of the noise; it is proportional to the noise.
        """
        raise NotImplementedError


class ObservationModel(SegmentModel):
    """Distribution of the rows of one segment: base class for custom models.

    A model keeps, for each of K hypotheses ("the segment began at row 17"), a few
    arrays that sum up the rows of the segment so far: its *state*, a dict of arrays
    of shape (K, n_series, ...). It predicts the next row, and updates the state with
    it, for all hypotheses at once. Series are independent given the model. A model need
    not handle missing values: its results are not used for them.

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
        raise NotImplementedError

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
            Name -> array of the same shape.
        """
        raise NotImplementedError

    def update_part(self, state: State, row: Row, weight: float) -> State:
        """State updated with a row of fractional weight.

        Only called, in place of `update`, under ``KL(weight=...)``, and for models with
        ``takes_parts = True``.

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
        raise NotImplementedError

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
        raise NotImplementedError


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
        raise NotImplementedError
