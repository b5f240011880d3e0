"""Linear regression with normal noise: model, units and attributes, for one target."""

import math
from dataclasses import replace
from numbers import Real

import numpy as np
import torch

from skvi._regressors import names_of_units, noise_in, units_of, with_noise_scale
from skvi.evidence import bound_evidence
from skvi.evidence._conjugate import conjugate_evidence
from skvi.evidence._table import elbo_row
from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model._base import BayesianLinearModel
from skvi.linear_model._blocks import (
    check_gammas,
    check_noise_hyperprior,
    with_logarithm,
    with_positive_blocks,
)
from skvi.linear_model._exact_coefficients import ExactCoefficients
from skvi.linear_model._ranges import warn_of_vague, with_cost
from skvi.linear_model._starts import approach, start_near
from skvi.linear_model._units import (
    HierarchicalLinearModel,
    feature_units,
    with_new_features,
)
from skvi.posteriors import Exact, FullRankNormal, Posterior
from skvi.predictors import LinearPredictor
from skvi.priors import (
    GammaHyperprior,
    HierarchicalNormal,
    Normal,
    Prior,
    build_prior,
)
from skvi.solvers import NaturalGradient
from skvi.solvers._exact import MixtureOverPrecisions, missing_for_exact
from skvi.targets._hierarchical import marginal

__all__ = ["GaussianRegression"]

# Hyperprior of the noise precision, as in scikit-learn's BayesianRidge.
NOISE_HYPERPRIOR = GammaHyperprior(1e-6, 1e-6)


