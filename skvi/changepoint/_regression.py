"""Regressions with conjugate priors: constants, autoregressions, exogenous features."""

from numbers import Integral

import numpy as np

from skvi.changepoint._rows import BurnIn, Row
from skvi.changepoint.base import POSITIVE, RegressionModel
from skvi.utils._validation import Interval

__all__ = [
    "Autoregression",
    "ConstantMean",
    "LinearRegression",
    "LinearTrend",
    "VectorAutoregression",
]

ORDER = [Interval(Integral, 1, None, closed="left")]


class ConstantMean(RegressionModel):
    """Noise around a level; both the level and the noise change with the segment.

    Parameters
    ----------
    mean_scale : float, default=2.0
        Prior standard deviation of the level, in units of the scale of the burn-in.
    noise_scale : float or "auto", default="auto"
        A typical standard deviation of the noise, in units of the scale of the
        burn-in; "auto" takes it from the differences of neighboring rows.
    noise_df : float, default=3.0
        Number of rows that the prior of the noise is worth.

    Examples
    --------
    >>> from skvi.changepoint import ConstantMean
    >>> ConstantMean(noise_scale=0.1)
    ConstantMean(noise_scale=0.1)
    """

    _parameter_constraints: dict = {
        "mean_scale": [POSITIVE],
        **RegressionModel._parameter_constraints,
    }

    def __init__(
        self,
        mean_scale: float = 2.0,
        noise_scale: float | str = "auto",
        noise_df: float = 3.0,
    ) -> None:
        super().__init__(noise_scale, noise_df)
        self.mean_scale = mean_scale

    @property
    def is_level(self) -> bool:
        """True except in subclasses with other regressors."""
        return type(self).regressors is ConstantMean.regressors

    def regressors(self, row: Row) -> np.ndarray:
        """1; see `RegressionModel.regressors`."""
        return np.ones((1, 1))

    def coefficient_prior(self, burn_in: BurnIn) -> tuple[np.ndarray, np.ndarray]:
        """Prior of the level; see `RegressionModel.coefficient_prior`."""
        return np.zeros(1), np.array([self.mean_scale])


class LinearTrend(RegressionModel):
    r"""Noise around a straight line in time.

    .. math:: y_{t} = c + w \, (t - s) / 100 + \epsilon

    where s is the first row of the segment: the lines of adjacent segments need not be
    connected.

    Parameters
    ----------
    mean_scale : float, default=2.0
        Prior standard deviation of the level c at the first row, in units of the scale
        of the burn-in.
    slope_scale : float, default=2.0
        Prior standard deviation of the change w in a hundred rows, in the same units.
    noise_scale : float or "auto", default="auto"
        A typical standard deviation of the noise, in units of the scale of the
        burn-in; "auto" takes it from the differences of neighboring rows.
    noise_df : float, default=3.0
        Number of rows that the prior of the noise is worth.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint import BayesianChangepointDetector
    >>> t = np.arange(120)
    >>> line = np.where(t < 70, 0.05 * t, 5.0 - 0.1 * (t - 70))
    >>> X = line[:, None] + 0.2 * np.random.default_rng(0).standard_normal((120, 1))
    >>> BayesianChangepointDetector("linear_trend").fit(X).changepoints_
    array([70])
    """

    _parameter_constraints: dict = {
        "mean_scale": [POSITIVE],
        "slope_scale": [POSITIVE],
        **RegressionModel._parameter_constraints,
    }

    def __init__(
        self,
        mean_scale: float = 2.0,
        slope_scale: float = 2.0,
        noise_scale: float | str = "auto",
        noise_df: float = 3.0,
    ) -> None:
        super().__init__(noise_scale, noise_df)
        self.mean_scale = mean_scale
        self.slope_scale = slope_scale

    def regressors(self, row: Row) -> np.ndarray:
        """1; see `RegressionModel.regressors`."""
        return np.ones((1, 1))

    def segment_regressors(self, age: np.ndarray) -> np.ndarray:
        """Age in hundreds of rows; see `RegressionModel.segment_regressors`."""
        return age[..., None] / 100

    def coefficient_prior(self, burn_in: BurnIn) -> tuple[np.ndarray, np.ndarray]:
        """Prior of c and w; see `RegressionModel.coefficient_prior`."""
        return np.zeros(2), np.array([self.mean_scale, self.slope_scale])


class Autoregression(RegressionModel):
    r"""Every series depends on its own previous rows.

    .. math:: y_{t} = c + \sum_{i=1}^{p} w_i \, y_{t-i} + \epsilon

    Parameters
    ----------
    order : int, default=1
        Number p of lagged rows.
    mean_scale : float, default=2.0
        Prior standard deviation of c, in units of the scale of the burn-in.
    coef_scale : float, default=1.0
        Prior standard deviation of the coefficients w.
    noise_scale : float or "auto", default="auto"
        A typical standard deviation of the noise, in units of the scale of the
        burn-in; "auto" takes it from the differences of neighboring rows.
    noise_df : float, default=3.0
        Number of rows that the prior of the noise is worth.

    Notes
    -----
    The first rows of a segment depend on the last ones of the segment before it. The
    first `order` rows of a series have no past: they are conditioned on, and not scored
    by any model of a detector.

    Examples
    --------
    >>> from skvi.changepoint import Autoregression
    >>> Autoregression(order=3)
    Autoregression(order=3)
    """

    _parameter_constraints: dict = {
        "order": ORDER,
        "mean_scale": [POSITIVE],
        "coef_scale": [POSITIVE],
        **RegressionModel._parameter_constraints,
    }

    def __init__(
        self,
        order: int = 1,
        mean_scale: float = 2.0,
        coef_scale: float = 1.0,
        noise_scale: float | str = "auto",
        noise_df: float = 3.0,
    ) -> None:
        super().__init__(noise_scale, noise_df)
        self.order = order
        self.mean_scale = mean_scale
        self.coef_scale = coef_scale

    def regressors(self, row: Row) -> np.ndarray:
        """1 and the previous rows; see `RegressionModel.regressors`."""
        found = np.ones((len(row.values), 1 + self.order))
        found[:, 1:] = row.past[: self.order].T
        return found

    def coefficient_prior(self, burn_in: BurnIn) -> tuple[np.ndarray, np.ndarray]:
        """Prior of c and w; see `RegressionModel.coefficient_prior`."""
        scale = np.full(1 + self.order, float(self.coef_scale))
        scale[0] = self.mean_scale
        return np.zeros(1 + self.order), scale


