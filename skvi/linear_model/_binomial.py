"""Bayesian regression of numbers of successes."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import xlogy
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._model import Response, check_numbers
from skvi._predictive._mixtures import (
    DrawnPredictive,
    Predictive,
    QuadraturePredictive,
)
from skvi.base._layout import Units
from skvi.evidence import EvidenceBounds
from skvi.likelihoods._binomial import BinomialLikelihood
from skvi.linear_model._base import BayesianLinearModel
from skvi.posteriors import Family, Posterior
from skvi.priors import Prior
from skvi.solvers import Solver
from skvi.utils._interrupts import with_callbacks
from skvi.utils._tensors import make_generator
from skvi.utils._validation import (
    _fit_context,
    as_tensor,
    check_levels,
    column_or_1d,
    interval_levels,
)

UNITS = Units(0.0, 1.0)


class Successes(Response):
    """Successes and trials, encoded as two columns."""

    def encode(self, y: Any) -> np.ndarray:
        """Check successes, (n,), of one trial, or with trials, (n, 2)."""
        y = check_numbers(y)
        if y.ndim < 2 or y.shape[1] == 1:
            y = np.column_stack([column_or_1d(y), np.ones(len(y))])
        successes, trials = y.T
        if (y != np.floor(y)).any() or (y < 0).any():
            raise ValueError(
                "y and n_trials must be counts, 0, 1, 2, ... Of rates give "
                "y = rate * n_trials, rounded, and n_trials."
            )
        if (wrong := np.flatnonzero(successes > trials)).size:
            raise ValueError(
                f"y has more successes than trials in {wrong.size} rows, in row "
                f"{wrong[0]} {successes[wrong[0]]:g} of {trials[wrong[0]]:g}: give "
                "n_trials, the number of trials of each row, which is 1 without it."
            )
        return y


def _with_trials(y: Any, n_trials: Any) -> Any:
    """Successes and trials in two columns; y itself without trials."""
    if y is None or (n_trials is None and np.asarray(y).ndim < 2):
        return y
    y = check_numbers(y)
    if y.ndim > 1 and y.shape[1] > 1:
        raise ValueError(
            f"y must have one column, the successes. Got the shape {y.shape}: give the "
            "trials, successes and failures together, as n_trials."
        )
    y = column_or_1d(y, warn=True)
    return np.column_stack([y, _check_trials(n_trials, len(y))])


def _check_trials(n_trials: Any, n_rows: int) -> np.ndarray:
    """One number of trials for each row; None is 1."""
    if np.ndim(n_trials) == 0:
        return np.full(n_rows, 1.0 if n_trials is None else float(n_trials))
    trials = column_or_1d(check_numbers(n_trials))
    if len(trials) != n_rows:
        raise ValueError(
            f"n_trials must have one number for each of the {n_rows} rows. Got "
            f"{len(trials)} numbers."
        )
    return trials


@dataclass(frozen=True, eq=False)
class TrialsPredictive(Predictive):
    """New numbers of successes of some trials, (n,)."""

    inner: Predictive
    trials: np.ndarray

    def by_rows(self, function: Any, *columns: np.ndarray) -> np.ndarray:
        """Apply a function to all rows; see `Predictive.by_rows`."""

        def of_rows(
            p: Any, log_w: torch.Tensor, f: torch.Tensor, m: torch.Tensor, *some: Any
        ) -> torch.Tensor:
            return function(p.of(m), log_w, f, *some)

        return self.inner.by_rows(of_rows, self.trials, *columns)


class BayesianBinomialRegressor(RegressorMixin, BayesianLinearModel):
    """Logistic regression of y successes of `n_trials`, with a posterior.

    Each row has its own number of trials, all with the same probability, such as sick
    animals of a herd or voters of a district. The posterior is that of
    `BayesianLogisticRegression` for one row for each trial, without these rows; the
    evidence also has the binomial coefficients.

    Parameters
    ----------
    posterior : {"auto", "full_rank", "mean_field"} or Family, default="auto"
    prior : {"auto", "normal", "laplace", "student_t", "horseshoe", "ard", \
"log_uniform"}, Prior, Posterior or dict, default="auto"
        Prior of the coefficients, as of `BayesianLogisticRegression`.
    column_groups : dict of str to columns or None, default=None
        Groups of columns with scales of their own, as of `BayesianLogisticRegression`.
    intercept_prior : {"normal", "laplace", ...}, Prior or None, default=None
        Prior of the log odds at the means of the features, to which each trial counts
        once. None is ``Normal(10.0)``.
    fit_intercept : bool, default=True
    solver : {"auto", "natural_gradient", "empirical_bayes", "moment_matching", \
"stochastic"} or Solver, default="auto"
    max_iter : int, default=100
    tol : float, default=1e-5
        Tolerance in nats, as of `BayesianLogisticRegression`.
    n_jobs : int, default=None
        Maximum number of threads; -1 is every core.
    verbose : int, default=0
    random_state : int, RandomState instance or None, default=None
        Only used by fits with random draws.

    Attributes
    ----------
    coef_, coef_std_ : ndarray of shape (n_features,)
        Posterior means and standard deviations of the coefficients of the log odds.
    intercept_, intercept_std_ : float
    lower_bound_ : float
        Evidence lower bound (ELBO), in nats, summed over the data.
    diagnostics_ : dict
        As of `BayesianLogisticRegression`.
    posterior_ : Posterior
        Of the features in the units of the fit. A `MixtureOverScales` if `prior`
        infers a scale.
    n_iter_ : int
    converged_ : bool
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    See Also
    --------
    BayesianLogisticRegression : For classes of single rows.

    Notes
    -----
    ``n_trials`` and ``offset`` are parameters of the methods that take rows, and can be
    routed as metadata: ``set_fit_request(n_trials=True)``. An offset is added to the
    log odds; with one trial per row this is a logistic regression with an offset.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.linear_model import BayesianBinomialRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, trials = rng.normal(size=(40, 1)), rng.integers(1, 30, size=40)
    >>> y = rng.binomial(trials, 1 / (1 + np.exp(1 - X[:, 0])))
    >>> model = BayesianBinomialRegressor().fit(X, y, n_trials=trials)
    >>> rate, std = model.predict([[0.0]], return_std=True)
    >>> rate.round(3), std.round(3)
    (array([0.311]), array([0.021]))
    >>> model.predict_interval([[0.0]], n_trials=20)
    array([[ 3., 10.]])
    """

    def __init__(
        self,
        posterior: str | Family = "auto",
        prior: str | Prior | Posterior | dict[str, Any] = "auto",
        column_groups: dict[str, Any] | None = None,
        intercept_prior: str | Prior | None = None,
        fit_intercept: bool = True,
        solver: str | Solver = "auto",
        max_iter: int = 100,
        tol: float = 1e-5,
        n_jobs: int | None = None,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.posterior = posterior
        self.prior = prior
        self.column_groups = column_groups
        self.intercept_prior = intercept_prior
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    _input_with_target = {"multi_output": True}
    _row_data = ", n_trials, sample_weight and offset"

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Self:
        """Fit the posterior.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Numbers of successes.
        sample_weight : array-like of shape (n_samples,), default=None
            Nonnegative; a row with weight 2 counts twice.
        n_trials : int or array-like of shape (n_samples,), default=None
            Numbers of trials; None is one trial for every row.
        offset : array-like of shape (n_samples,), default=None
            Added to the log odds.

        Returns
        -------
        self
        """
        return self._fit(X, _with_trials(y, n_trials), sample_weight, offset)

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        forgetting: float = 1.0,
    ) -> Self:
        """Learn from a batch: the current posterior is the prior for the next batch.

        As `BayesianLinearModel.partial_fit`, with the trials and offset of `fit`.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
        n_trials : int or array-like of shape (n_samples,), default=None
        offset : array-like of shape (n_samples,), default=None
        forgetting : float, default=1.0
            Power, in (0, 1], of the posterior so far.

        Returns
        -------
        self
        """
        y = _with_trials(y, n_trials)
        options = {"exposure": offset, "forgetting": forgetting}
        return self._learn_batch(X, y, sample_weight, **options)

    def evidence_bounds(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        **options: Any,
    ) -> EvidenceBounds:
        """Bound the log evidence log p(D) of the model from below and above.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight, n_trials, offset : array-like, default=None
            Those of the fit.
        **options : dict
            As of `BayesianLogisticRegression.evidence_bounds`.

        Returns
        -------
        EvidenceBounds
        """
        rows = {"sample_weight": sample_weight, "exposure": offset}
        return super().evidence_bounds(X, _with_trials(y, n_trials), **rows, **options)

    def _response(self, y):
        return Successes()

    def _assemble(self, data, response):
        return self._generalized_linear(data, response, BinomialLikelihood())

    def _find_units(self, data):
        """Units of the features with one row for each trial."""
        trials = data.y[:, 1]
        weight = trials if data.weight is None else trials * data.weight
        known = weight.sum() > 0
        return super()._find_units(replace(data, weight=weight) if known else data)

    def _check_exposure(self, X, offset):
        """The offset, (n,)."""
        if offset is None:
            return None
        offset = column_or_1d(check_numbers(offset))
        if len(offset) != X.shape[0]:
            raise ValueError(
                f"offset must have one number for each of the {X.shape[0]} rows. Got "
                f"{len(offset)} numbers."
            )
        return offset

    def _posterior_attributes(self, state):
        found = super()._posterior_attributes(state)
        for name in ("coef_", "coef_std_"):
            found[name] = found[name][0]
        for name in ("intercept_", "intercept_std_"):
            found[name] = float(found[name][0])
        return found

    def _of_rows(self, X, n_trials, offset, function, *columns):
        """What a function gives for the distributions of new successes."""
        check_is_fitted(self)
        X = self._check_X(X)
        trials, likelihood = _check_trials(n_trials, X.shape[0]), self._model.likelihood
        offset = self._model.offset(self._check_exposure(X, offset), X.shape[0])
        if self._is_drawn():
            drawn = DrawnPredictive(likelihood, UNITS, self._drawn(), X, offset)
            new = TrialsPredictive(likelihood, UNITS, drawn, trials)
            return function(new, *columns).astype(X.dtype)

        def of_chunk(mean, variance, offset, trials, *some):
            own = likelihood.of(as_tensor(trials))
            normals = mean + as_tensor(offset), variance.sqrt(), self._log_weights
            inner = QuadraturePredictive(own, UNITS, *normals)
            return function(TrialsPredictive(own, UNITS, inner, trials), *some)

        offset = np.zeros(X.shape[0]) if offset is None else offset
        found = self._in_chunks(X, of_chunk, offset, trials, *columns)
        return found.astype(X.dtype)

    def predict(
        self, X: Any, return_std: bool = False, offset: ArrayLike | None = None
    ) -> Any:
        """Predict the rate, the probability of success of a trial.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        return_std : bool, default=False
            Whether to return posterior standard deviations of the rates as well.
        offset : array-like of shape (n_samples,), default=None

        Returns
        -------
        rate : ndarray of shape (n_samples,)
            Averaged over the posterior.
        std : ndarray of shape (n_samples,)
            Only with ``return_std=True``.
        """
        rate, _, std = self._of_rows(X, None, offset, lambda new: new.parts()).T
        return (rate, std) if return_std else rate

    def predict_quantiles(
        self,
        X: Any,
        quantiles: ArrayLike,
        n_trials: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> np.ndarray:
        """Predict quantiles of a new number of successes.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        quantiles : float or array-like of shape (n_quantiles,)
            Probabilities in (0, 1).
        n_trials : int or array-like of shape (n_samples,), default=None
            None is one trial.
        offset : array-like of shape (n_samples,), default=None

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles)
            The smallest numbers whose cumulative probability reaches these values.
        """
        levels = check_levels(quantiles)
        return self._of_rows(X, n_trials, offset, lambda new: new.quantiles(levels))

    def _cumulative(self, X, n_trials=None, offset=None):
        """Distribution function of new numbers of successes in rows of X."""
        return lambda y: self._of_rows(X, n_trials, offset, lambda p, y: p.cdf(y), y)

    def predict_interval(
        self,
        X: Any,
        coverage: float = 0.9,
        n_trials: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> np.ndarray:
        """Predict a central interval for a new number of successes.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        coverage : float, default=0.9
            Minimum probability of the interval, in (0, 1).
        n_trials : int or array-like of shape (n_samples,), default=None
            None is one trial.
        offset : array-like of shape (n_samples,), default=None

        Returns
        -------
        ndarray of shape (n_samples, 2)
            Lower and upper end; both belong to the interval.
        """
        levels = interval_levels(type(self).__name__, coverage)
        return self.predict_quantiles(X, levels, n_trials, offset)

    def predict_log_density(
        self,
        X: Any,
        y: Any,
        n_trials: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> np.ndarray:
        """Log predictive mass of each number: the proper score of a forecast.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        n_trials : int or array-like of shape (n_samples,), default=None
        offset : array-like of shape (n_samples,), default=None

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats, each row given the training data alone.
        """
        y, trials = Successes().encode(_with_trials(y, n_trials)).T
        return self._of_rows(X, trials, offset, lambda new, y: new.log_density(y), y)

    def sample_y(
        self,
        X: Any,
        n_draws: int = 1,
        random_state: int | np.random.RandomState | None = None,
        n_trials: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> np.ndarray:
        """Draw new numbers of successes from the posterior predictive distribution.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        n_draws : int, default=1
        random_state : int, RandomState instance or None, default=None
        n_trials : int or array-like of shape (n_samples,), default=None
        offset : array-like of shape (n_samples,), default=None

        Returns
        -------
        ndarray of shape (n_samples, n_draws)
            Every column uses one draw of the coefficients, the same for all rows.
        """
        X = self._check_X(X)
        random_state = check_random_state(random_state)
        theta = self._draw(n_draws, random_state)
        generator = make_generator(random_state)
        trials = _check_trials(n_trials, X.shape[0])
        offset = self._model.offset(self._check_exposure(X, offset), X.shape[0])
        drawn = self._drawn(theta)
        inner = DrawnPredictive(self._model.likelihood, UNITS, drawn, X, offset)
        new = TrialsPredictive(self._model.likelihood, UNITS, inner, trials)
        draw = lambda p, _, f: p.sample(f, generator).T
        return new.by_rows(draw).astype(X.dtype)

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> float:
        """Fraction of the binomial deviance explained, D^2.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
        n_trials : int or array-like of shape (n_samples,), default=None
        offset : array-like of shape (n_samples,), default=None

        Returns
        -------
        float
            1 - deviance / null deviance; the null model has one rate. At most 1; 0 if
            all predicted rates are equal.
        """
        rate = self.predict(X, offset=offset).astype(np.float64)
        y, m = Successes().encode(_with_trials(y, n_trials)).T
        weight = self._check_weights(rate[:, None], sample_weight)
        weight = np.ones(len(y)) if weight is None else weight

        def log_p(p):
            return float(weight @ (xlogy(y, p) + xlogy(m - y, 1 - p)))

        best = log_p(y / np.maximum(m, 1))
        worst = best - log_p((weight @ y) / max(weight @ m, 1.0))
        return (worst - best + log_p(rate)) / worst if worst > 0 else 0.0
