"""Shared by all regressors: the units of the target, and predictions."""

from __future__ import annotations  # short types in help()

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from skvi.base._layout import Units
from skvi.exceptions import IncompatibleComponentsError
from skvi.utils._blocks import Blocks
from skvi.utils._validation import (
    check_levels,
    interval_levels,
    median_distance,
    weighted_median,
)

# Squares of larger numbers, or of the inverses of smaller ones, and sums of them
# overflow.
LARGEST = 1e140
# Steps in the scale of a target up to which noise may be as narrow as one: it is where
# a fit explains 99 % of the variance. Wider noise has a density.
COARSE = 10.0
# Largest distance from a grid, in steps.
OFF = 1e-2

Grid = tuple[float, float]


def units_of(
    y: np.ndarray,
    weight: np.ndarray | None,
    given: Units | None,
    standardize: bool,
    centered: bool,
    robust: bool = False,
    blocks: Blocks | None = None,
) -> Units:
    """Origin and scale of a target, (n_samples,), for a fit; `given` ones are kept.

    Moments of `blocks` are those of their first look.
    `robust` takes the median and 1.4826 times the median absolute deviation. Without an
    intercept the origin is 0. Raises ValueError if squares overflow.
    """
    largest = float(np.abs(y).max())
    if largest > LARGEST or 0 < largest < 1 / LARGEST:
        raise ValueError(
            f"y has values up to {largest:.2g}; their squares or inverse squares "
            "leave the range of floats. Multiply y by a power of ten."
        )
    if given is not None or not standardize:
        return given or Units(0.0, 1.0)
    w = np.ones(len(y)) if weight is None else weight
    if blocks is None:
        mean, scale = (_median_units if robust else _mean_units)(y, w, centered)
    elif not robust:
        mean = blocks.look.moments[1] if centered else 0.0
        scale = blocks.look.root_mean_square(mean)
    else:
        raise IncompatibleComponentsError(
            "X in blocks of dask",
            "units of y by sums, and robust losses and noises take its median",
            "normalize_y=False, likelihood='gaussian' and loss='log', or arrays",
        )
    # A target that varies by rounding alone has no scale.
    is_constant = scale <= 2 * np.finfo(float).eps * abs(mean)
    return Units(mean, 1.0 if is_constant else scale)


def constants_message(y: np.ndarray, given: str) -> str:
    """Say that one row, or equal ones, tell nothing of a scale; empty for others.

    `given` is a parameter that gives the noise.
    """
    if not (np.ptp(y, axis=0) == 0).any():
        return ""
    equal = f"{len(y)} rows with equal values of y tell"
    return (
        f"{'one row tells' if len(y) == 1 else equal} nothing of the scale of y or of "
        "its noise, so that standard deviations and intervals have no meaning; give "
        f"both, as in {given} and normalize_y=False"
    )


def coarse_grid(y: np.ndarray, weight: np.ndarray | None) -> Grid | None:
    """Step and origin of a target whose noise may be as narrow as its step, or None.

    Values occur at least twice on average, all distances are multiples of the smallest
    one, and the scale of y is at most `COARSE` of these. The units of y do not matter.
    """
    n_rows = float(len(y))
    if weight is not None:
        y, weight = y[weight > 0], weight[weight > 0]
        n_rows = float(weight.sum())
    values = np.unique(y)
    if not 2 <= len(values) <= n_rows / 2:
        return None
    low, gap = float(values[0]), float(np.diff(values).min())
    numbers = np.round((values - low) / gap)
    step = float((values - low) @ numbers / (numbers @ numbers))
    off = np.abs(values - low - step * numbers)
    scale = units_of(y, weight, None, True, True, robust=True).y_scale
    return None if off.max() > OFF * step or scale > COARSE * step else (step, low)


def names_of_units(centered: bool) -> tuple[str, ...]:
    """Quantities that a prior takes from a standardized target, for ``plug_in``."""
    return ("y_mean", "y_scale") if centered else ("y_scale",)


