"""Predictions of networks with noise, in units of y."""

from sklearn.utils import check_random_state

from skvi._regressors import check_rows
from skvi.utils._random import make_generator
from skvi.utils._validation import check_levels

__all__ = ["NoisyPredictionMixin"]


class NoisyPredictionMixin:
    """Mixin: mixtures of the predictions of the networks that `_drawn` returns.

    For several targets arrays have another axis. Numbers in units of y are float64 also
    if X is float32: its rounding of a large target would exceed the noise.
    """

    def predict(self, X, return_std=False):
        """Predict the mean of the target, averaged over networks.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        return_std : bool, default=False
            Whether to return standard deviations as well. They include the noise, like
            those of `sklearn.linear_model.BayesianRidge`.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        std : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Only with ``return_std=True``: the square root of the variance between the
            networks plus that of the noise, averaged over the networks. Infinite for
            Student-t noise of at most two degrees of freedom.
        """
        X = self._check_X(X)
        moments = self._predictive(X).moments()
        mean, std = moments[:, 0], moments[:, 1]
        return (mean, std) if return_std else mean

    def predict_quantiles(self, X, quantiles):
        """Predict quantiles of a new observation, noise included.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        quantiles : float or array-like of shape (n_quantiles,)
            Probabilities in (0, 1).

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles) or (n_samples, n_quantiles, n_outputs)
            One column for each of `quantiles`, exact for the mixture of the drawn
            networks.
        """
        X = self._check_X(X)
        levels = check_levels(quantiles)
        return self._predictive(X).quantiles(levels)

    def predict_log_density(self, X, y):
        """Log predictive density of each target: the proper score of a forecast.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats, in units of y, each row given the training data alone; for K
            targets jointly.
        """
        X = self._check_X(X)
        y = self._model.response.encode(y)
        check_rows(X, y)
        return self._predictive(X).log_density(y)

    def _predictive_normals(self, X):
        """Normals whose mixture is the predictive distribution.

        Means and standard deviations, (n, S) or (n, K, S), and None: equal weights.
        Nothing if the noise is not normal.
        """
        return self._predictive(self._check_X(X)).normals()

    def sample_y(self, X, n_samples=1, random_state=None):
        """Draw new observations from the posterior predictive distribution.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_outputs, n_samples)
            Every column comes from one fresh network, the same for all rows, plus
            independent noise.
        """
        X = self._check_X(X)
        random_state = check_random_state(random_state)
        predictive = self._predictive(X, self._draw(n_samples, random_state))
        device = predictive.draws.theta.device
        return predictive.observations(make_generator(random_state, device))
