"""Predictions of linear regression, in units of y, for one or several targets."""

from __future__ import annotations  # short types in help()

import math
from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._regressors import ForecastMixin
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
from skvi.utils._validation import check_array


class RegressionPredictionMixin(ForecastMixin):
    """Mixin: predictions from a posterior of coefficients, with noise."""

    def _encode(self, y):
        return self._check_columns(y) if self._n_columns else super()._encode(y)

    def _new_targets(self, X, n_draws, random_state):
        if not self._n_columns:
            return super()._new_targets(X, n_draws, random_state)
        draws = [o.sample_y(X, n_draws, random_state) for o in self.outputs_]
        return np.stack(draws, 1)

    def _observations(self, X, theta, random_state):
        """One new target given each draw, (n, S)."""
        return self._from_draws(X, theta).observations(make_generator(random_state))

    def _predictive(self, X):
        """Distributions of new targets in the rows of validated X."""
        if self._n_columns:
            return OutputsPredictive([o._predictive(X) for o in self.outputs_])
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


class OutputsPredictive:
    """Independent targets, each with its distributions in all rows."""

    def __init__(self, outputs):
        self.outputs = outputs

    def quantiles(self, levels):
        """Quantiles of new targets, (n, n_levels, K)."""
        return np.stack([o.quantiles(levels) for o in self.outputs], -1)

    def cdf(self, y):
        """Probabilities of at most y, (n, K)."""
        columns = zip(self.outputs, y.T, strict=True)
        return np.stack([o.cdf(column) for o, column in columns], 1)

    def log_density(self, y):
        """Joint log density of targets, (n,), in nats."""
        columns = zip(self.outputs, y.T, strict=True)
        return sum(o.log_density(column) for o, column in columns)

    def normals(self):
        """Components, (n, K, S), and weights, (K, S), 0 where a target has fewer."""
        found = [o.normals() for o in self.outputs]
        if found[0] is None:
            return None
        size = max(len(weights) for _, _, weights in found)
        parts = zip(*(_with_empty(size, *one) for one in found), strict=True)
        return tuple(np.stack(part, -2) for part in parts)


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
