"""Predictions of linear regression, in units of y, for one or several targets."""

from __future__ import annotations  # short types in help()

import math
from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._regressors import check_rows, predict_interval
from skvi._predictive._mixtures import (
    DrawnPredictive,
    NormalPredictive,
    QuadraturePredictive,
)
from skvi.linear_model._coefficients import DrawnCoefficients
from skvi.posteriors._mixture import MixtureOverScales
from skvi.solvers._exact import LEAST_SHAPE
from skvi.targets._precisions import exponent
from skvi.utils._blocks import by_blocks
from skvi.utils._tensors import make_generator
from skvi.utils._validation import check_array, check_levels


class RegressionPredictionMixin:
    """Mixin: predictions from a posterior of coefficients, with noise."""

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
        return self._predictive(X).quantiles(levels)

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
            return self._predictive(X).cdf
        cdfs = [output._cumulative(X) for output in self.outputs_]
        return lambda y: np.stack([F(x) for F, x in zip(cdfs, y.T, strict=True)], 1)

    def _observations(self, X, theta, random_state):
        """One new target given each draw, (n, S)."""
        return self._from_draws(X, theta).observations(make_generator(random_state))

    def _predictive(self, X):
        """Distributions of new targets in the rows of validated X."""
        model, coefficients = self._model, self._coefficients
        if isinstance(coefficients, DrawnCoefficients):
            return self._from_draws(X, coefficients.theta)
        if self._exact is not None:
            return coefficients.predictive(X, self.n_jobs)
        moments = coefficients.functions_at_nodes(X, self.n_jobs)
        log_noise, log_w = self._log_noise_at_nodes(), coefficients.log_weights
        if model.likelihood.is_normal:
            nodes = *moments, torch.exp(2 * log_noise), log_w
            return NormalPredictive(model.likelihood, model.units, *nodes)
        likelihood = clone(model.likelihood).set_params(noise_scale="learn")
        normals = moments[0], moments[1].sqrt(), log_w
        return QuadraturePredictive(likelihood, model.units, *normals, log_noise)

    def _from_draws(self, X, theta):
        """New targets given draws of all parameters, (S, P)."""
        if "noise_precision" in (layout := self.posterior_.layout):
            scale = torch.exp(-0.5 * theta[:, layout["noise_precision"].slice])
        else:
            scale = torch.full_like(theta[:, :1], self._noise_scale_of_fit())
        noise, units = self._model.likelihood._at_scale(scale), self._model.units
        return DrawnPredictive(noise, units, self._drawn(theta), X)

    def _noise_scale_of_fit(self):
        return self.noise_scale_ / self._model.units.y_scale

    def _log_noise_at_nodes(self):
        """Logs of the scale of the noise in the units of the fit, (K,)."""
        if "noise_precision" in self.posterior_.layout:
            return -0.5 * self._log_precisions()
        log_w = self._coefficients.log_weights
        return torch.full_like(log_w, math.log(self._noise_scale_of_fit()))

    def _log_precisions(self):
        """Logs of the noise precision at the nodes, or of its draws."""
        posterior = self.posterior_
        if isinstance(posterior, MixtureOverScales):
            return posterior.places()[:, -1]
        return self._coefficients.theta[:, -1]

    def _noise_variance(self):
        """Mean variance of the noise; infinite for one or two rows, by its prior."""
        unit = self._model.likelihood._standard_variance
        if self._exact is not None:
            return unit * self._exact.noise_variance
        if "noise_precision" not in self.posterior_.layout:
            return unit * self._noise_scale_of_fit() ** 2
        tail = exponent(self._model.gammas["noise_hyperprior"])
        if tail + 0.5 * self._total_weight < LEAST_SHAPE:
            return math.inf
        variances = torch.exp(-self._log_precisions())
        if isinstance(self.posterior_, MixtureOverScales):
            return unit * float(self.posterior_.log_weights.exp() @ variances)
        return unit * float(variances.mean())

    @overload
    def predict(
        self, X: Any, return_std: Literal[False] = ..., return_cov: Literal[False] = ...
    ) -> np.ndarray: ...

    @overload
    def predict(
        self, X: Any, return_std: bool = ..., return_cov: bool = ...
    ) -> Any: ...

    @by_blocks
    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False
    ) -> Any:
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
            Only with ``return_std=True``. Infinite for a single row, with a Gamma
            hyperprior of the noise for two, and for Student-t noise of at most two
            degrees of freedom.
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
        mean, variance = self._coefficients.functions(X, self.n_jobs)
        units = self._model.units
        mean = mean.numpy() * units.y_scale + units.y_mean
        if return_std:
            total = (variance + self._noise_variance()).sqrt().numpy()
            return mean, total * units.y_scale
        if not return_cov:
            return mean
        noise = self._noise_variance() * np.eye(len(mean))
        covariance = self._coefficients.function_covariance(X, self.n_jobs)
        return mean, (covariance + noise) * units.y_scale**2

    def predict_uncertainty(self, X: Any) -> dict[str, np.ndarray]:
        """Predict how uncertain a new observation is, for both reasons apart.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        dict of str to ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Standard deviations in units of y: "noise_std" of the noise ("aleatoric"),
            and "function_std" of the mean ("epistemic"), which more rows would reduce.
            Their squares sum to that of ``predict(X, return_std=True)``.
        """
        X = self._check_X(X)
        if self._n_columns:
            found = [o.predict_uncertainty(X) for o in self.outputs_]
            return {name: np.stack([f[name] for f in found], 1) for name in found[0]}
        variance = self._coefficients.functions(X, self.n_jobs)[1]
        unit = self._model.units.y_scale
        noise = np.full(len(variance), math.sqrt(self._noise_variance()) * unit)
        return {"noise_std": noise, "function_std": variance.sqrt().numpy() * unit}

    def _predictive_normals(self, X):
        """Normals whose mixture is the predictive distribution.

        Means and standard deviations, (n, S), and weights, (S,); for K targets (n, K,
        S) and (K, S). None if the noise is not normal.
        """
        X = self._check_X(X)
        if self._n_columns:
            found = [o._predictive_normals(X) for o in self.outputs_]
            if found[0] is None:
                return None
            size = max(len(weights) for _, _, weights in found)
            parts = zip(*(_with_empty(size, *one) for one in found), strict=True)
            return tuple(np.stack(part, -2) for part in parts)
        return self._predictive(X).normals()

    def sample_posterior(
        self, n_draws: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> dict[str, np.ndarray]:
        """Draw parameters from the fitted posterior.

        Parameters
        ----------
        n_draws : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        dict of str to ndarray
            In units of X and y: "coef" of shape (n_draws, n_features) or (n_draws,
            n_outputs, n_features), "intercept" of shape (n_draws,) or (n_draws,
            n_outputs), and, if it has a hyperprior, "noise_precision".
        """
        check_is_fitted(self)
        if self._n_columns:
            random_state = check_random_state(random_state)
            draws = [o.sample_posterior(n_draws, random_state) for o in self.outputs_]
            return {name: np.stack([d[name] for d in draws], 1) for name in draws[0]}
        return self._in_units(self._draw(n_draws, random_state))

    def sample_function(
        self, random_state: int | np.random.RandomState | None = None
    ) -> Callable[[Any], np.ndarray]:
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
