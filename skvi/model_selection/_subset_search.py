"""Search over subsets of columns, and predictions averaged over them."""

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._regressors import ForecastMixin
from skvi._predictive._mixtures import NormalMixture
from skvi.likelihoods import GaussianLikelihood
from skvi.model_selection._subsets import (
    Components,
    Subsets,
    average,
    find_form,
    log_prior_of_sizes,
    thin,
    walk,
)
from skvi.solvers._exact import LEAST_SHAPE
from skvi.utils._interrupts import limit_threads
from skvi.utils._links import page_template
from skvi.utils._validation import (
    Interval,
    StrOptions,
    _fit_context,
    column_or_1d,
    validate_data,
)

# Models that predictions average over, and that `results_` lists.
N_KEPT, N_LISTED = 2**14, 1000


@dataclass(frozen=True, eq=False)
class SubsetPredictive(NormalMixture):
    """New targets in rows of the fit, with a column of zeros, (n, d + 1)."""

    components: Components
    rows: torch.Tensor
    log_weights: torch.Tensor

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        return len(self.rows)

    def at_nodes(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Those given a model and the precisions; see `NormalMixture.at_nodes`."""
        parts, X = self.components, self.rows[rows]
        # By components, (M, n, k).
        own = X.T[parts.index].mT
        mean = (own @ parts.means[..., None])[..., 0] + parts.intercept[:, None]
        lengths = 1 + (own @ parts.roots).square().sum(-1)
        variance = parts.noise[:, None] * lengths + parts.intercept_variance[:, None]
        return mean, variance.sqrt()


class SubsetSearch(
    ForecastMixin, SelectorMixin, RegressorMixin, MetaEstimatorMixin, BaseEstimator
):
    """Average over all subsets of the columns of a linear regression.

    Which columns belong to the model? Given a subset, a regression with normal noise
    and normal coefficients has its evidence in closed form but for one or two unknown
    scales, which are integrated by quadrature. So every one of the 2^d subsets of up to
    `max_enumerated` columns is weighed in one pass, 32,768 of them in about two
    seconds. Of more columns a random walk visits the subsets that matter.

    Parameters
    ----------
    estimator : BayesianLinearRegression
        Model of every subset: prior, noise, intercept and normalization are its own.
    model_prior : "beta_binomial" or float, default="beta_binomial"
        Prior over subsets. "beta_binomial" gives every *number* of columns the same
        probability, so that useless candidates cost the others little. A number in
        (0, 1) is the probability of each column, independent of the others: with 0.5
        all subsets are equally likely.
    max_enumerated : int, default=20
        Number of columns up to which all subsets are enumerated.
    n_sweeps : int, default=50
        Of the walk: how often each of its 64 chains proposes to add or remove every
        column. The first quarter is left out.
    random_state : int, RandomState instance or None, default=None
        Seed of the walk, and of the choice of the 4,096 normals of which predictive
        distributions are mixtures.

    Attributes
    ----------
    inclusion_ : ndarray of shape (n_features,)
        Posterior probability that a column belongs to the model. Under the default
        `model_prior` it is 0.5 before the data.
    inclusion_se_ : ndarray of shape (n_features,)
        Its standard error, from differences between the chains, rough where it is
        near 0 or 1; 0 after enumeration, where that of the quadrature is about 1e-7.
    coef_, coef_std_ : ndarray of shape (n_features,)
        Means and standard deviations over all subsets, in which absent columns have the
        coefficient 0; in units of y per unit of X.
    intercept_ : float
    results_ : dict of str to ndarray
        The most probable subsets, at most 1,000, ready for `pandas.DataFrame`:
        "columns", which are positions, "log_evidence" in nats, without `model_prior`,
        and "probability", with it.
    n_models_ : int
        Number of different subsets that were kept, with a probability.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    See Also
    --------
    EvidenceSearch : Any models, with the bounds of each evidence.

    Notes
    -----
    `get_support` and `transform` select the columns whose inclusion is at least 0.5,
    the *median probability model*: the single subset that predicts best if columns are
    orthogonal (Barbieri and Berger, 2004). To predict, rather use the average over all.

    Predictions integrate over subsets, scales and coefficients. Means and deviations
    are exact; intervals and densities are of a mixture of 4,096 normals, which are a
    stratified sample of the subsets and scales if there are more.

    References
    ----------
    Raftery, Madigan and Hoeting (1997), *Bayesian model averaging for linear regression
    models*. Scott and Berger (2010), *Bayes and empirical-Bayes multiplicity adjustment
    in the variable-selection problem*: the beta-binomial prior.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> from skvi.model_selection import SubsetSearch
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> search = SubsetSearch(BayesianLinearRegression(), random_state=0).fit(X, y)
    >>> search.inclusion_[:4].round(2)
    array([0.37, 1.  , 1.  , 1.  ])
    >>> mean, std = search.predict(X[:2], return_std=True)
    >>> std.round(1)
    array([54.8, 54.8])
    """

    _parameter_constraints: dict = {
        "model_prior": [
            StrOptions({"beta_binomial"}),
            Interval(Real, 0, 1, closed="neither"),
        ],
        "max_enumerated": [Interval(Integral, 0, 25, closed="both")],
        "n_sweeps": [Interval(Integral, 2, None, closed="left")],
        "random_state": ["random_state"],
    }
    _doc_link_module = "skvi"
    _doc_link_template = property(page_template)

    def __init__(
        self,
        estimator: BaseEstimator,
        *,
        model_prior: str | float = "beta_binomial",
        max_enumerated: int = 20,
        n_sweeps: int = 50,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.model_prior = model_prior
        self.max_enumerated = max_enumerated
        self.n_sweeps = n_sweeps
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Weigh all subsets, or walk over them.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
            Nonnegative; a row with weight 2 counts twice.

        Returns
        -------
        self

        Raises
        ------
        IncompatibleComponentsError
            The estimator is no regression whose evidence has this closed form.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        rng, model = check_random_state(self.random_state), clone(self.estimator)
        form = find_form(model, X, y, sample_weight)
        with torch.no_grad(), limit_threads(X.shape[1] ** 3):
            self._fit(Subsets(form), rng)
        self._units = units = model._model.units
        exponent = form.noise.exponent + 0.5 * form.data.n
        if form.noise.hyperprior is not None and exponent < LEAST_SHAPE:
            self._noise = math.inf
        scale, d = units.y_scale / np.asarray(units.x_scale), X.shape[1]
        self.coef_ = self._mean[:d] * scale
        self.coef_std_ = np.sqrt(self._covariance.diagonal()[:d]) * scale
        origin = 0.0 if units.x_mean is None else self.coef_ @ units.x_mean
        self.intercept_ = float(units.y_mean + units.y_scale * self._mean[d] - origin)
        return self

    def _fit(self, subsets: Subsets, rng: np.random.RandomState) -> None:
        """Probabilities of subsets, and what predictions need, in units of the fit."""
        d = self.n_features_in_
        of_sizes = log_prior_of_sizes(self.model_prior, d)

        def log_posterior(masks: np.ndarray) -> np.ndarray:
            return subsets.log_evidence(masks) + of_sizes[masks.sum(1)]

        if d <= self.max_enumerated:
            bits = np.arange(d, dtype=np.int32)
            masks = (np.arange(2**d, dtype=np.int32)[:, None] >> bits & 1).astype(bool)
            logs = log_posterior(masks)
            weights = np.exp(logs - logsumexp(logs))
            self.inclusion_, self.inclusion_se_ = weights @ masks, np.zeros(d)
        else:
            by_chain, visited = walk(log_posterior, d, self.n_sweeps, rng)
            self.inclusion_ = by_chain.mean(0)
            self.inclusion_se_ = by_chain.std(0, ddof=1) / math.sqrt(len(by_chain))
            masks, counts = np.unique(visited, axis=0, return_counts=True)
            weights, logs = counts / len(visited), log_posterior(masks)
        best = np.argsort(-weights, kind="stable")[:N_LISTED]
        columns = np.empty(len(best), dtype=object)
        columns[:] = [np.flatnonzero(masks[i]) for i in best]
        evidence = logs[best] - of_sizes[masks[best].sum(1)]
        self.results_ = {
            "columns": columns,
            "log_evidence": evidence,
            "probability": weights[best],
        }
        kept, shares = thin(weights, N_KEPT, rng)
        self.n_models_ = len(masks)
        found = average(subsets, masks[kept], shares / shares.sum(), rng)
        self._mean, self._covariance = found.mean, found.covariance
        self._noise, self._components = found.noise, found.components

    def _get_support_mask(self) -> np.ndarray:
        check_is_fitted(self)
        return self.inclusion_ >= 0.5

    def _check_X(self, X: Any) -> np.ndarray:
        """Features of the fit, with a column of zeros, (n, d + 1)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        origin = 0.0 if self._units.x_mean is None else self._units.x_mean
        return np.pad((X - origin) / self._units.x_scale, [(0, 0), (0, 1)])

    def _predictive(self, design: np.ndarray) -> SubsetPredictive:
        parts, rows = self._components, torch.from_numpy(design)
        given = GaussianLikelihood(), self._units, parts, rows, parts.log_weights
        return SubsetPredictive(*given)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the mean of the target, averaged over subsets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        return_std : bool, default=False
            Whether to return standard deviations as well: of a new target, from noise,
            coefficients and the choice of the subset.

        Returns
        -------
        mean : ndarray of shape (n_samples,)
        std : ndarray of shape (n_samples,)
            Only with ``return_std=True``.
        """
        design = self._check_X(X)
        design[:, -1] = 1.0
        units = self._units
        mean = units.y_mean + units.y_scale * (design @ self._mean)
        if not return_std:
            return mean
        variance = ((design @ self._covariance) * design).sum(1) + self._noise
        return mean, units.y_scale * np.sqrt(variance)

    def _encode(self, y: Any) -> np.ndarray:
        return column_or_1d(y, dtype=np.float64)

    def sample_posterior(
        self, n_draws: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> dict[str, np.ndarray]:
        """Draw subsets, with coefficients, intercept and noise given each.

        Parameters
        ----------
        n_draws : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        dict of str to ndarray
            In units of y, and for the features as they were given: "coef" of shape
            (n_draws, n_features), where absent columns have 0, "intercept" and
            "noise_scale" of shape (n_draws,).
        """
        check_is_fitted(self)
        coef, intercept, noise = self._draw(n_draws, check_random_state(random_state))
        units = self._units
        coef = coef[:, :-1] * units.y_scale / np.asarray(units.x_scale)
        origin = 0.0 if units.x_mean is None else coef @ units.x_mean
        return {
            "coef": coef,
            "intercept": units.y_mean + units.y_scale * intercept - origin,
            "noise_scale": units.y_scale * noise,
        }

    def _draw(self, n_draws: int, rng: np.random.RandomState) -> tuple[np.ndarray, ...]:
        """Coefficients, (S, d + 1), intercepts and noise, (S,), in units of the fit."""
        parts = self._components
        shares = parts.log_weights.exp().numpy()
        some = rng.choice(len(shares), n_draws, p=shares / shares.sum())
        index, means, roots, intercept, variance, noise = (
            part[some].numpy()
            for part in (
                parts.index,
                parts.means,
                parts.roots,
                parts.intercept,
                parts.intercept_variance,
                parts.noise,
            )
        )
        z = rng.normal(size=(*means.shape, 1)) * np.sqrt(noise)[:, None, None]
        coef = np.zeros((n_draws, self.n_features_in_ + 1))
        np.put_along_axis(coef, index, means + (roots @ z)[..., 0], 1)
        intercept = intercept + np.sqrt(variance) * rng.normal(size=n_draws)
        return coef, intercept, np.sqrt(noise)

    def _observations(
        self, design: np.ndarray, draws: tuple, rng: np.random.RandomState
    ) -> np.ndarray:
        coef, intercept, noise = draws
        mean = design @ coef.T + intercept
        new = mean + noise * rng.normal(size=mean.shape)
        return self._units.y_mean + self._units.y_scale * new
