"""Bayesian regression of numbers of successes."""

from __future__ import annotations  # short types in help()

from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import xlogy
from sklearn.base import RegressorMixin
from sklearn.utils.validation import _num_samples

from skvi._estimator._model import Response, check_numbers
from skvi._predictive._mixtures import Predictive
from skvi.likelihoods._binomial import BinomialLikelihood
from skvi.linear_model._base import BayesianLinearModel
from skvi.linear_model._row_predictions import RowPredictionMixin, column_of_rows
from skvi.posteriors import Family, Posterior
from skvi.priors import Prior
from skvi.solvers import Solver
from skvi.utils._blocks import by_blocks
from skvi.utils._interrupts import with_callbacks
from skvi.utils._tensors import make_generator
from skvi.utils._validation import (
    _fit_context,
    as_tensor,
    column_or_1d,
)


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
                "y and n_trials must be counts, 0, 1, 2, ... For rates give "
                "y = np.round(rate * n_trials), and n_trials."
            )
        if (wrong := np.flatnonzero(successes > trials)).size:
            raise ValueError(
                f"y has more successes than trials in {wrong.size} row(s), such as "
                f"{successes[wrong[0]]:g} of {trials[wrong[0]]:g} in row {wrong[0]}. "
                "Give n_trials, the number of trials of each row; without it each row "
                "has one."
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
    given = 1.0 if n_trials is None else n_trials
    return column_of_rows("n_trials", given, n_rows)


@dataclass(frozen=True, eq=False)
class TrialsPredictive(Predictive):
    """New numbers of successes of some trials, (n,)."""

    inner: Predictive
    trials: np.ndarray

    @classmethod
    def of(cls, new: Predictive, trials: np.ndarray) -> TrialsPredictive:
        """Return the distributions of these numbers of trials, of those of one."""
        likelihood = cast(BinomialLikelihood, new.likelihood).of(as_tensor(trials))
        inner = replace(new, likelihood=likelihood)
        return cls(likelihood, new.units, inner, trials)

    def by_rows(self, function: Any, *columns: np.ndarray) -> np.ndarray:
        """Apply a function to all rows; see `Predictive.by_rows`."""

        def of_rows(
            p: Any, log_w: torch.Tensor, f: torch.Tensor, m: torch.Tensor, *some: Any
        ) -> torch.Tensor:
            return function(p.of(m), log_w, f, *some)

        return self.inner.by_rows(of_rows, self.trials, *columns)


class BayesianBinomialRegressor(
    RowPredictionMixin, RegressorMixin, BayesianLinearModel
):
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
    _row_data = {"n_trials": 1, "offset": 0}

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any,
        *,
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
        rows = {"n_trials": n_trials, "offset": offset}
        return self._fit(X, y, sample_weight, rows)

    def _with_row_data(self, y, rows):
        return _with_trials(super()._with_row_data(y, rows), rows.get("n_trials"))

    def _row_data_of(self, data):
        return {"n_trials": data.y[:, 1], "offset": data.offset}

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

    def _arviz_groups(self, *given):
        groups = super()._arviz_groups(*given)
        groups["observed_data"]["y"] = groups["observed_data"]["y"][:, 0]
        return groups

    def _dense_targets(self, y, name):
        return super()._dense_targets(y, name)[:, 0]

    def _of_rows(self, X, rows, function, *columns):
        trials = _check_trials(rows.get("n_trials"), _num_samples(X))

        def of_chunk(new, trials, *some):
            return function(TrialsPredictive.of(new, trials), *some)

        return super()._of_rows(X, rows, of_chunk, trials, *columns)

    def _observations(self, X, theta, random_state, **rows):
        trials = _check_trials(rows.get("n_trials"), X.shape[0])
        drawn = self._from_draws(X, theta, self._offset(X, rows))
        generator = make_generator(random_state)
        draw = lambda p, _, f: p.sample(f, generator).T
        return TrialsPredictive.of(drawn, trials).by_rows(draw).astype(X.dtype)

    @by_blocks
    def predict(
        self, X: Any, return_std: bool = False, **row_data: ArrayLike | None
    ) -> Any:
        """Predict the rate, the probability of success of a trial.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        return_std : bool, default=False
            Whether to return posterior standard deviations of the rates as well.
        **row_data : array-like of shape (n_samples,)
            An ``offset``; ``n_trials`` makes no difference.

        Returns
        -------
        rate : ndarray of shape (n_samples,)
            Averaged over the posterior.
        std : ndarray of shape (n_samples,)
            Only with ``return_std=True``.
        """
        self._check_return_std(return_std)
        rows = {**row_data, "n_trials": 1}
        rate, _, std = self._of_rows(X, rows, lambda new: new.parts()).T
        return (rate, std) if return_std else rate

    def score(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: ArrayLike | None = None,
        **row_data: ArrayLike | None,
    ) -> float:
        """Fraction of the binomial deviance explained, D^2.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
        **row_data : array-like of shape (n_samples,)
            ``n_trials`` and ``offset``, as of `fit`.

        Returns
        -------
        float
            1 - deviance / null deviance; the null model has one rate. At most 1; 0 if
            all predicted rates are equal.
        """
        rate = self.predict(X, **row_data).astype(np.float64)
        y, m = Successes().encode(self._with_row_data(y, row_data)).T
        weight = self._check_weights(rate[:, None], sample_weight)
        weight = np.ones(len(y)) if weight is None else weight

        def log_p(p):
            return float(weight @ (xlogy(y, p) + xlogy(m - y, 1 - p)))

        best = log_p(y / np.maximum(m, 1))
        worst = best - log_p((weight @ y) / max(weight @ m, 1.0))
        return (worst - best + log_p(rate)) / worst if worst > 0 else 0.0
