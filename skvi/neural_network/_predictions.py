"""Predictions of networks with normal noise, in units of y."""

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, column_or_1d

from skvi._regressors import check_levels, check_rows
from skvi.utils._random import make_generator, randn

__all__ = ["NormalPredictionMixin"]


class NormalPredictionMixin:
    """Mixin: a mixture of normals, one for each network that `_drawn` returns."""

    def predict(self, X, return_std=False):
        """Predict the mean of the target, averaged over networks.

        Parameters
        ----------
        X : array-like of shape (n, d)
        return_std : bool, default=False
            Whether to return standard deviations as well. They include the noise,
            as those of `sklearn.linear_model.BayesianRidge` do.

        Returns
        -------
        mean : ndarray of shape (n,)
        std : ndarray of shape (n,)
            Only with ``return_std=True``: the root of the variance between the
            networks plus that of the noise.
        """
        X = self._check_X(X)
        mean, std = self._drawn().moments(X).T.astype(X.dtype)
        return (mean, std) if return_std else mean

    def predict_quantiles(self, X, quantiles):
        """Predict quantiles of a new observation, noise included.

        Parameters
        ----------
        X : array-like of shape (n, d)
        quantiles : float or array-like of shape (q,)
            Probabilities in (0, 1).

        Returns
        -------
        ndarray of shape (n, q)
            One column for each of `quantiles`, exact for the mixture of normals
            that the drawn networks make.
        """
        X = self._check_X(X)
        levels = check_levels(quantiles)
        return self._drawn().quantiles(X, levels).astype(X.dtype)

    def predict_log_density(self, X, y):
        """Log predictive density of each target: the proper score of a forecast.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)

        Returns
        -------
        ndarray of shape (n,)
            In nats, in units of y, each row given the training data alone.
        """
        X = self._check_X(X)
        y = column_or_1d(check_array(y, ensure_2d=False, dtype=np.float64))
        check_rows(X, y)
        return self._drawn().log_density(X, y)

    def _predictive_normals(self, X):
        """Normals whose mixture is the predictive distribution.

        Means and standard deviations, (n, S), and None: equal weights.
        """
        mean = self._drawn().means(self._check_X(X))
        return mean, np.full_like(mean, self.noise_scale_), None

    def sample_y(self, X, n_samples=1, random_state=None):
        """Draw new observations from the posterior predictive distribution.

        Parameters
        ----------
        X : array-like of shape (n, d)
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        ndarray of shape (n, n_samples)
            Every column comes from one fresh network, the same for all rows, plus
            independent noise.
        """
        X = self._check_X(X)
        random_state = check_random_state(random_state)
        theta = self._draw(n_samples, random_state)
        generator = make_generator(random_state)
        f = self._drawn(theta).means(X)
        noise = self.noise_scale_ * randn(generator, n_samples, len(X)).numpy()
        return (f + noise.T).astype(X.dtype)
