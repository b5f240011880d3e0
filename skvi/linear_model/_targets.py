"""Bayesian regression of positive numbers, and of rates."""

from __future__ import annotations  # short types in help()

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.sparse import issparse
from scipy.special import logit
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import TweedieRegressor
from sklearn.preprocessing import StandardScaler

from skvi._estimator._model import Numbers, Response
from skvi._estimator._parts import AMOUNTS, POSITIVE, RATES
from skvi.divergences import Divergence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.likelihoods import Likelihood
from skvi.likelihoods._tweedie import TweedieLikelihood
from skvi.linear_model._base import BayesianLinearModel
from skvi.linear_model._row_predictions import RowPredictionMixin
from skvi.losses import Loss
from skvi.objectives.base import Objective
from skvi.posteriors import Family, Posterior
from skvi.priors import HalfCauchy, Prior
from skvi.solvers import Solver
from skvi.utils._interrupts import with_callbacks
from skvi.utils._validation import Interval, StrOptions, _fit_context, as_tensor

# Power of a first fit of the means, and distance from it at which another one is at
# its limits, 1.01 and 1.99.
START_POWER, AT_LIMIT = 1.5, 0.485
POWER_AT_LIMIT = (
    "the likeliest power is {:.2f}, where the distribution ends: near 1 amounts are "
    "multiples of one size, as counts are, see BayesianPoissonRegressor; near 2 a "
    "Gamma distribution has no zeros. Or too few amounts are positive: give power=1.5"
)
OFFSET_INSTEAD = {"exposure": " Give offset=np.log(exposure)."}


