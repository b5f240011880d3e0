"""Linear regression with normal noise: model, units and attributes, for one target."""

import math
from dataclasses import replace
from numbers import Real

import numpy as np
import torch
from sklearn.base import clone

from skvi._draws import NormalDraws
from skvi._likelihood_mixture import DrawnMixture, NormalMixture
from skvi._regressors import (
    StandardizedTargetMixin,
    names_of_units,
    noise_in,
    units_of,
    with_noise_scale,
)
from skvi._warm_start import at_last_scales
from skvi.linear_model._base import MAX_QUICK, BayesianLinearModel
from skvi.linear_model._blocks import (
    check_gammas,
    check_noise_hyperprior,
    with_positive_blocks,
)
from skvi.linear_model._gaussian_model import GaussianLinearModel
from skvi.linear_model._regression_evidence import RegressionEvidenceMixin
from skvi.linear_model._regression_exact import (
    RegressionExactMixin,
    exact_covariance,
    exact_moments,
)
from skvi.linear_model._starts import approach, start_near
from skvi.linear_model._units import feature_units
from skvi.posteriors import Exact, Posterior
from skvi.predictors import LinearPredictor
from skvi.priors import (
    GammaHyperprior,
    HierarchicalNormal,
    Normal,
    Prior,
    build_prior,
)
from skvi.solvers import NaturalGradient
from skvi.solvers._exact import MixtureOverPrecisions
from skvi.solvers._solution import State
from skvi.utils._device import CPU
from skvi.utils._scale_mixture import gamma_nodes
from skvi.utils._threads import limit_threads

__all__ = ["GaussianRegression"]

# Hyperprior of the noise precision, as in scikit-learn's BayesianRidge.
NOISE_HYPERPRIOR = GammaHyperprior(1e-6, 1e-6)
# An exact posterior is its own source of predictions.
NO_SOURCE = {"_nodes": None, "_normal": None, "_theta": None}


