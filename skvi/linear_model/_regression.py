"""Linear regression with normal noise: model, units and attributes, for one target."""

import math
from dataclasses import replace
from numbers import Real

import numpy as np
import torch
from sklearn.base import clone

from skvi._estimator._features import with_new_features
from skvi._estimator._regressors import (
    constants_message,
    names_of_units,
    noise_in,
    units_of,
)
from skvi.evidence._bounds import bound_evidence
from skvi.evidence._conjugate import conjugate_evidence, nodes_evidence
from skvi.evidence._table import NamedBound, elbo_row
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.linear_model._base import BayesianLinearModel
from skvi.linear_model._exact_coefficients import (
    ExactCoefficients,
    warn_of_vague,
    with_cost,
)
from skvi.linear_model._merging import (
    mean_log_number,
)
from skvi.linear_model._one_output import matching_gamma
from skvi.linear_model._starts import approach, start_at_normal, with_plain_normals
from skvi.linear_model._units import HierarchicalLinearModel
from skvi.posteriors import FullRankNormal, Posterior
from skvi.posteriors._mixture import leading
from skvi.posteriors._whitened import Exact
from skvi.predictors import LinearPredictor
from skvi.priors import ARD, GammaHyperprior, HalfCauchy, Normal
from skvi.priors._blocks import build_prior
from skvi.solvers._exact import MixtureOverPrecisions, missing_for_exact
from skvi.solvers._hyper import check_noise
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.targets._numbers import numbers_of
from skvi.targets._precisions import Hyperprior
from skvi.utils._interrupts import Clock

# Hyperprior of the scale of the noise, in units of the target's deviation.
NOISE_HYPERPRIOR = HalfCauchy()


