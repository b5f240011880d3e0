"""Scorers of predictions on new rows."""

from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state, gen_batches

from skvi.exceptions import SkviWarning
from skvi.metrics._scores import (
    RowScorer,
    interval_score,
    normal_crps,
    sample_crps,
    split_interval,
)
from skvi.utils._tensors import RandomState
from skvi.utils._validation import (
    _safe_indexing,
    interval_levels,
    warn_user,
)

# Probabilities beyond quantiles that show whether there is a mean, and the least share
# of it that quantiles farther out do not have: of a Cauchy distribution they are equal.
TAILS, NEARLY = (1e-6, 1e-12), 0.9
NO_MEAN = (
    "{}: the forecast has no mean, and therefore an infinite CRPS: its tails are too "
    "heavy, as those of the exponential of Student-t noise. Score it by "
    "log_predictive_density_scorer or neg_interval_score_scorer, or use "
    "likelihood='gaussian' for the transformed target."
)
# Rows processed at once with all draws.
ROW_BLOCK = 2048


@runtime_checkable
class MixesNormals(Protocol):
    """An estimator whose predictive distributions can be mixtures of normals."""

    def _predictive_normals(
        self, X: Any, **options: Any
    ) -> tuple[np.ndarray, ...] | None:
        """Means and standard deviations of the components, (n, S), and their weights.

        None if the components are not normal.
        """
        ...


class LogPredictiveDensity(RowScorer):
    """Scorer: mean log predictive density of new rows, in nats per row.

    The strictly proper score that depends only on the observed outcome: the log of the
    probability, or of the density, that the forecast assigned to each y. For
    classifiers it is minus scikit-learn's ``log_loss``. For continuous y it changes
    with the unit of y, by the same number for all models: only differences are
    meaningful.

    Ready for use as ``scoring=log_predictive_density_scorer``.

    See Also
    --------
    NegCRPS : In units of y, and forgiving outliers.

    Notes
    -----
    The mean over rows of the estimator's ``predict_log_density(X, y)``, each row given
    the training data alone; summed over several targets. A single row that the model
    considers impossible gives minus infinity. Regressors of other packages need
    ``predict(X, return_std=True)``, and are taken as normal; classifiers need
    ``predict_proba``.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.model_selection import cross_val_score
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> from skvi.metrics._scorers import LogPredictiveDensity
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BayesianLinearRegression()
    >>> cross_val_score(model, X, y, scoring=LogPredictiveDensity(), cv=3).round(2)
    array([-5.43, -5.46, -5.39])
    """

    method: ClassVar[str] = "predict_log_density"
    otherwise: ClassVar[str] = "a classifier needs predict_proba"

    def _rows(self, estimator: Any, X: Any, y: ArrayLike, options: dict) -> np.ndarray:
        return estimator.predict_log_density(X, y, **options)


class NegCRPS(RowScorer):
    """Scorer: minus the mean continuous ranked probability score, in units of y.

    The CRPS compares distribution functions. It is a proper score like the log density,
    but grows only linearly with the distance of an outlier. For a forecast without
    uncertainty it is the absolute error.

    Ready for use as ``scoring=neg_crps_scorer``.

    Parameters
    ----------
    n_draws : int, default=1000
        Draws for each row, only if the forecast is not a mixture of normals.
    random_state : int, RandomState instance or None, default=0
        Seed of these draws. An int gives every candidate of a search the same noise.

    See Also
    --------
    normal_crps, sample_crps : The formulas.

    Notes
    -----
    Exact for `BayesianLinearRegression` (with a hyperprior on the noise: up to the
    quadrature over it), for `BayesianMLPRegressor`, over its drawn networks, and for
    normal forecasts of other packages. For all others, such as
    `BayesianPoissonRegressor`, the unbiased estimate from draws of ``sample_y``. For
    several targets the mean over them. Not defined for classifiers, whose classes have
    no order.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.model_selection import cross_val_score
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> from skvi.metrics._scorers import NegCRPS
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BayesianLinearRegression()
    >>> cross_val_score(model, X, y, scoring=NegCRPS(), cv=3).round(1)
    array([-31.4, -32.5, -29.9])
    """

    method: ClassVar[str] = "sample_y"
    otherwise: ClassVar[str] = (
        "the CRPS of forecasts without uncertainty is scoring='neg_mean_absolute_error'"
    )

    def __init__(self, n_draws: int = 1000, random_state: RandomState = 0) -> None:
        super().__init__()
        self.n_draws = n_draws
        self.random_state = random_state

    def _rows(self, estimator: Any, X: Any, y: ArrayLike, options: dict) -> np.ndarray:
        y = _numbers(y)
        normals = None
        if isinstance(estimator, MixesNormals):
            normals = estimator._predictive_normals(X, **options)
        if normals is not None:
            return -normal_crps(y, *normals)
        if _lacks_mean(estimator, X, options):
            warn_user(NO_MEAN.format(type(self).__name__), SkviWarning)
            return np.full(y.shape, -np.inf)
        random_state, scores = check_random_state(self.random_state), []
        for rows in gen_batches(len(y), ROW_BLOCK):
            some = {k: _safe_indexing(v, rows) for k, v in options.items()}
            some |= {"n_draws": self.n_draws, "random_state": random_state}
            draws = estimator.sample_y(_safe_indexing(X, rows), **some)
            scores.append(-sample_crps(y[rows], draws))
        return np.concatenate(scores)


