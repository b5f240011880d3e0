"""Models of segments: linear regressions, counts and binary series."""

import math
from numbers import Integral, Real

import numpy as np
from scipy.special import betaln, gammaln

from skvi.changepoint.base import (
    POSITIVE,
    BurnIn,
    ObservationModel,
    Row,
    SegmentModel,
    State,
)
from skvi.utils._validation import Interval, StrOptions

# Less is none: beside an overdispersed series a Poisson one has this.
LEAST_DISPERSION = 1e-6


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
        Number of rows that the prior of the noise is worth; infinite if the noise is
        known.

    Attributes
    ----------
    shares_design : bool
        Whether all series have the same regressors. They then share one matrix, and a
        row with any missing value is left out by all models.

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

    _parameter_constraints: dict = {
        "noise_scale": [POSITIVE, StrOptions({"auto"})],
        "noise_df": [Interval(Real, 0, None, closed="right")],
    }

    def __init__(
        self, noise_scale: float | str = "auto", noise_df: float = 3.0
    ) -> None:
        self.noise_scale = noise_scale
        self.noise_df = noise_df

    @property
    def instead_of_beta(self) -> str:
        """Advice where the noise is known; see `SegmentModel`."""
        if math.isfinite(self.noise_df):
            return ""
        return 'loss="log", or noise_df=1000.0: noise that is almost known'

    def segment_regressors(self, age: np.ndarray) -> np.ndarray:
        """Regressors that depend on the age of the segment, such as a trend.

        Parameters
        ----------
        age : ndarray of any shape
            Time since the first row of the segment, in typical steps between rows: the
            number of rows, if X has no index of dates or numbers.

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


class Regression(RegressionModel):
    r"""Noise around a level, a trend, past rows, features, or a sum of them.

    .. math::
        y_{t} = c + \sum_{i=1}^{p} w_i^\top y_{t-i} + v^\top x_t + u \, (t - s) / 100
        + \epsilon

    where s is the first row of the segment and the noise is independent between
    series. The coefficients and the noise change with the segment. With the defaults
    only the level c is there.

    Parameters
    ----------
    order : int, default=0
        Number p of past rows that a row depends on.
    across : bool, default=False
        Whether a series depends on the past of all series, or on its own only.
    trend : bool, default=False
        Whether the level changes linearly with time.
    features : bool, default=False
        Whether a row depends on its features :math:`x_t`, the columns of X that are
        listed in the detector's `feature_columns`. A row with a missing feature is left
        out.
    mean_scale : float, default=2.0
        Prior standard deviation of the level, with a trend at the first row of the
        segment, in units of the scale of the burn-in.
    coef_scale : float or "auto", default="auto"
        Prior standard deviation of the coefficients w and v: of the past without a
        unit, of features in units of the scale of the burn-in per unit of the feature,
        which is not scaled. "auto" is 0.3 with `across`, else 1.
    slope_scale : float, default=2.0
        Prior standard deviation of the change u in the time of a hundred rows, in units
        of the scale of the burn-in.
    noise_scale : float or "auto", default="auto"
        A typical standard deviation of the noise, in units of the scale of the
        burn-in; "auto" takes it from the differences of neighboring rows.
    noise_df : float, default=3.0
        Number of rows that the prior of the noise is worth; infinite if the noise is
        known.

    Notes
    -----
    The first rows of a segment depend on the last ones of the segment before it. The
    first `order` rows of a series have no past: they are conditioned on, and not scored
    by any model of a detector. With `across`, a row with a missing value, and the
    `order` rows after it, are left out. Lines of neighboring segments need not meet.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint import BayesianChangepointDetector, Regression
    >>> t = np.arange(120)
    >>> line = np.where(t < 70, 0.05 * t, 5.0 - 0.1 * (t - 70))
    >>> X = line[:, None] + 0.2 * np.random.default_rng(0).standard_normal((120, 1))
    >>> BayesianChangepointDetector(Regression(trend=True)).fit(X).changepoints_
    array([70])
    """

    _parameter_constraints: dict = {
        "order": [Interval(Integral, 0, None, closed="left")],
        "across": ["boolean"],
        "trend": ["boolean"],
        "features": ["boolean"],
        "mean_scale": [POSITIVE],
        "coef_scale": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "slope_scale": [POSITIVE],
        **RegressionModel._parameter_constraints,
    }

    def __init__(
        self,
        order: int = 0,
        across: bool = False,
        trend: bool = False,
        features: bool = False,
        mean_scale: float = 2.0,
        coef_scale: float | str = "auto",
        slope_scale: float = 2.0,
        noise_scale: float | str = "auto",
        noise_df: float = 3.0,
    ) -> None:
        super().__init__(noise_scale, noise_df)
        self.order = order
        self.across = across
        self.trend = trend
        self.features = features
        self.mean_scale = mean_scale
        self.coef_scale = coef_scale
        self.slope_scale = slope_scale

    @property
    def shares_design(self) -> bool:
        """Whether all series have the same regressors, their common past."""
        return self.across and self.order > 0

    def regressors(self, row: Row) -> np.ndarray:
        """1, the past and the features; see `RegressionModel.regressors`."""
        past = row.past[: self.order]
        past = past.ravel()[None] if self.across or not self.order else past.T
        parts = [np.ones((len(past), 1)), past]
        if self.features:
            parts.append(np.tile(row.features, (len(past), 1)))
        return np.concatenate(parts, axis=1)

    def segment_regressors(self, age: np.ndarray) -> np.ndarray:
        """Age in hundreds of steps; see `RegressionModel.segment_regressors`."""
        return age[..., None] / 100 if self.trend else super().segment_regressors(age)

    def coefficient_prior(self, burn_in: BurnIn) -> tuple[np.ndarray, np.ndarray]:
        """Prior of c, w, v and u; see `RegressionModel.coefficient_prior`."""
        n_past = self.order * (burn_in.n_series if self.across else 1)
        n_features = burn_in.n_features if self.features else 0
        given = self.coef_scale
        coef_scale = (0.3 if self.across else 1.0) if given == "auto" else given
        scale = [self.mean_scale] + [coef_scale] * (n_past + n_features)
        scale += [self.slope_scale] * self.trend
        return np.zeros(len(scale)), np.array(scale, dtype=float)

    def usable(self, observed: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Where all regressors are observed; see `SegmentModel.usable`."""
        axes = (1, 2) if self.shares_design else 1
        found = observed.all(axes, keepdims=True)[:, 0]
        if self.features:
            found = found & np.isfinite(features).all(1, keepdims=True)
        return np.broadcast_to(found, (len(observed), observed.shape[2]))


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
    instead_of_beta = (
        'loss="log", or Regression for 2 * sqrt(X + 3 / 8), whose noise is about 1 '
        "whatever the rate"
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
    instead_of_beta = 'loss="log": zeros and ones have no outliers'
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