class GaussianRegression(BayesianLinearModel):
    """One target column: the model in the units of the fit, results in those of y."""

    _evidence_methods = frozenset({"auto", "exact", "importance", "tempering"})

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
        if not is_asked and not (is_auto and is_free):
            return False
        missing = missing_for_exact(target, self.objective_, self.divergence_)
        if not is_free:
            missing = f"with solver={self.solver!r} another one is fitted"
        # With given precisions the normal of full rank is exact.
        if is_asked and missing and self._model.gammas:
            raise IncompatibleComponentsError(
                f"posterior={self.posterior!r}",
                f"an exact form, which it has not here: {missing}",
                "posterior='auto'",
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
        scale = getattr(prior, "scale", None)
        known = Real | HalfCauchy | GammaHyperprior
        return (
            isinstance(prior, Normal)
            and isinstance(scale, known)
            and self._resolve("likelihood").is_normal
            and self.divergence_.kl_weight == 1
            and self.objective_.kind == "expectation"
            and self.loss_function_.is_log_loss
        )

    def _assemble(self, data, response):
        """Return the model: units, centered features, noise, priors, precisions."""
        units, standardizes = self._find_units(data)
        is_given = isinstance(self._noise_to_fix(), Real) or self._stream is not None
        if standardizes and self.fit_intercept and not (is_given or data.blocks):
            self._warn(constants_message(data.y, "noise_scale=1.0"), SkviWarning)
        predictor = LinearPredictor(data.X.shape[1], 1, self.fit_intercept)
        taken = names_of_units(self.fit_intercept) if standardizes else ()
        taken += self._set_intercept_prior(data, units)
        prior = self.prior_
        if isinstance(prior, Posterior):
            prior = prior.real_part()
        return HierarchicalLinearModel(
            response,
            predictor,
            self._likelihood(noise_in(units, self._noise_to_fix())),
            self.loss_function_,
            self._built(prior, predictor.layout, data, units),
            str(data.X.dtype),
            units,
            taken,
            self._hyperpriors(),
            is_centered=self._given_units() is None and self._effects is None,
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
        if given.noise_scale != type(given)().noise_scale:
            raise ValueError(
                f"likelihood={given!r} has a noise_scale, which the estimator sets. "
                f"Give noise_scale={given.noise_scale!r} to {type(self).__name__}."
            )
        return clone(given).set_params(noise_scale=scale)

    def _find_units(self, data):
        """Units of the fit, and whether y sets those of the target."""
        given, is_normal = self._given_units(), self._resolve("likelihood").is_normal
        # Heavy tails expect outliers, which a standard deviation does not survive.
        robust = not (self.loss_function_.is_log_loss and is_normal)
        units = units_of(
            data.y,
            data.weight,
            given,
            self.normalize_y,
            self.fit_intercept,
            robust,
            data.blocks,
        )
        if given is not None:
            return with_new_features(units, data.X, data.weight), False
        origin, scale, unseen = self._feature_units(data)
        found = replace(units, x_mean=origin, x_scale=scale, unseen=unseen)
        return found, self.normalize_y

    def _relative_to(self):
        """As for every linear model; by what sums over the rows say of a column."""
        found = super()._relative_to()
        return "deviation" if found == "each" else found

    def _set_intercept_prior(self, data, units):
        """Give the intercept a normal prior with the scale of the target.

        Returns the names of what was taken from y.
        """
        prior, given = self.prior_, self.intercept_prior is not None
        if given or isinstance(prior, Posterior) or not self.fit_intercept:
            return ()
        if data.blocks is None:
            y = (data.y - units.y_mean) / units.y_scale
            size = math.sqrt(float(np.average(y**2, weights=data.weight)))
        else:
            size = data.blocks.look.root_mean_square(units.y_mean) / units.y_scale
        prior["intercept"] = Normal(scale=size if size > 0 else 1.0)
        # Standardized by mean and standard deviation, a target has root mean square 1.
        is_one = self.normalize_y and self.loss_function_.is_log_loss
        return () if is_one else ("intercept_scale",)

    @property
    def _has_noise_prior(self):
        return isinstance(self.noise_scale, Hyperprior)

    def _hyperpriors(self):
        """Hyperprior of the noise, if it is inferred: an argument of the target."""
        if self._has_noise_prior and not self._continues:
            self.noise_scale.validate()
            return {"noise_hyperprior": self.noise_scale}
        if self.noise_scale == "hyperprior" or self._has_noise_prior:
            return {"noise_hyperprior": self._noise_hyperprior()}
        return {}

    def _noise_hyperprior(self):
        """Noise hyperprior from a fit whose posterior is the prior."""
        prior = self.prior_
        if not isinstance(prior, Posterior) or "noise_precision" not in prior.layout:
            return NOISE_HYPERPRIOR
        return GammaHyperprior(*matching_gamma(prior))

    def _work(self, target):
        """Multiply-adds of a Gram matrix."""
        d = target.predictor.n_features
        return target.n_rows * d * min(target.n_rows, d)

    def _continue(self, problem, before, solver):
        if isinstance(self.posterior_family_, Exact):
            return None  # nothing to start from
        last = before["posterior_"]
        if isinstance(last, MixtureOverPrecisions):
            before = {**before, "posterior_": last.as_prior()}
        return super()._continue(problem, before, solver)

    def _prepare(self, problem, solver):
        # An unknown scale begins at one that is wide enough.
        known = not self._model.likelihood.learned
        robust = known and not self.loss_function_.is_log_loss
        is_quick = isinstance(solver, NaturalGradient)
        if robust and is_quick and not solver.missing(problem):
            return approach(problem, self._model.likelihood._length_scale)
        return super()._prepare(problem, solver)

    def _check_posterior(self, posterior):
        if not isinstance(self.posterior_family_, Exact):
            super()._check_posterior(posterior)

    def _initialize(self, problem):
        """Start draws at the solution by the ELBO, without draws."""
        return start_at_normal(problem)

    def _checked(self, problem, solution):
        """Raise if a robust loss has settled on rows that are fitted exactly."""
        is_robust = not self.loss_function_.is_log_loss
        if is_robust and "noise_precision" in problem.target.layout:
            posterior, target = solution.posterior, numbers_of(problem.target)[0]
            normal = posterior.as_prior().as_normal()
            if normal is not None:
                scale = normal.mean.new_tensor(-0.5 * mean_log_number(posterior)).exp()
                check_noise(target, leading(normal, target.layout.size), scale)
        return solution

    def _posterior_attributes(self, state):
        found = super()._posterior_attributes(state)
        noise = self._noise_of(found)
        found |= {"noise_scale_": noise, "alpha_": noise**-2}
        return found | self._precisions_of(found)

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

    def _log_scales(self):
        """As for every linear model, with the noise where it was inferred."""
        found, posterior = super()._log_scales(), self.posterior_
        if not found or "noise_precision" not in posterior.layout:
            return found
        if self._exact is None:
            z, weights = posterior.places()[:, -1], posterior.log_weights.exp()
        else:
            nodes = self._exact.nodes
            parts = nodes.noise, nodes.weights
            z, weights = (torch.from_numpy(x.ravel()) for x in parts)
        unit = math.log(self._model.units.y_scale)
        return {**found, "noise": (unit - 0.5 * z, weights)}

    def _noise_of(self, found):
        """Scale of the noise in units of y: its geometric mean, if it is inferred."""
        posterior, unit = found["posterior_"], self._model.units.y_scale
        if "noise_precision" in posterior.layout:
            mean = mean_log_number(posterior)
            return math.exp(-0.5 * mean) * unit
        if (noise := self._noise_to_fix()) == "learn":
            return float(np.exp(found["_hyper"][0])) * unit
        if isinstance(noise, Real):
            return float(noise)
        return self._model.likelihood._length_scale * unit

    def _precisions_of(self, found):
        """Mean precisions of the coefficients, if their prior is normal."""
        prior = self._coef_prior()
        if isinstance(self.prior_, Posterior) or self.column_groups_:
            return {}
        unit = self._precision_unit()
        if isinstance(prior, ARD):
            mean, std = found["coef_"] / unit**-0.5, found["coef_std_"] / unit**-0.5
            return {"lambda_": prior.expected_precision(mean, std) * unit}
        if (value := found["_coefficients"].precision()) is None:
            layout = self._model.predictor.layout.only("coef")
            normal = build_prior(prior, layout).as_normal()
            if normal is None:
                return {}
            value = (1 / normal.variance).numpy()
            value = value[0] if (value == value[0]).all() else value
        value = value * unit
        return {"lambda_": float(value) if np.ndim(value) == 0 else value}

    def _bound_evidence(self, target, generator, **options):
        """Bounds in closed form, or else from draws."""
        prior = self._coef_prior()
        warn_of_vague(prior, self.n_features_in_)
        posterior, method = with_plain_normals(self.posterior_), options["method"]
        found, clock = None, Clock(options["max_seconds"])
        if method in ("auto", "exact"):
            quantity = options["quantity"]
            given = target, self.posterior_, generator, quantity
            found = conjugate_evidence(*given)
            found = found or nodes_evidence(*given, max_seconds=clock.left())
        if method == "exact" and found is None:
            raise IncompatibleComponentsError(
                "method='exact'",
                "log loss, and normal coefficients that share their precision, or have "
                "given ones",
                "method='auto'",
            )
        if found is None or not (found.reliable or method == "exact"):
            options["max_seconds"] = clock.left()
            found = bound_evidence(target, posterior, generator, **options)
        if not self.lower_bound_se_:  # the fit's own bound has no Monte Carlo noise
            row = elbo_row((self.lower_bound_, 0.0))
            if found.method == "quadrature" and hasattr(self.posterior_, "likeliest"):
                # A sum over fewer nodes than those of the evidence: no surer bound.
                row = NamedBound(self.lower_bound_, 0.0, "lower", "up to its nodes")
            found = replace(found, table={**found.table, "ELBO of q": row})
        return with_cost(found, [prior, *self._model.gammas.values()])

    def _in_units(self, theta):
        """Draws as blocks, in units of X and y, without axes for one target."""
        found = super()._in_units(theta)
        for name in ("coef", "intercept"):
            if name in found:
                found[name] = found[name][:, 0]
        if (name := "noise_precision") in found:
            found[name] = found[name][:, 0] * self._model.units.y_scale**-2
        return found

    def _precision_unit(self):
        """Precision of coefficients in units of X and y, where it is 1 in the fit."""
        return (self._model.units.x_scale / self._model.units.y_scale) ** 2
