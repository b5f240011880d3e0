"""What counts and other targets share: a mean exp(f), a likelihood with a number."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from skvi._predictive._mixtures import (
    DrawnPredictive,
    JointPredictive,
    LogMeanPredictive,
    PoissonPredictive,
    QuadraturePredictive,
)
from skvi.base import NormalForm
from skvi.base._layout import Units
from skvi.exceptions import SkviWarning
from skvi.likelihoods import PoissonLikelihood
from skvi.likelihoods._dispersed import DispersedLikelihood
from skvi.likelihoods._log_mean import LogMeanLikelihood
from skvi.posteriors import Posterior
from skvi.posteriors._mixture import MixtureOverScales
from skvi.utils._validation import as_tensor, warn_user

NO_MEAN = (
    "{}: in {} rows the mean comes from values of exp(f) that the posterior hardly "
    "allows (it expects fewer than 1 % above the mean), or does not exist: the median "
    "is given. Use more rows, or a prior of a smaller scale, as prior=Normal(0.5)"
)
# Least posterior probability of values above a mean that says something about targets.
LEAST_ABOVE = 0.01
# Draws behind the mean of a number in a posterior that is no mixture over it.
N_DRAWS = 1000


class OneOutputMixin:
    """Mixin: attributes, and distributions of new targets by quadrature or draws."""

    def _of_offset(self, X, offset, function, *columns):
        """What a function gives for the distributions of new targets; in X's dtype."""
        if self._is_drawn():
            drawn = self._from_draws(X, self._coefficients.theta, offset)
            return function(drawn, *columns).astype(X.dtype)
        likelihood, numbers = self._model.bound(self._hyper)[1], None
        units = self._units_of_y
        if self._own_block() is not None:
            numbers = likelihood.gamma_block[1] * self.posterior_.places()[:, -1]
        if self._model.predictor.n_outputs > 1:
            return self._of_several(X, offset, numbers, function, *columns)
        kind = QuadraturePredictive
        if isinstance(likelihood, LogMeanLikelihood):
            is_poisson = isinstance(likelihood, PoissonLikelihood)
            kind = PoissonPredictive if is_poisson else LogMeanPredictive

        def of_chunk(mean, variance, offset, *some):
            normals = mean + as_tensor(offset), variance.sqrt(), self._log_weights
            return function(kind(likelihood, units, *normals, numbers), *some)

        offset = np.zeros(X.shape[0]) if offset is None else offset
        return self._in_chunks(X, of_chunk, offset, *columns).astype(X.dtype)

    def _of_several(self, X, offset, numbers, function, *columns):
        """As `_of_offset`, of several columns of f."""
        likelihood, units = self._model.bound(self._hyper)[1], self._units_of_y
        n_outputs = self._model.predictor.n_outputs
        offset = np.zeros((X.shape[0], n_outputs)) if offset is None else offset

        def of_chunk(mean, covariance, offset, *some):
            normals = mean + as_tensor(offset), covariance, self._log_weights
            return function(
                JointPredictive(likelihood, units, *normals, numbers), *some
            )

        return self._in_chunks(X, of_chunk, offset, *columns).astype(X.dtype)

    def _from_draws(self, X, theta, offset):
        """New targets given draws of all parameters, (S, P)."""
        likelihood = self._model.bound(self._hyper)[1]
        if (name := self._own_block()) is not None:
            power = likelihood.gamma_block[1]
            numbers = power * theta[:, self.posterior_.layout[name].slice][:, 0]
            likelihood = likelihood.bind(numbers[None, :, None])
        return DrawnPredictive(
            likelihood, self._units_of_y, self._drawn(theta), X, offset
        )

    @property
    def _units_of_y(self):
        """Of targets, whatever those of coefficients are."""
        return Units(0.0, self._model.units.of_target)

    def _own_block(self):
        """Name of the likelihood's parameter in theta; None if there is none."""
        return next(iter(self.posterior_.layout.positive), None)

    def _moments_or_medians(self, predictive):
        """Means and deviations, medians where there are none, and where that is."""
        mean, std = predictive.moments().T
        if (lacks := self._lacks_mean(predictive)).any():
            means, stds = predictive.mean[:, lacks], predictive.std[:, lacks]
            rows = replace(predictive, mean=means, std=stds)
            mean[lacks], std[lacks] = rows.quantiles(np.array([0.5]))[:, 0], np.inf
        return np.stack([mean, std, np.broadcast_to(lacks, mean.shape)], 1)

    def _warn_of_medians(self, lacks):
        """Warn of rows without a mean."""
        if (n_lacking := int(lacks.sum())) > 0:
            warn_user(NO_MEAN.format(type(self).__name__, n_lacking), SkviWarning)

    def _lacks_mean(self, predictive):
        """Rows in which next to no values of exp(f) reach their mean."""
        if not isinstance(predictive, LogMeanPredictive):
            return np.zeros(1, bool)
        logs, std = predictive.log_shares, predictive.std
        log_mean = torch.logsumexp(
            logs[:, None] + predictive.mean + 0.5 * std.square(), 0
        )
        z = (predictive.mean - log_mean) / std.clamp(min=1e-8)
        above = logs.exp() @ torch.special.ndtr(z)
        return (above < LEAST_ABOVE).numpy()

    def _deviations(self, predictive):
        """Deviations of the noise and of the function, infinite without a mean."""
        lacks = self._lacks_mean(predictive)
        parts = predictive.uncertainty().values()
        return np.stack([np.where(lacks, np.inf, part) for part in parts], 1)

    def _number_of(self, likelihood):
        """The likelihood; a learned number is that of the first batch of a stream."""
        likelihood.validate()
        if self._continues and likelihood.gamma_prior is None:
            return self._model.bound(self._hyper)[1]
        return likelihood

    def _posterior_attributes(self, state):
        found = super()._posterior_attributes(state)
        if self._model.predictor.n_outputs > 1:
            return found | self._dispersion_of(found)
        for name in ("coef_", "coef_std_"):
            found[name] = found[name][0]
        for name in ("intercept_", "intercept_std_"):
            found[name] = float(found[name][0])
        return found | self._dispersion_of(found)

    def _dispersion_of(self, found):
        """Mean of the dispersion, if the likelihood has one."""
        likelihood, posterior = self._model.likelihood, found["posterior_"]
        likelihood = getattr(likelihood, "rest", likelihood)
        if not isinstance(likelihood, DispersedLikelihood):
            return {}
        name, power = likelihood.gamma_block
        if name in posterior.layout:
            mean = mean_of_number(posterior, lambda z: (power * z).exp())
            return {"dispersion_": mean}
        bound = self._model.bound(found["_hyper"])[1]
        return {"dispersion_": float(getattr(bound, "rest", bound)._alpha)}


def mean_of_number(
    posterior: Posterior, value: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """Posterior mean of a function of the log of the number, which comes last."""
    if isinstance(posterior, MixtureOverScales):
        values = value(posterior.places()[:, -1])
        return float(posterior.log_weights.exp() @ values)
    draws = posterior.draw(N_DRAWS, torch.Generator().manual_seed(0))
    return float(value(draws.theta[:, -1]).mean())


def matching_gamma(posterior: Posterior) -> tuple[float, float]:
    """Shape and rate of the Gamma variable whose log has the moments of the last one.

    In theta, of which positive parameters are logarithms.
    """
    if isinstance(posterior, MixtureOverScales):  # without the widths of its nodes
        weights, z = posterior.log_weights.exp(), posterior.places()[:, -1]
        mean = float(weights @ z)
        variance = float(weights @ (z - mean).square())
    else:
        normal = cast(NormalForm, posterior.as_prior().as_normal())
        mean, variance = float(normal.mean[-1]), float(normal.variance[-1])
    log_shape = brentq(lambda t: polygamma(1, math.exp(t)) - variance, -30.0, 30.0)
    shape = math.exp(log_shape)
    return shape, math.exp(float(digamma(shape)) - mean)