class GaussianRegression(
    RegressionExactMixin,
    RegressionEvidenceMixin,
    StandardizedTargetMixin,
    BayesianLinearModel,
):
    """One target column: the model in the units of the fit, results in those of y."""

    def _is_quick(self, n_rows, size):
        prior = self._coef_prior()
        is_fixed = isinstance(prior, Normal) and isinstance(prior.scale, Real)
        return (
            (is_fixed or isinstance(prior, HierarchicalNormal))
            and self._resolve("likelihood").is_normal
            and self.divergence_.is_standard
            and self.objective_.kind == "expectation"
            and self.loss_function_.is_log_loss
        )

    def _assemble(self, data, response):
        """Return the model: units, centered features, noise, priors, precisions."""
        units, standardizes = self._find_units(data)
        predictor = LinearPredictor(data.X.shape[1], 1, self.fit_intercept)
        taken = names_of_units(self.fit_intercept) if standardizes else ()
        taken += self._set_intercept_prior(data, units)
        gammas = self._hyperpriors()
        marginal = _build_prior(self.prior_, predictor.layout)
        if gammas:
            family, blocks = self.posterior_family_, list(predictor.layout)
            self.posterior_family_ = with_positive_blocks(family, blocks)
        return GaussianLinearModel(
            response,
            predictor,
            self._likelihood(noise_in(units, self.noise_scale)),
            self.loss_function_,
            self._own_prior(predictor.layout, marginal, gammas),
            str(data.X.dtype),
            units,
            taken,
            gammas,
            marginal,
            is_centered=self._given_units() is None,
        )

    def _likelihood(self, scale):
        """Shape of the noise, of a scale in the units of the fit."""
        given = self._resolve("likelihood")
        given.validate()
        return with_noise_scale(given, scale, type(self).__name__)

    def _find_units(self, data):
        """Units of the fit, and whether y sets those of the target."""
        given, is_normal = self._given_units(), self._resolve("likelihood").is_normal
        # Heavy tails expect outliers, which a standard deviation does not survive.
        robust = not (self.loss_function_.is_log_loss and is_normal)
        units = units_of(
            data.y, data.weight, given, self.normalize_y, self.fit_intercept, robust
        )
        if given is not None:
            return units, False
        origin, scale = feature_units(
            data.X, data.weight, self.fit_intercept, self._relative_to()
        )
        return replace(units, x_mean=origin, x_scale=scale), self.normalize_y

    def _own_prior(self, layout, marginal, gammas):
        """Prior of the blocks without hyperprior; None if there are none."""
        if "coef_hyperprior" not in gammas:
            return marginal
        if not self.fit_intercept:
            return None
        return self.prior_["intercept"].build(layout.only("intercept"))

    def _set_intercept_prior(self, data, units):
        """Give the intercept a normal prior with the scale of the target.

        Returns the names of what was taken from y.
        """
        prior, given = self.prior_, self.intercept_prior is not None
        if given or isinstance(prior, Posterior) or not self.fit_intercept:
            return ()
        y = (data.y - units.y_mean) / units.y_scale
        size = math.sqrt(float(np.average(y**2, weights=data.weight)))
        prior["intercept"] = Normal(scale=size if size > 0 else 1.0)
        # Standardized by mean and standard deviation, a target has root mean square 1.
        is_one = self.normalize_y and self.loss_function_.is_log_loss
        return () if is_one else ("intercept_scale",)

    def _hyperpriors(self):
        """Hyperpriors of the precisions that are inferred: arguments of the target."""
        found = {"noise_hyperprior": None}
        if isinstance(self.noise_scale, GammaHyperprior):
            found["noise_hyperprior"] = check_noise_hyperprior(self.noise_scale)
        elif self.noise_scale == "hyperprior":
            found["noise_hyperprior"] = self._noise_hyperprior()
        found["coef_hyperprior"] = _hyperprior(self._coef_prior())
        return {name: gamma for name, gamma in found.items() if gamma is not None}

    def _noise_hyperprior(self):
        """Noise hyperprior from a fit whose posterior is the prior."""
        prior = self.prior_
        if not isinstance(prior, Posterior) or "noise_precision" not in prior.layout:
            return NOISE_HYPERPRIOR
        shape, rate = prior.as_prior().part("noise_precision").as_gamma()
        return GammaHyperprior(float(shape), float(rate))

    def _work(self, target):
        """Multiply-adds of a Gram matrix."""
        d = target.predictor.n_features
        return len(target.y) * d * min(len(target.y), d)

    def _continue(self, problem, before, solver):
        if isinstance(self.posterior_family_, Exact):
            return None  # nothing to start from
        last, target = before["posterior_"].as_prior(), problem.target
        same = type(last) is type(problem.posterior)
        same = same and len(last.params) == len(problem.posterior.params)
        if dict(last.layout) != dict(target.layout) or not same:
            raise ValueError(
                f"warm_start=True continues from a fit with {last.layout}; these data "
                f"and parameters need {target.layout}, or another family. Use the "
                "same features and parts, or warm_start=False."
            )
        posterior = problem.posterior.at(last.params.clone())
        return State(posterior, at_last_scales(target, before))

    def _prepare(self, problem, solver):
        robust = not self.loss_function_.is_log_loss
        if robust and solver.continues and not NaturalGradient.missing(problem):
            return approach(problem, self._model.likelihood.length_scale)
        return super()._prepare(problem, solver)

    def _check_posterior(self, posterior):
        if not isinstance(self.posterior_family_, Exact):
            check_gammas(posterior, self.posterior_family_)

    def _initialize(self, problem):
        """Start draws at the solution of a similar model without draws."""
        return start_near(problem, self._model.likelihood)

    def _posterior_attributes(self, state):
        found = super(BayesianLinearModel, self)._posterior_attributes(state)
        posterior = found["posterior_"]
        posterior.units = self._model.units
        is_exact = isinstance(posterior, MixtureOverPrecisions)
        source = NO_SOURCE if is_exact else self._drawn_or_normal(posterior)
        found |= source | self._precisions_of(posterior)
        noise = self._noise_of(found)
        found |= {"noise_scale_": noise, "alpha_": noise**-2}
        if is_exact:
            found |= self._exact_moments_of(posterior)
        else:
            found |= self._moments_of(found["_nodes"], found["_theta"])
        return found | self._scale_in_units(found)

    def _exact_moments_of(self, exact):
        """Moments of one target; the covariance of so many coefficients as is usual."""
        units, dtype = self._model.units, self._model.dtype
        mean, variance = exact_moments(exact, units)
        found = self._named_moments(mean, variance.sqrt())
        found = {name: values[0] for name, values in found.items()}
        if self.n_features_in_ <= MAX_QUICK:
            found["sigma_"] = exact_covariance(exact, units).numpy().astype(dtype)
        return found

    def _moments_of(self, nodes, theta):
        """Moments of one target; also the covariance of coefficients, if it is full."""
        found = super()._moments_of(nodes, theta)
        found = {name: values[0] for name, values in found.items()}
        if nodes is not None and (normal := nodes.normals[0]).scale.ndim == 2:
            root = self._model.in_units(normal.scale.T, is_difference=True)
            root = root[:, : self.n_features_in_]
            found["sigma_"] = (root.T @ root).numpy().astype(self._model.dtype)
        return found

    def _noise_of(self, found):
        """Scale of the noise in units of y: its geometric mean, if that is exact."""
        posterior, unit = found["posterior_"], self._model.units.y_scale
        if "noise_precision" in posterior.layout:
            if isinstance(posterior, MixtureOverPrecisions):
                return math.exp(posterior.mean_of(lambda t: -0.5 * t, "noise")) * unit
            shape, rate = posterior.part("noise_precision").as_gamma()
            return float((rate / shape).sqrt()) * unit
        if self.noise_scale == "learn":
            return float(np.exp(found["_hyper"][0])) * unit
        return float(self.noise_scale)

    def _precisions_of(self, posterior):
        """Mean precisions of the coefficients, if their prior is normal."""
        if "coef_precision" in posterior.layout:
            if isinstance(posterior, MixtureOverPrecisions):
                value = np.array([posterior.mean_of(np.exp, "coef")])
            else:
                shape, rate = posterior.as_prior().part("coef_precision").as_gamma()
                value = (shape / rate).numpy()
        elif isinstance(self.prior_, Posterior):
            return {}
        else:
            normal = build_prior(
                self._coef_prior(), posterior.layout.only("coef")
            ).as_normal()
            if normal is None:
                return {}
            value = (1 / normal.variance).numpy()
        value = value * self._precision_unit()
        gamma = _hyperprior(self._coef_prior())
        shared = bool((value == value[0]).all()) and (gamma is None or gamma.is_shared)
        return {"lambda_": float(value[0]) if shared else value}

    def _drawn(self):
        theta, model = torch.from_numpy(self._theta), self._model
        noise = self._noise_draws(theta) * torch.ones_like(theta[:, :1])
        own = theta[:, : model.predictor.layout.size]
        return NormalDraws(model.predictor, own, noise, model.units, read=model.design)

    def _mixture(self, X):
        """Predictions in units of y; None where f is a normal, and so is the noise."""
        likelihood = self._model.likelihood
        if self._exact is not None:
            return self._exact_mixture(X)
        if likelihood.is_normal:
            return None
        likelihood = clone(likelihood).set_params(noise_scale="learn")
        if self._is_drawn():
            draws = self._drawn()
            equal = torch.full_like(draws.noise[:, 0], -math.log(len(draws.noise)))
            log_noise = draws.noise[:, 0].log()
            zero = np.zeros(X.shape[0])
            return DrawnMixture(likelihood, log_noise, equal, draws, X, zero)
        variances, log_w = self._noise_nodes()
        mean, variance = self._function_moments(X)
        numbers = 0.5 * variances.log()
        single = mean.new_zeros(1)
        std = variance.sqrt()[None]
        return NormalMixture(likelihood, numbers, log_w, mean[None], std, single)

    def _function_moments(self, X):
        """Mean and variance of f in units of y."""
        if self._exact is not None:
            return self._exact_functions(X)
        rows, predictor = self._model.design(X), self._model.predictor
        normal = self._normal
        work = X.shape[0] * normal.size**normal.scale.ndim
        with torch.no_grad(), limit_threads(work, self.n_jobs):
            mean, variance = predictor.moments(rows, normal)
        scale = self._model.units.y_scale
        return mean * scale + self._model.units.y_mean, variance * scale**2

    def _noise_nodes(self):
        """Noise variances in units of y, and their log weights."""
        if "noise_precision" in self.posterior_.layout:
            shape, rate = self.posterior_.part("noise_precision").as_gamma()
            noise, log_w = gamma_nodes(float(shape), float(rate))
            return noise * self._model.units.y_scale**2, log_w
        noise = torch.from_numpy(np.array([self.noise_scale_**2]))
        return noise, torch.zeros_like(noise)

    def _noise_variance(self):
        """Mean of the noise variance; infinite for fewer than three rows."""
        unit = self._model.likelihood.standard_variance
        if self._exact is not None:
            return self._exact.noise_variance * unit * self._model.units.y_scale**2
        if "noise_precision" in self.posterior_.layout:
            shape, rate = self.posterior_.part("noise_precision").as_gamma()
            mean = float(rate / (shape - 1)) if float(shape) > 1 else math.inf
            return mean * unit * self._model.units.y_scale**2
        return unit * self.noise_scale_**2

    def _covariance(self, X):
        """Covariance of new observations in the rows of X, (n, n)."""
        rows, predictor = self._model.design(X), self._model.predictor
        normal, d = self._normal or self._exact.matching_normal(), X.shape[0]
        root = normal.scale if normal.scale.ndim == 2 else torch.diag(normal.scale)
        if normal.factor is not None:
            root = torch.cat([root, normal.factor], 1)
        with torch.no_grad(), limit_threads(d * root.numel(), self.n_jobs):
            f = predictor.project(rows, root) * self._model.units.y_scale
            covariance = f @ f.T
            covariance.diagonal().add_(self._noise_variance())
        return covariance.numpy()

    def _noise(self, theta, shape, generator):
        """Noise of draws, (S, n), in units of y, with scales from theta."""
        scale = torch.as_tensor(self._noise_draws(theta)).reshape(-1, 1)
        noise = self._model.likelihood.at_scale(scale)
        zero = torch.zeros(*shape, 1, dtype=torch.float64, device=CPU)
        return noise.sample(zero, generator)

    @torch.no_grad()
    def _functions(self, X, theta):
        """Values of f in units of y, one row for each draw, (S, n)."""
        rows, predictor = self._model.design(X), self._model.predictor
        f = predictor.forward(theta, rows.to(torch.float64))[..., 0]
        return f * self._model.units.y_scale + self._model.units.y_mean

    def _noise_draws(self, theta):
        """Standard deviation of the noise of every draw, (S, 1), in units of y."""
        layout = self.posterior_.layout
        if "noise_precision" in layout:
            log_precision = theta[:, layout["noise_precision"].slice]
            return torch.exp(-0.5 * log_precision) * self._model.units.y_scale
        return self.noise_scale_

    def _in_units(self, theta):
        """Draws as blocks, in units of X and y, without axes for one target."""
        found = super()._in_units(theta)
        for name in ("coef", "intercept"):
            if name in found:
                found[name] = found[name][:, 0]
        scale = self._model.units.y_scale
        units = {"noise_precision": scale**-2, "coef_precision": self._precision_unit()}
        for name, unit in units.items():
            if name in found:
                value = found[name] * unit
                found[name] = value[:, 0] if value.shape[1] == 1 else value
        return found

    def _precision_unit(self):
        """Precision of coefficients in units of X and y, where it is 1 in the fit."""
        return (self._model.units.x_scale / self._model.units.y_scale) ** 2


def _build_prior(prior, layout):
    """Prior over the parameters of the predictor, given or integrated precisions."""
    if isinstance(prior, Posterior):
        prior = prior.real_part()
    return build_prior(prior, layout)


def _hyperprior(prior):
    """Gamma hyperprior of a prior on precisions, or None."""
    return prior.gamma_hyperprior() if isinstance(prior, Prior) else None