class IntervalScorer(RowScorer):
    """A scorer of prediction intervals: a subclass must implement `_rows`."""

    method: ClassVar[str] = "predict_interval"
    otherwise: ClassVar[str] = (
        "for other intervals there is skvi.metrics.interval_score"
    )

    def __init__(self, coverage: float = 0.9) -> None:
        super().__init__()
        interval_levels(type(self).__name__, coverage)
        self.coverage = coverage


class NegIntervalScore(IntervalScorer):
    """Scorer: minus the mean interval score (Winkler score), in units of y.

    The width of the prediction interval, plus ``2 / (1 - coverage)`` times the distance
    by which an observation misses it: narrow intervals score better, but only if they
    have their nominal coverage. It is proper, so that a search may maximize it.

    Ready for use as ``scoring=neg_interval_score_scorer``, at a coverage of 90 %.

    Parameters
    ----------
    coverage : float, default=0.9
        Probability of the intervals, in (0, 1).

    See Also
    --------
    IntervalCoverage : How many observations are inside, which is no score.
    interval_score : The formula.

    Notes
    -----
    From the estimator's ``predict_interval(X, coverage)``; for several targets the
    mean over them. Not defined for classifiers.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> from skvi.metrics._scorers import NegIntervalScore
    >>> X, y = load_diabetes(return_X_y=True)
    >>> grid = {"prior": ["hierarchical", "normal"]}
    >>> model = BayesianLinearRegression()
    >>> search = GridSearchCV(model, grid, scoring=NegIntervalScore(0.5)).fit(X, y)
    >>> search.best_params_
    {'prior': 'hierarchical'}
    """

    def _rows(self, estimator: Any, X: Any, y: ArrayLike, options: dict) -> np.ndarray:
        ends = estimator.predict_interval(X, self.coverage, **options)
        return -interval_score(_numbers(y), ends, self.coverage)


class IntervalCoverage(IntervalScorer):
    """Scorer: the fraction of observations inside their prediction intervals.

    A check of calibration, to be compared with the nominal coverage. It is not a score
    to be maximized: the widest intervals would win. Let a search choose by
    `NegIntervalScore`, and report this one in addition.

    Ready for use as ``interval_coverage_scorer``, at a coverage of 90 %.

    Parameters
    ----------
    coverage : float, default=0.9
        Probability of the intervals, in (0, 1).

    See Also
    --------
    NegIntervalScore : The proper score.

    Notes
    -----
    From the estimator's ``predict_interval(X, coverage)``; both ends belong to the
    interval, so that those of counts have at least their nominal coverage. For several
    targets the mean over them. Not defined for classifiers.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.model_selection import cross_validate
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> from skvi.metrics import interval_coverage_scorer, neg_interval_score_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> scoring = {
    ...     "score": neg_interval_score_scorer,
    ...     "coverage": interval_coverage_scorer,
    ... }
    >>> found = cross_validate(BayesianLinearRegression(), X, y, scoring=scoring)
    >>> round(float(found["test_coverage"].mean()), 2)
    0.9
    """

    def _rows(self, estimator: Any, X: Any, y: ArrayLike, options: dict) -> np.ndarray:
        ends = estimator.predict_interval(X, self.coverage, **options)
        y = _numbers(y)
        low, high = split_interval(y, np.asarray(ends, dtype=np.float64))
        return ((low <= y) & (y <= high)).astype(np.float64)


def _lacks_mean(estimator: Any, X: Any, options: dict) -> bool:
    """Whether the tails of a forecast add as much to its mean the farther out they are.

    The mean is the integral of quantiles over levels: an infinite one if quantiles
    times the probability beyond them do not decrease.
    """
    has_row_data = getattr(estimator, "_had_rows", False)
    if has_row_data or not hasattr(estimator, "predict_quantiles"):
        return False
    far, farther = np.array(TAILS)
    levels = [far, 1 - far, farther, 1 - farther]
    ends = np.abs(estimator.predict_quantiles(X, levels, **options))
    beyond = far * ends[:, :2], farther * ends[:, 2:]
    return bool((beyond[1] > NEARLY * beyond[0]).any())


def _numbers(y: ArrayLike) -> np.ndarray:
    """Observations as floats, (n,) or (n, K)."""
    y = np.asarray(y, dtype=np.float64)
    if not np.isfinite(y).all():
        raise ValueError("y contains NaN or infinity.")
    return y