def noise_in(units: Units, noise_scale: Any) -> float | str:
    """Scale of the noise in the units of a fit; "learn" where it is not a number."""
    is_given = isinstance(noise_scale, Real | np.ndarray)
    return noise_scale / units.y_scale if is_given else "learn"


class ForecastMixin:
    """Mixin: forecasts by the distributions of new targets, `_predictive(X)`.

    For several targets arrays have another axis.
    """

    def predict_interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Predict a central interval for a new observation, noise included.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        coverage : float, default=0.9
            Predictive probability of the interval, in (0, 1).

        Returns
        -------
        ndarray of shape (n_samples, 2)
            Lower and upper end. For several targets, shape (n_samples, 2, n_outputs).
        """
        levels = interval_levels(type(self).__name__, coverage)
        return self.predict_quantiles(X, levels)

    def predict_quantiles(self, X: Any, quantiles: ArrayLike) -> np.ndarray:
        """Predict quantiles of a new observation, noise included.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        quantiles : float or array-like of shape (n_quantiles,)
            Probabilities in (0, 1).

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles)
            One column for each of `quantiles`; for several targets of shape (n_samples,
            n_quantiles, n_outputs). They are those of the whole posterior, or of the
            draws that represent it, to about 1e-6.
        """
        levels = check_levels(quantiles)
        return self._predictive(self._check_X(X)).quantiles(levels)

    def predict_log_density(self, X: Any, y: Any) -> np.ndarray:
        """Log predictive density of each target: the proper score of a forecast.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats, in units of y, each row given the training data alone; of several
            targets jointly. Of rounded numbers the mean density over the step, which
            for integers is their log probability.
        """
        X = self._check_X(X)
        y = self._encode(y)
        check_rows(X, y)
        return self._predictive(X).log_density(y)

    def sample_y(
        self,
        X: Any,
        n_draws: int = 1,
        random_state: int | np.random.RandomState | None = None,
    ) -> np.ndarray:
        """Draw new observations from the posterior predictive distribution.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        n_draws : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        ndarray of shape (n_samples, n_draws)
            For several targets of shape (n_samples, n_outputs, n_draws). Every column
            uses one draw of the posterior, the same for all rows, such as for sums over
            rows, plus independent noise.
        """
        X = self._check_X(X)
        return self._new_targets(X, n_draws, check_random_state(random_state))

    def _encode(self, y):
        return self._model.response.encode(y)

    def _new_targets(self, X, n_draws, random_state):
        theta = self._draw(n_draws, random_state)
        return self._observations(X, theta, random_state)

    def _cumulative(self, X):
        """Distribution function of new observations in rows of X."""
        return self._predictive(self._check_X(X)).cdf

    def _predictive_normals(self, X):
        """Normals whose mixture is the predictive distribution.

        Means and standard deviations, (n, S), and weights, (S,); for K targets (n, K,
        S) and of networks (S,), else (K, S). None if the noise is not normal.
        """
        return self._predictive(self._check_X(X)).normals()


def check_rows(X, y):
    """Raise if X and y have different numbers of rows."""
    if len(y) != X.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows, but y has {len(y)}.")


def _mean_units(y, w, centered):
    # Relative to a row, so that a large origin of y does not round the mean.
    origin = float(y[0])
    mean = origin + float(np.average(y - origin, weights=w)) if centered else 0.0
    # Squares of very large or small numbers leave the range of floats.
    largest = max(float(np.abs(y - mean).max()), 1e-300)
    squared = ((y - mean) / largest) ** 2
    return mean, largest * float(np.sqrt(np.average(squared, weights=w)))


def _median_units(y, w, centered):
    """Median and scaled median absolute deviation; the mean's if that is 0."""
    median = weighted_median(y, w) if centered else 0.0
    scale = median_distance(y, w, median)
    return (median, scale) if scale > 0 else _mean_units(y, w, centered)
