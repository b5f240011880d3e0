"""Predictions of linear regression, in units of y, for one or several targets."""

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted

from skvi._regressors import check_rows
from skvi.utils._arrays import as_tensor
from skvi.utils._random import make_generator
from skvi.utils._scale_mixture import mixture_log_density, mixture_quantiles
from skvi.utils._validation import check_levels

__all__ = ["RegressionPredictionMixin", "SampledLinearFunction"]


class RegressionPredictionMixin:
    """Mixin: predictions from a posterior of coefficients, with noise."""

    def predict(self, X, return_std=False, return_cov=False):
        """Predict the mean of the target.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        return_std : bool, default=False
            Whether to return standard deviations as well. They include the noise, like
            those of `sklearn.linear_model.BayesianRidge`.
        return_cov : bool, default=False
            Whether to return the covariance between the rows, noise included. Not
            together with `return_std`.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        std : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Only with ``return_std=True``. Infinite if the noise has a hyperprior and
            fewer than three rows, and for Student-t noise of at most two degrees of
            freedom.
        cov : ndarray of shape (n_samples, n_samples)
            Only with ``return_cov=True``; for several targets of shape (n_samples,
            n_samples, n_outputs).

        Raises
        ------
        RuntimeError
            Both are requested.
        """
        if return_std and return_cov:
            raise RuntimeError("Use return_std or return_cov, not both.")
        X = self._check_X(X)
        if self._n_columns:
            found = [o.predict(X, return_std, return_cov) for o in self.outputs_]
            if not (return_std or return_cov):
                return np.stack(found, 1)
            means, covs = zip(*found, strict=True)
            return np.stack(means, 1), np.stack(covs, -1)
        if self._is_drawn():
            return self._predict_from_draws(X, return_std, return_cov)
        mean, variance = self._function_moments(X)
        mean = mean.numpy()
        if return_std:
            total = (variance + self._noise_variance()).sqrt()
            return mean, total.numpy()
        return (mean, self._covariance(X)) if return_cov else mean

    def _predict_from_draws(self, X, return_std, return_cov):
        draws, unit = self._drawn(), self._model.likelihood.standard_variance
        mixture = self._mixture(X)
        moments = draws.moments(X) if mixture is None else mixture.moments()
        mean, std = moments.T
        if return_cov:
            covariance = np.atleast_2d(np.cov(draws.means(X)))
            noise = unit * float(draws.noise.square().mean()) * np.eye(len(mean))
            return mean, covariance + noise
        return (mean, std) if return_std else mean

    def predict_quantiles(self, X, quantiles):
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
        if (mixture := self._mixture(X)) is not None:
            return mixture.quantiles(levels)
        if self._is_drawn():
            return self._drawn().quantiles(X, levels)
        mean, variance = self._function_moments(X)
        offsets = mixture_quantiles(variance, *self._noise_nodes(), levels)
        return (mean[:, None] + offsets).numpy()

    def predict_log_density(self, X, y):
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
        if (mixture := self._mixture(X)) is not None:
            return mixture.log_density(y)
        if self._is_drawn():
            return self._drawn().log_density(X, y)
        mean, variance = self._function_moments(X)
        z = as_tensor(y) - mean
        return mixture_log_density(z, variance, *self._noise_nodes()).numpy()

    def _predictive_normals(self, X):
        """Normals whose mixture is the predictive distribution.

        Means and standard deviations, (n, S), and weights, (S,); for K targets (n, K,
        S) and (K, S). None if the noise is not normal.
        """
        X = self._check_X(X)
        one = self.outputs_[0] if self._n_columns else self
        if not one._model.likelihood.is_normal:
            return None
        if self._n_columns:
            found = [o._predictive_normals(X) for o in self.outputs_]
            size = max(len(weights) for _, _, weights in found)
            parts = zip(*(_with_empty(size, *one) for one in found), strict=True)
            return tuple(np.stack(part, -2) for part in parts)
        if self._is_drawn():
            draws = self._drawn()
            mean = draws.means(X)
            std = draws.noise[:, 0].numpy() * np.ones_like(mean)
            return mean, std, np.full(mean.shape[1], 1 / mean.shape[1])
        if self._exact is not None:
            return self._exact_normals(X)
        mean, variance = self._function_moments(X)
        noise, log_w = self._noise_nodes()
        std = (variance[:, None] + noise).sqrt()
        return mean[:, None].expand_as(std).numpy(), std.numpy(), log_w.exp().numpy()

    def sample_y(self, X, n_samples=1, random_state=None):
        """Draw new observations from the posterior predictive distribution.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples_X, n_features)
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples)
            For several targets of shape (n_samples_X, n_outputs, n_samples). Every
            column uses one draw of the coefficients and of the noise precision, the
            same for all rows, plus independent noise.
        """
        X, random_state = self._check_X(X), check_random_state(random_state)
        if self._n_columns:
            draws = [o.sample_y(X, n_samples, random_state) for o in self.outputs_]
            return np.stack(draws, 1)
        theta = self._draw(n_samples, random_state)
        generator = make_generator(random_state)
        noise = self._noise(theta, (n_samples, X.shape[0]), generator)
        f = self._functions(X, theta)
        return (f + noise).T.numpy()

    def sample_posterior(self, n_samples=1, random_state=None):
        """Draw parameters from the fitted posterior.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        dict of str to ndarray
            In units of X and y: "coef" of shape (n_samples, n_features) or (n_samples,
            n_outputs, n_features), "intercept" of shape (n_samples,) or (n_samples,
            n_outputs), and, if they have hyperpriors, "noise_precision" and
            "coef_precision".
        """
        check_is_fitted(self)
        if self._n_columns:
            random_state = check_random_state(random_state)
            draws = [o.sample_posterior(n_samples, random_state) for o in self.outputs_]
            return {name: np.stack([d[name] for d in draws], 1) for name in draws[0]}
        return self._in_units(self._draw(n_samples, random_state))

    def sample_function(self, random_state=None):
        """Draw one function from the posterior: the same coefficients for every X.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        callable
            X of shape (n_samples, n_features) -> values of shape (n_samples,) or
            (n_samples, n_outputs), without noise. All calls evaluate the same function,
            so that the draw can be plotted, optimized, or evaluated anywhere.
        """
        draws = self.sample_posterior(1, random_state)
        intercept = draws["intercept"][0] if "intercept" in draws else 0.0
        return SampledLinearFunction(draws["coef"][0], intercept)


def _with_empty(size, mean, std, weights):
    """Normals of one target, and more of weight zero, up to a number of them."""
    more = [(0, 0), (0, size - len(weights))]
    mean, std = (np.pad(part, more, mode="edge") for part in (mean, std))
    return mean, std, np.pad(weights, more[1])


class SampledLinearFunction:
    """One linear function, or n_outputs of them, drawn from a posterior."""

    def __init__(self, coef, intercept):
        self.coef, self.intercept = coef, intercept

    def __call__(self, X):
        """Evaluate the function: (n_samples,) or (n_samples, n_outputs)."""
        X = check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32])
        return X @ self.coef.T + self.intercept
