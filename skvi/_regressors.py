"""What all regressors share: the units of the target, and what they predict."""

import math
from numbers import Real

import numpy as np
from sklearn.utils.validation import check_array, column_or_1d

from skvi.posteriors import Posterior
from skvi.utils._robust import median_distance, weighted_median
from skvi.utils._validation import Interval, validate_arguments

__all__ = ["StandardizedTargetMixin"]

# Squares of larger targets, or of the inverses of smaller ones, are no floats.
LARGEST = 1e150


class StandardizedTargetMixin:
    """Mixin: targets that are standardised for the fit, predictions in units of y.

    The estimator owes `normalize_y`, `loss_function_` and `predict_quantiles`.
    """

    _reads_units = True
    #: Whether losses other than log loss get the median and its deviations as units.
    _robust_units = False

    @property
    def _centres_target(self):
        """Without an intercept a shift of the target would stand for one."""
        return getattr(self, "fit_intercept", True)

    @property
    def _has_robust_units(self):
        return self._robust_units and not self.loss_function_.is_log_loss

    def _encode(self, y, reset=True):
        if reset and y.ndim == 1 and y.dtype == np.float64:
            return y  # fits have checked it
        y = check_array(y, ensure_2d=False, dtype=np.float64)
        return column_or_1d(y, warn=True)

    def _standardize(self, y, sample_weight):
        """Return the standardised target; remember how to go back."""
        mean, scale, constant = 0.0, 1.0, 0.0
        largest = float(np.abs(y).max())
        if largest > LARGEST or 0 < largest < 1 / LARGEST:
            raise ValueError(
                f"y has values up to {largest:.2g}; their squares or inverse squares "
                "leave the range of floats. Multiply y by a power of ten."
            )
        w = np.ones(len(y)) if sample_weight is None else sample_weight
        given = self._prior_units()
        if given is not None:
            mean, scale = given.y_mean, given.y_scale
        elif self.normalize_y:
            units = _median_units if self._has_robust_units else _mean_units
            mean, scale = units(y, w, self._centres_target)
            # A constant target has no scale, up to rounding.
            if scale <= 1e-12 * max(abs(mean), 1e-300):
                scale = 1.0
        # The density of y itself: the Jacobian of the standardisation. Other losses
        # act on the standardised target.
        if scale != 1 and self.loss_function_.is_log_loss:
            constant = -float(w.sum()) * math.log(scale)
        # At once: `evidence_bounds` comes here, too, and may be interrupted.
        self._y_mean, self._y_scale, self._constant = mean, scale, constant
        return (y - mean) / scale

    def _taken_from_y(self):
        """The prior refers to the standardised target: its units come from y."""
        if not self.normalize_y or self._prior_units() is not None:
            return ()
        return ("y_mean", "y_scale") if self._centres_target else ("y_scale",)

    def _prior_units(self):
        """Units of the fit whose posterior is the prior; None where there is none."""
        return self.prior_.units if isinstance(self.prior_, Posterior) else None

    def predict_interval(self, X, coverage=0.9):
        """Predict a central interval for a new observation, noise included.

        Parameters
        ----------
        X : array-like of shape (n, d)
        coverage : float, default=0.9
            Probability that the interval gives to the observation, in (0, 1).

        Returns
        -------
        ndarray of shape (n, 2)
            Lower and upper end; of shape (n, 2, K) for a target of K columns.
        """
        validate_arguments(
            type(self).__name__,
            {"coverage": coverage},
            {"coverage": [Interval(Real, 0, 1, closed="neither")]},
        )
        tail = (1 - coverage) / 2
        return self.predict_quantiles(X, [tail, 1 - tail])


def check_levels(quantiles):
    """Return probabilities as an array, (q,).

    Raises
    ------
    ValueError
        They are not between 0 and 1.
    """
    levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    inside = np.all((levels > 0) & (levels < 1))
    if levels.ndim != 1 or not len(levels) or not inside:
        raise ValueError(
            f"quantiles must be probabilities between 0 and 1. Got {quantiles!r}."
        )
    return levels


def check_rows(X, y):
    """Raise where X and y have different numbers of rows."""
    if len(y) != X.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows, but y has {len(y)}.")


def _mean_units(y, w, centred):
    mean = float(np.average(y, weights=w)) if centred else 0.0
    # Squares of very large or small numbers leave the range of floats.
    largest = max(float(np.abs(y - mean).max()), 1e-300)
    squared = ((y - mean) / largest) ** 2
    return mean, largest * float(np.sqrt(np.average(squared, weights=w)))


def _median_units(y, w, centred):
    """Median and 1.4826 times the median distance; the mean's where that is 0."""
    median = weighted_median(y, w) if centred else 0.0
    scale = median_distance(y, w, median)
    return (median, scale) if scale > 0 else _mean_units(y, w, centred)
