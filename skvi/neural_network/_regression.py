"""Shared by Bayesian networks for numbers: targets, units, noise."""

from __future__ import annotations  # short types in help()

from dataclasses import replace
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin, clone

from skvi._estimator._model import Model, NumberColumns
from skvi._estimator._parts import SHORTHANDS
from skvi._estimator._regressors import (
    ForecastMixin,
    coarse_grid,
    constants_message,
    names_of_units,
    noise_in,
)
from skvi._predictive._mixtures import DrawnPredictive
from skvi.base._layout import Units
from skvi.exceptions import SkviWarning
from skvi.likelihoods import (
    GaussianLikelihood,
    GeneralizedGammaLikelihood,
    HeteroscedasticLikelihood,
    HurdleLikelihood,
    Likelihood,
    RoundedLikelihood,
    StudentTLikelihood,
)
from skvi.likelihoods._counts import CountLikelihood
from skvi.likelihoods._dispersed import DispersedLikelihood
from skvi.likelihoods._independent import IndependentLikelihood
from skvi.neural_network._likelihood import (
    CountColumns,
    check_other_likelihood,
    given_grid,
    joined_units,
    learned_numbers,
    likely_shape,
    noise_of,
    origin_of,
    targets_in_units,
    units_of_target,
    units_on_grid,
    with_value,
)
from skvi.neural_network._modules import OutputLimits
from skvi.neural_network._reports import (
    explained_variance,
    flat_message,
    has_outliers,
    missed_message,
    missed_variance,
    without_outliers,
)
from skvi.utils._interrupts import with_callbacks
from skvi.utils._tensors import make_generator
from skvi.utils._validation import StrOptions, _fit_context

# Degrees of freedom of the noise of targets on a grid, whose center is blunt: with four
# validation rows of wine have .01 to .06 nats less, those with outliers no more.
GRID_DF = 10.0