class TargetRegressor(RowPredictionMixin, RegressorMixin, BayesianLinearModel):
    """Base class: numbers of a distribution whose mean is a function of X'coef.

    A subclass names its likelihoods, of which the first is "auto", and how targets are
    checked; `_with_origin(units, mean)` are units in which f = 0 has the mean of y.
    """

    _names: dict[str, Callable[[], Likelihood]] = {}
    _checks: type[Response]
    _are_positive = False

    def __init__(
        self,
        objective: str | Objective = "elbo",
        divergence: str | Divergence = "kl",
        loss: str | Loss | Callable = "log",
        posterior: str | Family = "auto",
        prior: str | Prior | Posterior | dict[str, Any] = "auto",
        column_groups: dict[str, Any] | None = None,
        intercept_prior: str | Prior | None = None,
        fit_intercept: bool = True,
        likelihood: str | Likelihood = "auto",
        solver: str | Solver = "auto",
        max_iter: int = 100,
        tol: float = 1e-5,
        warm_start: bool = False,
        device: str = "auto",
        n_jobs: int | None = None,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.objective = objective
        self.divergence = divergence
        self.loss = loss
        self.posterior = posterior
        self.prior = prior
        self.column_groups = column_groups
        self.intercept_prior = intercept_prior
        self.fit_intercept = fit_intercept
        self.likelihood = likelihood
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.device = device
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    def __sklearn_tags__(self):
        """Declare whether targets are positive."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self._are_positive
        return tags

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        **row_data: ArrayLike | None,
    ) -> Self:
        """Fit the posterior.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            As of `BayesianPoissonRegressor.fit`.
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
            Nonnegative; a row with weight 2 counts twice.
        offset : array-like of shape (n_samples,), default=None
            Added to ``X @ coef_ + intercept_``, such as the log of an exposure to which
            the mean is proportional. None is 0.
        **row_data : array-like of shape (n_samples,)
            Refused: an ``exposure`` is ``offset=np.log(exposure)``.

        Returns
        -------
        self
        """
        return self._fit(X, y, sample_weight, {"offset": offset, **row_data})

    def _response(self, y):
        return self._checks()

    def _resolve(self, name):
        if name == "likelihood" and self.likelihood == "auto":
            return next(iter(self._names.values()))()
        return super()._resolve(name)

    def _assemble(self, data, response):
        likelihood = self._resolve("likelihood")
        if likelihood.is_discrete or likelihood.n_outputs != 1:
            raise IncompatibleComponentsError(
                f"likelihood={likelihood!r}",
                "is_discrete = False and n_outputs = 1, as a density",
                f"one of {sorted(self._names)}, or another Likelihood",
            )
        if likelihood.learned:
            self._check_variation(data)
        model = self._generalized_linear(data, response, self._number_of(likelihood))
        if not isinstance(self.likelihood, str):
            self._check_support(likelihood, data, model.units)
        if isinstance(self.prior_, Posterior):
            return model
        if likelihood.gamma_prior is not None:
            model = replace(model, gammas={"noise_hyperprior": HalfCauchy()})
        taken = "y_scale" if model.units.log_unit else "f_mean"
        return replace(model, taken_from_y=(taken,) * self.fit_intercept)

    def _check_support(self, likelihood, data, units):
        """Raise if a given likelihood allows no such targets."""
        if data.blocks is not None or likelihood.gamma_prior is not None:
            return
        y = as_tensor(data.y / math.exp(units.log_unit))
        if likelihood.learned:
            likelihood = likelihood.bind(likelihood.initial_hyper(y))
        f = y.new_zeros(1, len(y), 1)
        if bool(torch.isneginf(likelihood.log_prob(f, y)).any()):
            raise ValueError(
                f"y has values that are impossible under likelihood={likelihood!r}. "
                f"Use one of {sorted(self._names)}."
            )

    def _check_variation(self, data):
        """Raise if the targets say nothing of an unknown dispersion."""
        if np.ptp(data.y) == 0 and not self._continues:
            equal = f"{len(data.y)} rows with equal values of y tell"
            told = "1 sample tells" if len(data.y) == 1 else equal
            raise ValueError(
                f"{told} nothing of the dispersion of y. Give rows that differ, or the "
                "dispersion, as in likelihood=GammaLikelihood(dispersion=0.5) or "
                "BetaLikelihood(dispersion=0.1)."
            )

    def _mean_of(self, data):
        if data.blocks is not None:
            return float(data.blocks.look.moments[1])
        return float(np.average(data.y, weights=data.weight))

    def _find_units(self, data):
        """With the mean of y as origin, so that its unit moves the intercept alone."""
        units = super()._find_units(data)
        if isinstance(self.prior_, Posterior) or not self.fit_intercept:
            return units
        return self._with_origin(units, self._mean_of(data))


class PositiveNumbers(Numbers):
    """Targets above 0."""

    def encode(self, y: Any) -> np.ndarray:
        """Check that targets are positive numbers; see `Response.encode`."""
        y = super().encode(y)
        if (y <= 0).any():
            raise ValueError(
                f"y must be positive. Got {y.min():.6g}, and {int((y <= 0).sum())} "
                "values of 0 or less. For counts use BayesianPoissonRegressor, for "
                "amounts that may be 0 BayesianTweedieRegressor, for numbers of either "
                "sign BayesianLinearRegression."
            )
        return y


class Amounts(Numbers):
    """Targets of 0 or more."""

    def encode(self, y: Any) -> np.ndarray:
        """Check that targets are not negative; see `Response.encode`."""
        y = super().encode(y)
        if (y < 0).any():
            raise ValueError(
                f"y must not be negative. Got {y.min():.6g}. For numbers of either "
                "sign use BayesianLinearRegression."
            )
        return y


class Rates(Numbers):
    """Targets between 0 and 1."""

    def encode(self, y: Any) -> np.ndarray:
        """Check that targets are rates; see `Response.encode`."""
        y = super().encode(y)
        if (y <= 0).any() or (y >= 1).any():
            raise ValueError(
                f"y must be between 0 and 1, both excluded. Got values from "
                f"{y.min():.6g} to {y.max():.6g}. Divide percentages by 100. "
                "For successes of trials, which may be all or none, use "
                "BayesianBinomialRegressor with n_trials."
            )
        return y


class BayesianGammaRegressor(TargetRegressor):
    """Regression of positive numbers with a posterior over its coefficients.

    Costs, durations, sizes: y_i has the mean ``exp(x_i' coef + intercept)`` and a Gamma
    distribution, whose standard deviation is a fraction of its mean, or another
    `likelihood`. While `sklearn.linear_model.GammaRegressor` returns one vector of
    coefficients, this estimator returns a distribution over them and over the unknown
    dispersion, intervals of new targets, and bounds on the evidence, by which
    likelihoods can be compared.

    Parameters
    ----------
    objective, divergence, loss, posterior, prior, column_groups : object
        As of `BayesianPoissonRegressor`. Losses other than "log" need a given or
        learned dispersion.
    intercept_prior : {"normal", "laplace", ...}, Prior or None, default=None
        Prior of the intercept at the means of the features, relative to the log of the
        mean of y: the unit of y does not matter. None is ``Normal(10.0)``.
    fit_intercept : bool, default=True
    likelihood : {"auto", "gamma", "lognormal", "inverse_gaussian"} or Likelihood, \
default="auto"
        Distribution of y given its mean m, of variance dispersion * m ** 2 for "gamma"
        and "lognormal", which has a heavier tail, and proportional to m ** 3 for
        "inverse_gaussian". The square root of the unknown dispersion, the coefficient
        of variation (of "inverse_gaussian" at the mean of y), has a half-Cauchy prior
        of median 1, and is integrated.
        "auto" is "gamma". ``GammaLikelihood(0.5)`` gives the dispersion.
    solver, max_iter, tol, warm_start, device, n_jobs, verbose, random_state : object
        As of `BayesianPoissonRegressor`.

    Attributes
    ----------
    coef_, coef_std_ : ndarray of shape (n_features,)
        Posterior means and standard deviations.
    intercept_, intercept_std_ : float
        Log of the mean, for the original features.
    dispersion_ : float
        Posterior mean of the dispersion, or the given or learned value.
    lower_bound_ : float
        Evidence lower bound, in nats. Others as of `BayesianPoissonRegressor`.
    posterior_ : Posterior
    n_features_in_ : int

    See Also
    --------
    BayesianLinearRegression : Numbers of either sign.
    BayesianBetaRegressor : Rates.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.linear_model import BayesianGammaRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = np.exp(X @ [0.5, -0.3] + 4) * rng.gamma(3, 1 / 3, size=200)
    >>> model = BayesianGammaRegressor().fit(X, y)
    >>> model.coef_.round(2), round(model.dispersion_, 2)
    (array([ 0.45, -0.25]), 0.34)
    >>> model.predict_interval(X[:2]).round()
    array([[ 15., 121.],
           [ 18., 144.]])
    """

    _parameter_constraints: dict = {
        **BayesianLinearModel._parameter_constraints,
        "likelihood": [StrOptions({"auto", *POSITIVE}), Likelihood],
    }
    _names, _checks = POSITIVE, PositiveNumbers

    def _with_origin(self, units, mean):
        return replace(units, log_unit=math.log(mean))

    _score_power, _are_positive = 2, True
    _instead = OFFSET_INSTEAD


class BayesianBetaRegressor(TargetRegressor):
    """Regression of rates between 0 and 1 with a posterior over its coefficients.

    Shares, concentrations, scores: y_i has a Beta distribution, whose mean has the log
    odds ``x_i' coef + intercept``. The dispersion is unknown, and integrated.

    Parameters
    ----------
    objective, divergence, loss, posterior, prior, column_groups : object
        As of `BayesianPoissonRegressor`; of losses only "log", or a callable.
    intercept_prior : {"normal", "laplace", ...}, Prior or None, default=None
        Prior of the intercept at the means of the features, relative to the log odds of
        the mean of y. None is ``Normal(10.0)``.
    fit_intercept : bool, default=True
    likelihood : {"auto", "beta"} or Likelihood, default="auto"
        "auto" is "beta", whose dispersion is the inverse of the precision; its square
        root has a half-Cauchy prior of median 1. ``BetaLikelihood(0.1)`` gives it.
    solver, max_iter, tol, warm_start, device, n_jobs, verbose, random_state : object
        As of `BayesianPoissonRegressor`.

    Attributes
    ----------
    coef_, coef_std_ : ndarray of shape (n_features,)
        Posterior means and standard deviations.
    intercept_, intercept_std_ : float
        Log odds of the mean, for the original features.
    dispersion_ : float
        Posterior mean of the dispersion, or the given or learned value.
    lower_bound_ : float
        Evidence lower bound, in nats. Others as of `BayesianPoissonRegressor`.
    posterior_ : Posterior
    n_features_in_ : int

    See Also
    --------
    BayesianLogisticRegression : Two classes.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.linear_model import BayesianBetaRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> mean = 1 / (1 + np.exp(-X @ [0.8, -0.4] - 1))
    >>> y = rng.beta(10 * mean, 10 * (1 - mean))
    >>> model = BayesianBetaRegressor().fit(X, y)
    >>> model.coef_.round(2), round(model.dispersion_, 2)
    (array([ 0.79, -0.4 ]), 0.08)
    >>> model.predict_interval(X[:2]).round(2)
    array([[0.54, 0.92],
           [0.61, 0.95]])
    """

    _parameter_constraints: dict = {
        **BayesianLinearModel._parameter_constraints,
        "likelihood": [StrOptions({"auto", *RATES}), Likelihood],
    }
    _names, _checks = RATES, Rates

    def _with_origin(self, units, mean):
        return replace(units, f_mean=units.f_mean - float(logit(mean)))


class BayesianTweedieRegressor(TargetRegressor):
    """Regression of amounts that may be 0 with a posterior over its coefficients.

    Claims of a policy, rain of a day: y_i is a sum of Gamma-distributed parts, as many
    as a Poisson count, which may be none, and has the mean
    ``exp(x_i' coef + intercept)``.

    Parameters
    ----------
    power : float or "auto", default="auto"
        The variance is dispersion * mean ** power, with a power between 1 and 2: near 1
        amounts vary because of the number of parts, near 2 because of their size.
        "auto" takes the likeliest one, given the means of a first fit: "power" is then
        part of ``plug_in`` of the evidence.
    objective, divergence, loss, posterior, prior, column_groups : object
        As of `BayesianPoissonRegressor`; of losses only "log", or a callable.
    intercept_prior : {"normal", "laplace", ...}, Prior or None, default=None
        As of `BayesianGammaRegressor`.
    fit_intercept : bool, default=True
    likelihood : {"auto", "tweedie"} or Likelihood, default="auto"
        "auto" is "tweedie", of this `power`; the square root of its unknown dispersion,
        relative to the mean of y, has a half-Cauchy prior of median 1.
    solver, max_iter, tol, warm_start, device, n_jobs, verbose, random_state : object
        As of `BayesianPoissonRegressor`.

    Attributes
    ----------
    coef_, coef_std_ : ndarray of shape (n_features,)
        Posterior means and standard deviations.
    intercept_, intercept_std_ : float
        Log of the mean, for the original features.
    power_ : float
    dispersion_ : float
        Posterior mean of the dispersion, or the given or learned value, for y relative
        to its mean.
    lower_bound_ : float
        Evidence lower bound, in nats. Others as of `BayesianPoissonRegressor`.
    posterior_ : Posterior
    n_features_in_ : int

    See Also
    --------
    BayesianGammaRegressor : Positive numbers.

    Notes
    -----
    The logarithm of an exposure is an ``offset`` of `fit` and the predictions: a policy
    of half a year has half of the claims of a year, and with that offset their mean,
    but not quite their distribution. Quantiles and intervals can take a tenth of a
    second for each row; quantiles of `sample_y` are quicker.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.linear_model import BayesianTweedieRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 1))
    >>> number = rng.poisson(np.exp(0.5 * X[:, 0]))
    >>> y = np.array([rng.gamma(2, 50, size=k).sum() for k in number])
    >>> model = BayesianTweedieRegressor().fit(X, y)
    >>> model.coef_.round(2), round(model.power_, 2)
    (array([0.46]), 1.31)
    >>> model.predict_quantiles(X[:1], [0.1, 0.9]).round()
    array([[  0., 261.]])
    """

    _parameter_constraints: dict = {
        **BayesianLinearModel._parameter_constraints,
        "likelihood": [StrOptions({"auto", *AMOUNTS}), Likelihood],
        "power": [Interval(Real, 1, 2, closed="neither"), StrOptions({"auto"})],
    }
    _names, _checks = AMOUNTS, Amounts
    _with_origin = BayesianGammaRegressor._with_origin
    _are_positive = True
    _instead = OFFSET_INSTEAD

    def __init__(
        self,
        power: float | str = "auto",
        objective: str | Objective = "elbo",
        divergence: str | Divergence = "kl",
        loss: str | Loss | Callable = "log",
        posterior: str | Family = "auto",
        prior: str | Prior | Posterior | dict[str, Any] = "auto",
        column_groups: dict[str, Any] | None = None,
        intercept_prior: str | Prior | None = None,
        fit_intercept: bool = True,
        likelihood: str | Likelihood = "auto",
        solver: str | Solver = "auto",
        max_iter: int = 100,
        tol: float = 1e-5,
        warm_start: bool = False,
        device: str = "auto",
        n_jobs: int | None = None,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        parts = objective, divergence, loss, posterior, prior, column_groups
        run = solver, max_iter, tol, warm_start, device, n_jobs, verbose, random_state
        super().__init__(*parts, intercept_prior, fit_intercept, likelihood, *run)
        self.power = power

    @property
    def _score_power(self):
        return self.power_

    def _resolve(self, name):
        found = super()._resolve(name)
        if name == "likelihood" and isinstance(self.likelihood, str):
            found.set_params(power=self.power_)
        return found

    def _assemble(self, data, response):
        self._check_variation(data)
        is_free = isinstance(self.likelihood, str) and self.power == "auto"
        if not self._continues:
            if self.power != "auto" and not isinstance(self.likelihood, str):
                raise IncompatibleComponentsError(
                    f"power={self.power!r}",
                    "a likelihood by its name; an object has its own power",
                    "power='auto', or likelihood='tweedie'",
                )
            given = self.power if isinstance(self.likelihood, str) else None
            given = getattr(self.likelihood, "power", given)
            self.power_ = self._likeliest_power(data) if is_free else given
        model = super()._assemble(data, response)
        taken = model.taken_from_y + ("power",) * is_free
        return replace(model, taken_from_y=taken)

    def _likeliest_power(self, data):
        """Power of the largest likelihood, together with a dispersion."""
        y, weight, n = data.y / self._mean_of(data), data.weight, data.total_weight
        offset = 0.0 if data.offset is None else data.offset - data.offset.mean()
        if data.offset is not None:  # y over its unit u has u ** (p - 2) the variance
            own = np.exp((2 - START_POWER) * offset)
            weight = own if weight is None else own * weight
        # No pipeline: with metadata routing it would ask for requests of weights.
        scaler = StandardScaler(with_mean=not issparse(data.X))
        Z = scaler.fit(data.X, sample_weight=weight).transform(data.X)
        means = TweedieRegressor(
            power=START_POWER, link="log", alpha=1 / n, max_iter=1000
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            means.fit(Z, y / np.exp(offset), sample_weight=weight)
        f = np.log(means.predict(Z)) + offset
        f = torch.from_numpy(f)[None, :, None].double()
        given = f, as_tensor(y), None if data.weight is None else as_tensor(data.weight)

        def loss(x):
            power, dispersion = START_POWER + 0.49 * math.tanh(x[0]), math.exp(x[1])
            likelihood = TweedieLikelihood(power, dispersion)
            return -float(likelihood._total_log_prob(*given))

        best = minimize(loss, [0.0, 0.0], method="Nelder-Mead", tol=1e-4).x
        found = START_POWER + 0.49 * math.tanh(best[0])
        if abs(found - START_POWER) > AT_LIMIT:
            self._warn(POWER_AT_LIMIT.format(found), SkviWarning)
        return found
