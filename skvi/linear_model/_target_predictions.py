"""Quantiles, densities and draws of new targets, of one or several columns."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from skvi._estimator._regressors import check_rows, predict_interval
from skvi.utils._tensors import make_generator
from skvi.utils._validation import check_levels


class TargetPredictionMixin:
    """Mixin: what follows from the predictive distributions of rows.

    A subclass has `_predicted(X, function, *columns)`, what a function gives for them,
    `_from_draws(X, theta)` and `_n_columns`, 0 if a target is a number.
    """

    predict_interval = predict_interval

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
            n_quantiles, n_outputs). With fixed or learned normal noise they are normal
            quantiles; if it has a hyperprior they are those of the normal f plus
            Student-t noise, integrated to rounding; those of other noise are integrated
            to about 1e-6.
        """
        levels, X = check_levels(quantiles), self._check_X(X)
        if self._n_columns:
            return np.stack([o.predict_quantiles(X, levels) for o in self.outputs_], -1)
        return self._predicted(X, lambda p: p.quantiles(levels))

    def predict_log_density(self, X: Any, y: Any) -> np.ndarray:
        """Log predictive density of each target: the proper score of a forecast.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats, in units of y, each row given the training data alone; summed over
            targets.
        """
        X = self._check_X(X)
        if self._n_columns:
            y = self._check_columns(y)
            check_rows(X, y)
            columns = zip(self.outputs_, y.T, strict=True)
            return sum(o.predict_log_density(X, column) for o, column in columns)
        y = self._model.response.encode(y)
        check_rows(X, y)
        return self._predicted(X, lambda p, y: p.log_density(y), y)

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
            For several targets of shape (n_samples, n_outputs, n_draws). Every
            column uses one draw of the coefficients and of the noise precision, the
            same for all rows, plus independent noise.
        """
        X, random_state = self._check_X(X), check_random_state(random_state)
        if self._n_columns:
            draws = [o.sample_y(X, n_draws, random_state) for o in self.outputs_]
            return np.stack(draws, 1)
        theta = self._draw(n_draws, random_state)
        return self._observations(X, theta, random_state)

    def _cumulative(self, X):
        """Distribution function of new observations in rows of X."""
        X = self._check_X(X)
        if not self._n_columns:
            return lambda y: self._predicted(X, lambda p, y: p.cdf(y), y)
        cdfs = [output._cumulative(X) for output in self.outputs_]
        return lambda y: np.stack([F(x) for F, x in zip(cdfs, y.T, strict=True)], 1)

    def _observations(self, X, theta, random_state, exposure=None):
        """One new target given each draw, (n, S)."""
        return self._from_draws(X, theta).observations(make_generator(random_state))
