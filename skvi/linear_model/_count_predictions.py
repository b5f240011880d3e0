"""Predictions of counts from a normal log rate."""

import math

import numpy as np
import torch
from scipy.special import xlogy
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from skvi._likelihood_mixture import DrawnMixture, NormalMixture
from skvi.exceptions import SkviWarning
from skvi.likelihoods import PoissonLikelihood
from skvi.likelihoods._counts import CountLikelihood
from skvi.utils._arrays import as_tensor
from skvi.utils._poisson_mixture import (
    poisson_mixture_log_mass,
    poisson_mixture_quantiles,
)
from skvi.utils._random import make_generator
from skvi.utils._scale_mixture import gamma_nodes
from skvi.utils._validation import check_levels, interval_levels
from skvi.utils._warnings import warn_user

__all__ = ["CountPredictionMixin"]

NO_EXPOSURE = (
    "{0}: the fit had an exposure and {1} has none, so that counts are compared with "
    "rates per unit. Give it exposure=...; in searches and cross-validation, call "
    "sklearn.set_config(enable_metadata_routing=True), set_fit_request(exposure=True) "
    "of the regressor, set_score_request(exposure=True) of regressor or scorer, and "
    "pass params={{'exposure': ...}}."
)


class CountPredictionMixin:
    """Mixin: predictive moments, quantiles, mass and draws of Poisson counts."""

    @property
    def _is_poisson(self):
        """Whether closed forms of a Poisson mixture over a normal f are predictions."""
        return isinstance(self._model.likelihood, PoissonLikelihood)

    def _mixture(self, X, exposure):
        """Predictions of any likelihood and posterior, for X as given; and a dtype."""
        likelihood = self._model.bound(self._hyper)[1]
        if self._is_drawn():
            X, offset = self._with_offset(X, exposure)
            theta = torch.from_numpy(self._theta)
            equal = torch.full_like(theta[:, 0], -math.log(len(theta)))
            draws = self._drawn()
            numbers = self._own_numbers(theta)
            mixture = DrawnMixture(likelihood, numbers, equal, draws, X, offset)
            return mixture, X.dtype
        mean, std, dtype = self._log_rate(X, exposure)
        numbers, log_w = None, mean.new_zeros(1)
        if (name := self._own_block()) is not None:
            inverse, log_w = gamma_nodes(*map(float, self._gamma_of(name)))
            numbers = -likelihood.gamma_block[1] * inverse.log()
        shares = self._nodes.log_weights
        return NormalMixture(likelihood, numbers, log_w, mean, std, shares), dtype

    def _own_block(self):
        """Name of the likelihood's parameter in theta; None if there is none."""
        return next(iter(self.posterior_.layout.positive), None)

    def _gamma_of(self, name):
        return self.posterior_.part(name).as_gamma()

    def _own_numbers(self, theta):
        """What `Likelihood.bind` takes for every draw; None if nothing is drawn."""
        name = self._own_block()
        if name is None:
            return None
        power = self._model.likelihood.gamma_block[1]
        return power * theta[:, self.posterior_.layout[name].slice][:, 0]

    def _mean_overdispersion(self):
        """Mean coefficient of the squared mean in the variance of y; or None."""
        likelihood = self._model.bound(self._hyper)[1]
        if not isinstance(likelihood, CountLikelihood):
            return None
        name = self._own_block()
        if name is None:
            return float(likelihood.overdispersion)
        return float(self._gamma_of(name).mean)

    def _with_offset(self, X, exposure):
        """Validated features, and the offset of f of every row."""
        X = self._check_X(X)
        offset = self._offset(X, exposure)
        return X, np.zeros(X.shape[0]) if offset is None else offset

    def _offset(self, X, exposure):
        """Offset of f in the fit, (n,); None if it is 0."""
        return self._model.offset(self._check_exposure(X, exposure), X.shape[0])

    def _warn_without_exposure(self, exposure, caller):
        """Warn if counts are compared with rates per unit, which are no forecasts."""
        check_is_fitted(self)
        if self._had_exposure and exposure is None:
            warn_user(NO_EXPOSURE.format(type(self).__name__, caller), SkviWarning)

    def _log_rate(self, X, exposure):
        """Means and standard deviations of f, (K, n_samples), and a dtype."""
        mean, variance, dtype = self._predictive_moments(X)
        offset = self._offset(mean[0], exposure)
        if offset is not None:
            mean = mean + as_tensor(offset)
        return mean, variance.sqrt(), dtype

    def predict(self, X, return_std=False, exposure=None):
        """Predict the mean count, averaged over the posterior.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        return_std : bool, default=False
            Whether to return standard deviations of a new count as well.
        exposure : array-like of shape (n_samples,), default=None
            Positive; None is 1 for every row: the rate per unit.

        Returns
        -------
        mean : ndarray of shape (n_samples,)
            E exp(f), exact: larger than the rate at the posterior mean.
        std : ndarray of shape (n_samples,)
            Only with ``return_std=True``: the square root of the variance of the rate
            plus the mean rate (Poisson noise), and for negative binomial counts the
            mean of dispersion times squared rate.
        """
        is_drawn, alpha = self._is_drawn(), self._mean_overdispersion()
        if is_drawn or alpha is None:
            mixture, dtype = self._mixture(X, exposure)
            mean, std = mixture.moments().T.astype(dtype)
            return (mean, std) if return_std else mean
        mean, std, dtype = self._log_rate(X, exposure)
        rate, variance = torch.exp(mean + 0.5 * std.square()), std.square()
        extra = torch.expm1(variance) + alpha * torch.exp(variance)
        variance = rate + rate.square() * extra
        mean, variance = self._nodes.average(rate, variance)
        mean = mean.numpy().astype(dtype)
        return (mean, variance.sqrt().numpy().astype(dtype)) if return_std else mean

    def predict_quantiles(self, X, quantiles, exposure=None):
        """Predict quantiles of a new count.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        quantiles : float or array-like of shape (n_quantiles,)
            Probabilities in (0, 1).
        exposure : array-like of shape (n_samples,), default=None

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles)
            The smallest counts whose cumulative probability reaches these values.
        """
        levels = check_levels(quantiles)
        if self._is_drawn() or not self._is_poisson:
            mixture, dtype = self._mixture(X, exposure)
            return mixture.quantiles(levels).astype(dtype)
        mean, std, dtype = self._log_rate(X, exposure)
        weights = self._nodes.log_weights.exp()
        found = poisson_mixture_quantiles(mean, std, weights, levels)
        return found.numpy().astype(dtype)

    def predict_interval(self, X, coverage=0.9, exposure=None):
        """Predict a central interval for a new count.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        coverage : float, default=0.9
            Minimum probability of the interval, in (0, 1).
        exposure : array-like of shape (n_samples,), default=None

        Returns
        -------
        ndarray of shape (n_samples, 2)
            Lower and upper end; both belong to the interval.
        """
        levels = interval_levels(type(self).__name__, coverage)
        return self.predict_quantiles(X, levels, exposure)

    def predict_log_density(self, X, y, exposure=None):
        """Log predictive mass of each count: the proper score of a forecast.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Counts.
        exposure : array-like of shape (n_samples,), default=None
            Without it, a `SkviWarning` if the fit had one.

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats, each row given the training data alone.

        Raises
        ------
        ValueError
            The fit, or this call, was given rates instead of counts.
        """
        self._warn_without_exposure(exposure, "predict_log_density")
        counts = self._model.response.check_counts(y, "predict_log_density")
        check_consistent_length(X, counts)
        if self._is_drawn() or not self._is_poisson:
            return self._mixture(X, exposure)[0].log_density(counts)
        mean, std, _ = self._log_rate(X, exposure)
        with torch.no_grad():
            y = as_tensor(counts).expand_as(mean).flatten()
            mass = poisson_mixture_log_mass(y, mean.flatten(), std.flatten())
            mass = mass.reshape(mean.shape) + self._nodes.log_weights[:, None]
            return torch.logsumexp(mass, 0).numpy()

    def sample_y(self, X, n_samples=1, random_state=None, exposure=None):
        """Draw new counts from the posterior predictive distribution.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples_X, n_features)
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None
        exposure : array-like of shape (n_samples_X,), default=None

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples)
            Every column uses one draw of the coefficients and of an unknown dispersion,
            the same for all rows.
        """
        X = self._check_X(X)
        random_state = check_random_state(random_state)
        theta = self._draw(n_samples, random_state)
        rows = self._model.design(X).to(torch.float64)
        f = self._model.predictor.forward(theta, rows)
        offset = self._offset(X, exposure)
        if offset is not None:
            f = f + as_tensor(offset)[:, None]
        likelihood = self._model.bound(self._hyper)[1]
        if (numbers := self._own_numbers(theta)) is not None:
            likelihood = likelihood.bind(numbers[None, :, None])
        counts = likelihood.sample(f, make_generator(random_state))
        return counts.T.numpy().astype(X.dtype)

    def score(self, X, y, sample_weight=None, exposure=None):
        """Fraction of the Poisson deviance explained, D^2.

        The same for every likelihood, so that different ones can be compared.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
        exposure : array-like of shape (n_samples,), default=None
            Without it, a `SkviWarning` if the fit had one.

        Returns
        -------
        float
            1 - deviance / null deviance, as in `PoissonRegressor`; the null model has
            one rate per unit of exposure. At most 1; 0 if all predicted rates are
            equal.
        """
        self._warn_without_exposure(exposure, "score")
        rate = self.predict(X, exposure=exposure).astype(np.float64)
        y = self._model.response.encode(y)
        check_consistent_length(y, rate)
        weight = self._check_weights(rate[:, None], sample_weight)
        weight = np.ones(len(y)) if weight is None else weight
        offset = self._check_exposure(rate, exposure)
        unit = np.ones(len(y)) if offset is None else np.exp(offset)
        null = unit * (weight @ y) / (weight @ unit)

        def deviance(mean):
            return float(weight @ (xlogy(y, y) - xlogy(y, mean) - y + mean))

        worst = deviance(null)
        if worst <= 1e-12 * float(weight @ y):
            return 0.0
        return 1 - deviance(rate) / worst