class NetworkRegressorMixin(ForecastMixin, MultiOutputMixin, RegressorMixin):
    """Mixin: `likelihood` and `normalize_y`; predictions.

    For several targets arrays have another axis. Numbers in units of y are float64 also
    if X is float32: its rounding of a large target would exceed the noise.
    """

    _parameter_constraints: dict = {
        "likelihood": [StrOptions(set(SHORTHANDS["likelihood"])), Likelihood],
        "normalize_y": ["boolean"],
    }
    #: Likelihood of each target, without the numbers that a fit learns.
    _shapes: list | None = None
    #: What the fraction that a fit explains is about.
    _error_of_rows = (
        "the squared errors of the training rows are {:.3g} times those of their mean. "
        "Few rows may cause that, beside features with long tails: compare with "
        "predict_quantiles(X, [0.5]), and give logarithms of such features"
    )
    _input_with_target = {"multi_output": True, "y_numeric": True}

    def _resolve(self, name):
        if name == "likelihood" and isinstance(self.likelihood, str):
            if self.likelihood == "auto":
                return self._shapes[0] if self._shapes else GaussianLikelihood()
            found = super()._resolve(name)
            if isinstance(found, DispersedLikelihood):
                found.set_params(dispersion="learn")
            return found
        return super()._resolve(name)

    def _resolve_divergence(self, X, y, sample_weight):
        """After the shape of each target, for which the weight is chosen."""
        self._shapes = self._find_shapes(X, y, sample_weight)
        return super()._resolve_divergence(X, y, sample_weight)

    def _find_shapes(self, X, y, sample_weight):
        """Likelihood of each target, without units: the given one, or what suits it."""
        if self._is_candidate and self._shapes:
            return self._shapes
        columns, is_auto = y.reshape(len(y), -1).T, self._is_auto("likelihood")
        given = None if is_auto else self._resolve("likelihood")
        if given is not None and noise_of(given) is None:
            return [given] * len(columns)
        if self._continues:
            last = self._last_shapes
            is_left = isinstance(given, HurdleLikelihood) and given.likelihood is None
            is_same = is_auto or is_left or _kind_of(given) == _kind_of(last[0])
            return last if is_same else [given] * len(columns)
        if is_auto and not self._resolve("loss").is_log_loss:
            return [GaussianLikelihood()] * len(columns)
        if isinstance(given, HurdleLikelihood):
            given.validate()
            if given.at == "auto" and self._stream is not None:
                raise ValueError(
                    "A batch need not show which value is repeated. Give it for "
                    "partial_fit: likelihood=HurdleLikelihood(at=0.0), for example."
                )
        if sample_weight is not None:
            is_used = sample_weight > 0
            X, columns = X[is_used], columns[:, is_used]
            sample_weight = sample_weight[is_used]
        return [self._shape_of(given, X, y, sample_weight) for y in columns]

    def _shape_of(self, given, X, y, weight):
        """Likelihood of one target: what is given, with what is to be found in y."""
        if given is None:
            found = likely_shape(X, y, weight)
        elif isinstance(given, HurdleLikelihood):
            found = with_value(given, y, weight)
            if given.likelihood is not None:
                return found
            rest = y != found.at
            weight = None if weight is None else weight[rest]
            shape = noise_of(likely_shape(X[rest], y[rest], weight))
            found = clone(found).set_params(likelihood=shape)
        else:
            return given
        # The outputs of a module are given: all rows have the same scale of noise.
        is_module = not hasattr(self, "hidden_layer_sizes")
        if is_module or not self._resolve("loss").is_log_loss:
            return found
        noise = HeteroscedasticLikelihood(noise_of(found))
        is_hurdle = isinstance(found, HurdleLikelihood)
        return HurdleLikelihood(noise, found.at) if is_hurdle else noise

    @property
    def _last_shapes(self):
        """Shapes of the fit that a batch continues, at the numbers that it learned."""
        _, bound = self._model.bound(self._hyper)
        parts = getattr(bound, "likelihoods", [bound])
        targets = targets_in_units(self._model.likelihood, self._model.units)
        return [_shape(*pair) for pair in zip(targets, parts, strict=True)]

    def _response(self, y):
        """One or several columns of numbers, or of counts."""
        if self._continues:
            return self._stream.response
        are_counts = isinstance(self._resolve("likelihood"), CountLikelihood)
        return (CountColumns if are_counts else NumberColumns).find(y)

    def _assemble(self, data, response):
        """Return the model: a network for the target in its units, and a likelihood."""
        given = self._resolve("likelihood")
        given.validate()
        grids = self._find_grids(given, data)
        units, taken = self._find_units(data, given, grids)
        if noise_of(given) is not None:
            if isinstance(self._noise_to_fix(), str):
                known = "likelihood=GaussianLikelihood(noise_scale=1.0)"
                self._warn(constants_message(data.y, known), SkviWarning)
            likelihood = self._noise_likelihood(units, grids)
            if data.y.ndim == 1:
                (likelihood,) = likelihood.likelihoods
        else:
            check_other_likelihood(given)
            parts = [given] * (response.n_columns or 1)
            likelihood = IndependentLikelihood(parts) if data.y.ndim > 1 else given
        network = self._network(data.X, likelihood)
        return Model(
            response,
            network,
            likelihood,
            self.loss_function_,
            self._build_prior(network.layout),
            str(data.X.dtype),
            self._with_features(units, data),
            taken,
        )

    def _find_grids(self, likelihood, data):
        """For each target step and origin of its values, in its units, or None.

        Raises ValueError if batches would have to find a grid.
        """
        columns = data.y.reshape(len(data.y), -1).T
        is_auto = self._is_auto("likelihood")
        if isinstance(likelihood, RoundedLikelihood) and not is_auto:
            if likelihood.step == "auto" and self._stream is not None:
                raise ValueError(
                    "A batch need not show the step of all rows. Give it for "
                    "partial_fit: likelihood=RoundedLikelihood(step=1.0), for example."
                )
            return [given_grid(likelihood, y) for y in columns]
        if is_auto and self._continues:
            last = targets_in_units(self._model.likelihood, self._model.units)
            return [
                (part.step, part.origin)
                if isinstance(part, RoundedLikelihood)
                else None
                for part in last
            ]
        if is_auto and self._stream is None and self._resolve("loss").is_log_loss:
            return [
                None
                if isinstance(shape, HurdleLikelihood)
                else coarse_grid(y, data.weight)
                for y, shape in zip(columns, self._shapes, strict=True)
            ]
        return [None] * len(columns)

    def _find_units(self, data, likelihood, grids):
        """Units of the target, or origin of the outputs; and what is taken from y."""
        given, standardizes = self._given_units(), self.normalize_y
        if noise_of(likelihood) is not None:
            units = given
            if given is None:
                columns = zip(
                    self._shapes, data.y.reshape(len(data.y), -1).T, strict=True
                )
                found = [
                    units_of_target(shape, column, data.weight, standardizes)
                    for shape, column in columns
                ]
                each, self._shapes = map(list, zip(*found, strict=True))
                units = joined_units(each) if data.y.ndim > 1 else each[0]
            names = names_of_units(centered=True)
            if standardizes and given is None:
                units = units_on_grid(units, grids)
        else:
            origin = origin_of(likelihood, data.y, data.weight)
            zeros = np.zeros(data.y.shape[1:])[()]
            f_mean = -origin if standardizes else 0.0
            units, names = (
                given or Units(zeros, zeros + 1.0, f_mean=f_mean),
                ("f_mean",),
            )
        return units, names if standardizes and given is None else ()

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        forgetting: float = 1.0,
    ) -> Self:
        """Learn from a batch: the current posterior is the prior for the next batch.

        The first call is a `fit`; after a `fit` the next call continues it. Every call
        trains for `max_iter` epochs of its batch, and starts where the last one ended.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array-like of shape (n_samples,), default=None
        forgetting : float, default=1.0
            Power, in (0, 1], of the posterior so far, for data that drift; the rest is
            the first prior.

        Returns
        -------
        self

        Raises
        ------
        IncompatibleComponentsError
            The posterior is not normal, so that it cannot be a prior.
        KeyboardInterrupt
            On Ctrl-C. As after every error the estimator is what it was before the
            call: the batch can be given again.

        Notes
        -----
        The units of `normalize_y`, and a learned noise, remain those of the first
        batch, since they have no posterior: start with a large batch, or give the
        scale, as in ``likelihood=GaussianLikelihood(noise_scale=0.5)``.

        `lower_bound_` and `evidence_bounds` are those of the last batch given the
        previous ones: of log p(batch) under the posterior that was its prior. Their
        sum, ``diagnostics_["sum_of_bounds"]``, estimates the evidence of all rows, but
        is not a bound, since that posterior is an approximation. A factorized one
        forgets: every batch should be representative of all rows.
        """
        return self._learn_batch(X, y, sample_weight, forgetting=forgetting)

    def _noise_likelihood(self, units, grids):
        """Noise of each target; its scale, grid and atom in units of the fit."""
        chooses = self._is_auto("likelihood")

        def of_target(shape, scale, y_mean, y_scale, grid):
            noise = noise_of(shape)
            if isinstance(noise, GeneralizedGammaLikelihood) and scale != "learn":
                scale = scale * y_scale / noise.log_unit
            if chooses and grid and not noise.is_normal:
                noise = StudentTLikelihood(GRID_DF)
            noise = clone(noise).set_params(noise_scale=scale)
            if shape.noise_outputs:
                noise = HeteroscedasticLikelihood(noise)
            if isinstance(shape, HurdleLikelihood):
                return HurdleLikelihood(noise, (shape.at - y_mean) / y_scale)
            if grid is None:
                return noise
            step, origin = grid
            return RoundedLikelihood(noise, step / y_scale, (origin - y_mean) / y_scale)

        columns = noise_in(units, self._noise_to_fix()), units.y_mean, units.y_scale
        each = (np.broadcast_to(x, len(grids)).tolist() for x in columns)
        return IndependentLikelihood([*map(of_target, self._shapes, *each, grids)])

    def _posterior_attributes(self, state):
        found, units = super()._posterior_attributes(state), self._model.units
        targets = targets_in_units(self._model.likelihood, units)
        found["likelihood_"] = (
            IndependentLikelihood(targets)
            if isinstance(self._model.likelihood, IndependentLikelihood)
            else targets[0]
        )
        learned = learned_numbers(self._model.likelihood, found["_hyper"], units)
        if noise_of(self._resolve("likelihood")) is not None:
            noise = learned.get("noise_scale_", self._noise_to_fix())
            noise = np.broadcast_to(noise, np.shape(units.y_scale)).copy()
            learned["noise_scale_"] = noise if noise.ndim else float(noise)
        return found | learned

    def _predictive(self, X, theta=None):
        """New targets given networks, by default those that predictions average."""
        units, likelihood = self._model.units, self._model.bound(self._hyper)[1]
        if self._model.response.is_column:
            likelihood = IndependentLikelihood([likelihood])
            scale = np.array([units.y_scale])
            units = replace(units, y_mean=np.array([units.y_mean]), y_scale=scale)
        draws = self._drawn(theta)
        likelihood = likelihood.to(draws.theta.device)
        offset = None if X is None else self._model.offset(None, len(X))
        return DrawnPredictive(likelihood, units, draws, X, offset)

    def _noise_to_fix(self):
        """Scale of the noise that is given, or that the first batch learned."""
        noise = noise_of(self._resolve("likelihood"))
        scale = "learn" if self._is_auto("likelihood") else noise.noise_scale
        if self._continues and scale == "learn":
            return np.asarray(self._stream.noise_scale)[()]
        return scale if scale == "learn" else scale * getattr(noise, "log_unit", 1.0)

    def _name_outputs(self, n_outputs):
        """What a module must return, for messages."""
        if (given := self._resolve("likelihood")).noise_outputs:
            return (
                "for each target one column, and one of the log of its noise scale, "
                f"as likelihood={given!r} needs"
            )
        return "one column for each number that it predicts"

    def _limit_of_outputs(self, f, likelihood):
        """Say that outputs are limited, and standardized targets are not."""
        given = self._resolve("likelihood")
        noise, is_mixed = noise_of(given), isinstance(given, HurdleLikelihood)
        is_location = noise is not None and noise.is_location and not is_mixed
        if not (self.normalize_y and is_location):
            return ""
        likelihood = likelihood.bind(f.new_zeros(len(likelihood.learned)).double())
        means = likelihood.mean(f.flatten(0, 1)).reshape(*f.shape[:-1], -1)
        limits = OutputLimits.of(means)
        found = limits.saturates | limits.one_sided
        if not found.any():
            return ""
        return (
            f"the outputs of the module are {limits.of_columns(found)}, whatever its "
            "parameters are, but with normalize_y=True they are targets of mean 0 and "
            "standard deviation 1: leave out its last layer, such as Sigmoid, ReLU or "
            "Tanh, or use normalize_y=False"
        )

    @overload
    def predict(self, X: Any, return_std: Literal[False] = ...) -> np.ndarray: ...

    @overload
    def predict(self, X: Any, return_std: bool = ...) -> Any: ...

    def predict(self, X: Any, return_std: bool = False) -> Any:
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
        predictive = self._predictive(self._check_X(X))
        if not return_std:
            return predictive.expectation()
        return tuple(np.moveaxis(predictive.moments(), 1, 0))

    def predict_uncertainty(self, X: Any) -> dict[str, np.ndarray]:
        """Predict how uncertain a new observation is, for both reasons apart.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        dict of str to ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Standard deviations in units of y: "noise_std" of the noise, averaged over
            the networks ("aleatoric"), and "function_std" of the mean, between the
            networks ("epistemic"), which more rows would reduce. Their squares sum to
            that of ``predict(X, return_std=True)``.
        """
        return self._predictive(self._check_X(X)).uncertainty()

    def _observations(self, X, theta, random_state):
        """One new target given each network, (n, S) or (n, K, S)."""
        predictive = self._predictive(X, theta)
        device = predictive.draws.theta.device
        return predictive.observations(make_generator(random_state, device))

    def _mean(self, f):
        """Networks' outputs in units of y, (S, rows) or (S, rows, K)."""
        predictive = self._predictive(None)
        f = f - self._model.units.f_mean
        return predictive.in_units(predictive.likelihood.mean(f))

    def _compare_with_constant(self, X, y, weight, rows_per_row):
        """Fractions of the variance that the fit explains, and that it misses.

        For several targets, those of the one that the fit explains least.
        """
        predictive = self._predictive(X)
        means = predictive.by_rows(lambda p, _, f: p.mean(f).mean(0))
        means, y = means.reshape(len(y), -1).T, y.reshape(len(y), -1).T
        shares = [
            explained_variance(m, t, weight) for m, t in zip(means, y, strict=True)
        ]
        worst = int(np.argmin([1.0 if share is None else share for share in shares]))
        explained, mean, y = shares[worst], means[worst], y[worst]
        if not (is_normal := self._resolve("likelihood").is_normal):
            y = without_outliers(y, mean)
        missed, n_pairs = missed_variance(X.reshape(len(X), -1), y, mean, weight)
        found = {"explained": explained, "missed": missed}
        if explained is None:
            return found, ""
        is_constant = not self._model.likelihood.noise_outputs
        heavy = is_normal and is_constant and has_outliers(y - mean, weight)
        outliers = ["likelihood='student_t', as there are outliers,"] if heavy else []
        # A linear model has one optimum.
        has_hidden_units = getattr(self, "_has_hidden_units", True)
        others = ["another random_state"] if has_hidden_units else []
        remedy = self._remedy(outliers, others)
        # Far outliers, which heavy tails allow for, hide what is explained of the rest.
        most = max(explained, explained_variance(mean, y, weight) or explained)
        message = missed_message(missed, most, n_pairs, remedy)
        # A fraction is worth half as many nats of log likelihood per row.
        flat = flat_message(
            most, 0.5, weight, rows_per_row, "its mean", self._remedy(outliers)
        )
        return found, message or flat


def _shape(likelihood, bound):
    """Shape of a target in units of y, at the numbers of a bound likelihood."""
    noise = noise_of(bound)
    names, numbers = list(noise.shapes), noise._log_shapes()
    found = clone(likelihood)
    noise_of(found).set_params(
        **{name: float(x.exp()) for name, x in zip(names, numbers, strict=True)}
    )
    return found


def _kind_of(likelihood):
    """What batches of one target must have in common."""
    return type(noise_of(likelihood)), likelihood.n_outputs