class VectorAutoregression(Autoregression):
    r"""Every series depends on the previous rows of all series.

    .. math:: y_{t} = c + \sum_{i=1}^{p} W_i \, y_{t-i} + \epsilon

    Parameters
    ----------
    order : int, default=1
        Number p of lagged rows.
    mean_scale : float, default=2.0
        Prior standard deviation of c, in units of the scale of the burn-in.
    coef_scale : float, default=0.3
        Prior standard deviation of the coefficients, the entries of W.
    noise_scale : float or "auto", default="auto"
        A typical standard deviation of the noise, in units of the scale of the
        burn-in; "auto" takes it from the differences of neighboring rows.
    noise_df : float, default=3.0
        Number of rows that the prior of the noise is worth.

    Notes
    -----
    A row with a missing value, and the `order` rows after it, are left out. The noise
    is independent between series. See `Autoregression` for the first rows.

    Examples
    --------
    >>> from skvi.changepoint import VectorAutoregression
    >>> VectorAutoregression(order=2)
    VectorAutoregression(order=2)
    """

    shares_design = True

    def __init__(
        self,
        order: int = 1,
        mean_scale: float = 2.0,
        coef_scale: float = 0.3,
        noise_scale: float | str = "auto",
        noise_df: float = 3.0,
    ) -> None:
        super().__init__(order, mean_scale, coef_scale, noise_scale, noise_df)

    def regressors(self, row: Row) -> np.ndarray:
        """1 and the previous rows of all series; see `RegressionModel.regressors`."""
        return np.concatenate([[1.0], row.past[: self.order].ravel()])[None]

    def coefficient_prior(self, burn_in: BurnIn) -> tuple[np.ndarray, np.ndarray]:
        """Prior of c and W; see `RegressionModel.coefficient_prior`."""
        n_coef = 1 + self.order * burn_in.n_series
        scale = np.full(n_coef, float(self.coef_scale))
        scale[0] = self.mean_scale
        return np.zeros(n_coef), scale

    def usable(self, observed: np.ndarray, features: np.ndarray) -> np.ndarray:
        """All series or none; see `SegmentModel.usable`."""
        return np.broadcast_to(
            observed.all((1, 2))[:, None], (len(observed), observed.shape[2])
        )


class LinearRegression(RegressionModel):
    r"""Every series depends on exogenous features of the row.

    .. math:: y_{t} = c + w^\top x_t + \epsilon

    Parameters
    ----------
    coef_scale : float, default=1.0
        Prior standard deviation of the coefficients w, in units of the scale of the
        burn-in per unit of the features, which are not scaled.
    mean_scale : float, default=2.0
        Prior standard deviation of c, in units of the scale of the burn-in.
    noise_scale : float or "auto", default="auto"
        A typical standard deviation of the noise, in units of the scale of the
        burn-in; "auto" takes it from the differences of neighboring rows.
    noise_df : float, default=3.0
        Number of rows that the prior of the noise is worth.

    Notes
    -----
    The features are the columns of X listed in the detector's `feature_columns`. A row
    with a missing feature is left out.

    Examples
    --------
    >>> from skvi.changepoint import LinearRegression
    >>> LinearRegression(coef_scale=2.0)
    LinearRegression(coef_scale=2.0)
    """

    _parameter_constraints: dict = {
        "coef_scale": [POSITIVE],
        "mean_scale": [POSITIVE],
        **RegressionModel._parameter_constraints,
    }

    def __init__(
        self,
        coef_scale: float = 1.0,
        mean_scale: float = 2.0,
        noise_scale: float | str = "auto",
        noise_df: float = 3.0,
    ) -> None:
        super().__init__(noise_scale, noise_df)
        self.coef_scale = coef_scale
        self.mean_scale = mean_scale

    def regressors(self, row: Row) -> np.ndarray:
        """1 and the features; see `RegressionModel.regressors`."""
        return np.concatenate([[1.0], row.features])[None]

    def coefficient_prior(self, burn_in: BurnIn) -> tuple[np.ndarray, np.ndarray]:
        """Prior of c and w; see `RegressionModel.coefficient_prior`."""
        scale = np.full(1 + burn_in.n_features, float(self.coef_scale))
        scale[0] = self.mean_scale
        return np.zeros(len(scale)), scale

    def usable(self, observed: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Nothing where a feature is missing; see `SegmentModel.usable`."""
        return observed.all(1) & np.isfinite(features).all(1, keepdims=True)