class GaussianRegression(BayesianLinearModel):
    """One target column: the model in the units of the fit, results in those of y."""

    _evidence_methods = frozenset({"auto", "exact", "importance", "tempering"})
    _reads_units = True

    def _pose(self, target):
        """As for every estimator; with the exact posterior where it is asked for."""
        if self._takes_exact(target):
            self.posterior_family_ = Exact()
        return super()._pose(target)

    @property
    def _asks_for_exact(self):
        return isinstance(self.posterior, Exact) or self.posterior == "exact"

    def _takes_exact(self, target):
        """Whether the posterior is to be exact, by quadrature over its precisions."""
        is_asked = self._asks_for_exact
        is_auto = isinstance(self.posterior, str) and self.posterior == "auto"
        is_free = isinstance(self.solver, str) and self.solver in ("auto", "exact")
        if not is_asked and not (is_auto and is_free and not self._is_diagonal()):
            return False
        missing = missing_for_exact(target, self.objective_, self.divergence_)
        if not is_free:
            missing = f"with solver={self.solver!r} another one is fitted"
        # With given precisions the normal of full rank is exact.
        if is_asked and missing and self._model.gammas:
            raise IncompatibleComponentsError(
                f"posterior={self.posterior!r} has no exact form here: {missing}. Use "
                "posterior='auto'."
            )
        return not missing

    def _resolve(self, name):
        if name == "posterior" and self._asks_for_exact:
            return FullRankNormal()  # until `_pose` knows the model
        return super()._resolve(name)

    @property
    def _exact(self):
        """The posterior if it is exact over unknown precisions, else None."""
        found = self.posterior_
        return found if isinstance(found, MixtureOverPrecisions) else None

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
        return HierarchicalLinearModel(
            response,
            predictor,
            self._likelihood(noise_in(units, self._noise_to_fix())),
            self.loss_function_,
            self._own_prior(predictor.layout, marginal, gammas),
            str(data.X.dtype),
            units,
            taken,
            gammas,
            marginal,
            is_centered=self._given_units() is None,
        )

    def _noise_to_fix(self):
        """`noise_scale`, or what the first batch of a stream learned."""
        if self._continues and self.noise_scale == "learn":
            return self._stream.noise_scale
        return self.noise_scale

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
            return with_new_features(units, data.X, data.weight), False
        origin, scale, unseen = feature_units(
            data.X, data.weight, self.fit_intercept, self._relative_to()
        )
        found = replace(units, x_mean=origin, x_scale=scale, unseen=unseen)
        return found, self.normalize_y

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

    @property
    def _noise_is_gamma(self):
        return isinstance(self.noise_scale, GammaHyperprior)

    def _hyperpriors(self):
        """Hyperpriors of the precisions that are inferred: arguments of the target."""
        found = {"noise_hyperprior": None}
        if self._noise_is_gamma and not self._continues:
            found["noise_hyperprior"] = check_noise_hyperprior(self.noise_scale)
        elif self.noise_scale == "hyperprior" or self._noise_is_gamma:
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
        last = before["posterior_"].as_prior()
        return super()._continue(problem, {**before, "posterior_": last}, solver)

    def _prepare(self, problem, solver):
        robust = not self.loss_function_.is_log_loss
        if robust and solver.continues and not NaturalGradient.missing(problem):
            return approach(problem, self._model.likelihood.length_scale)
        return super()._prepare(problem, solver)

    def _check_posterior(self, posterior):
        if not isinstance(self.posterior_family_, Exact):
            super()._check_posterior(posterior)
            check_gammas(posterior, self.posterior_family_)

    def _initialize(self, problem):
        """Start draws at the solution of a similar model without draws."""
        return start_near(problem, self._model.likelihood)

    def _posterior_attributes(self, state):
        found = super()._posterior_attributes(state)
        noise = self._noise_of(found)
        found |= {"noise_scale_": noise, "alpha_": noise**-2}
        return found | self._precisions_of(found["posterior_"])

    def _find_coefficients(self, posterior):
        if isinstance(posterior, MixtureOverPrecisions):
            return ExactCoefficients(self._model, posterior)
        return super()._find_coefficients(posterior)

    def _moments_of(self, coefficients):
        """Moments of one target; also the covariance of coefficients, if it is full."""
        found = super()._moments_of(coefficients)
        found = {name: values[0] for name, values in found.items()}
        if (covariance := coefficients.covariance()) is not None:
            found["sigma_"] = covariance.numpy().astype(self._model.dtype)
        return found

    def _noise_of(self, found):
        """Scale of the noise in units of y: its geometric mean, if that is exact."""
        posterior, unit = found["posterior_"], self._model.units.y_scale
        if "noise_precision" in posterior.layout:
            if isinstance(posterior, MixtureOverPrecisions):
                return math.exp(posterior.mean_of(lambda t: -0.5 * t, "noise")) * unit
            shape, rate = posterior.part("noise_precision").as_gamma()
            return float((rate / shape).sqrt()) * unit
        if (noise := self._noise_to_fix()) == "learn":
            return float(np.exp(found["_hyper"][0])) * unit
        return float(noise)

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

    def _bound_evidence(self, target, generator, **options):
        """Bounds in closed form, or else from draws."""
        gammas = self._model.gammas.values()
        warn_of_vague(gammas, self.n_features_in_)
        posterior, method, found = self.posterior_, options["method"], None
        if method in ("auto", "exact"):
            quantity = options["quantity"]
            found = conjugate_evidence(target, posterior, generator, quantity)
        if method == "exact" and found is None:
            raise IncompatibleComponentsError(
                "method='exact' needs log loss and normal coefficients that share "
                "their precision, or have given ones. Use method='auto'."
            )
        if found is None or not (found.reliable or method == "exact"):
            if target.is_extended:
                # Joint draws of precisions and coefficients have funnels.
                target = marginal(target, self._marginal_prior())
                posterior = posterior.as_prior().marginal(target.layout)
                options["normal"] = self._log_normal(target.layout)
            found = bound_evidence(target, posterior, generator, **options)
        if not self.lower_bound_se_:  # the fit's own bound has no Monte Carlo noise
            row = elbo_row((self.lower_bound_, 0.0))
            found = replace(found, table={**found.table, "ELBO of q": row})
        return with_cost(found, gammas)

    def _marginal_prior(self):
        """Prior of coefficients and intercept, with precisions integrated out."""
        prior = self._model.marginal_prior
        first = len(self._hyper) - len(prior.learned)
        return prior.bind(torch.from_numpy(self._hyper[first:]))

    def _log_normal(self, layout):
        """Normal with the moments of the posterior, a log noise precision included."""
        normal = self._coefficients.single
        if normal is None or "noise_precision" not in layout:
            return normal
        return with_logarithm(normal, self.posterior_, "noise_precision")

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
