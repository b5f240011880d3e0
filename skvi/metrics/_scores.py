"""Proper scores of forecasts, row by row, and the base of their scorers."""

import math
from copy import copy
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr
from sklearn.base import is_classifier
from sklearn.utils.metadata_routing import MetadataRequest

from skvi.utils._forecasts import find_forecast
from skvi.utils._validation import (
    ROW_DATA,
    check_sample_weight,
    interval_levels,
    row_chunks,
)

# Elements of a temporary array.
CHUNK_ELEMENTS = 2**20


def normal_crps(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, weights: ArrayLike | None = None
) -> np.ndarray:
    r"""Continuous ranked probability score of normals and mixtures of normals.

    .. math:: \mathrm{CRPS}(F, y) = \int (F(t) - 1\{y \le t\})^2 dt
        = E|T - y| - \tfrac{1}{2} E|T - T'|

    with independent T, T' ~ F. It is in units of y: 0 for a certain and correct
    forecast, and the absolute error for any certain forecast. Smaller is better, and on
    average no forecast is better than the true distribution.

    Parameters
    ----------
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Observations.
    mean, std : array-like of the shape of y, or with another axis of length n_draws
        Moments of the normals, or of the components of a mixture. A standard deviation
        of 0 is a certain forecast.
    weights : array-like of shape (n_draws,), default=None
        Weights of the components, with sum 1, or of any shape that fits `mean`; None
        is equal weights. Only for mixtures.

    Returns
    -------
    ndarray of the shape of y
        In units of y, exact up to rounding.

    Raises
    ------
    ValueError
        The shapes do not fit, or `weights` come without components.

    See Also
    --------
    sample_crps : The same from draws of any distribution.
    NegCRPS : The scorer.

    References
    ----------
    Gneiting and Raftery (2007), *Strictly proper scoring rules, prediction, and
    estimation*, equations (20) and (21); mixtures of normals as in Grimit et al.
    (2006), *The continuous ranked probability score for circular variables*.

    Examples
    --------
    >>> from skvi.metrics import normal_crps
    >>> normal_crps([0.0, 3.0], [0.0, 0.0], [1.0, 1.0]).round(4)
    array([0.2337, 2.4366])
    >>> normal_crps([0.0], [[-1.0, 1.0]], [[0.5, 0.5]]).round(4)  # two components
    array([0.3672])
    """
    y, mean, std = (np.asarray(a, dtype=np.float64) for a in (y, mean, std))
    is_mixture = mean.ndim == y.ndim + 1
    fits = mean.shape[: y.ndim] == y.shape and mean.ndim - y.ndim in (0, 1)
    if not fits or std.shape != mean.shape or (weights is not None and not is_mixture):
        raise ValueError(
            "mean and std must have the shape of y, or one more axis for the "
            f"components, that weights need. Got y {y.shape}, mean {mean.shape}, std "
            f"{std.shape}, weights {None if weights is None else np.shape(weights)}."
        )
    if not is_mixture:
        return _absolute(y - mean, std) - std / math.sqrt(math.pi)
    w = 1 / mean.shape[-1] if weights is None else np.asarray(weights, dtype=np.float64)
    size = mean.shape[-1]
    columns = (a.reshape(-1, size) for a in (mean, std, np.broadcast_to(w, mean.shape)))
    return _of_mixtures(y.ravel(), *columns).reshape(y.shape)


def _of_mixtures(
    y: np.ndarray, mean: np.ndarray, std: np.ndarray, w: np.ndarray
) -> np.ndarray:
    """CRPS of mixtures, (n,), whose components are the columns."""
    score = (w * _absolute(y[:, None] - mean, std)).sum(1)
    score -= (w**2 * std).sum(1) / math.sqrt(
        math.pi
    )  # pairs of a component with itself
    one, other = np.triu_indices(mean.shape[1], 1)
    for rows in row_chunks(len(y), len(one), CHUNK_ELEMENTS):
        m, s, p = mean[rows], std[rows], w[rows]
        between = _absolute(m[:, one] - m[:, other], np.hypot(s[:, one], s[:, other]))
        score[rows] -= (p[:, one] * p[:, other] * between).sum(1)
    return score


def _absolute(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """E|T| of normals."""
    z = np.abs(mean) / np.maximum(std, 1e-300)
    density = np.exp(-0.5 * np.minimum(z, 1e3) ** 2) / math.sqrt(2 * math.pi)
    return np.abs(mean) * (1 - 2 * ndtr(-z)) + 2 * std * density


def sample_crps(y: ArrayLike, draws: ArrayLike) -> np.ndarray:
    r"""Continuous ranked probability score of any distribution, from draws.

    .. math:: \frac{1}{S} \sum_s |t_s - y|
        - \frac{1}{2 S (S - 1)} \sum_{s, s'} |t_s - t_{s'}|

    Parameters
    ----------
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Observations.
    draws : array-like of the shape of y, with a last axis of length n_draws
        Independent draws of the forecast, at least two.

    Returns
    -------
    ndarray of the shape of y
        In units of y; smaller is better. An unbiased estimate for every number S of
        draws (the "fair" one: division by S squared would favor forecasts that are too
        narrow), so that single values can be negative.

    Raises
    ------
    ValueError
        The shapes do not fit, or there are fewer than two draws.

    See Also
    --------
    normal_crps : Exact, for normals and their mixtures.

    References
    ----------
    Ferro (2014), *Fair scores for ensemble forecasts*, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.metrics import sample_crps
    >>> draws = np.random.default_rng(0).normal(size=(1, 100_000))
    >>> sample_crps([0.0], draws).round(2)
    array([0.23])
    """
    y, draws = np.asarray(y, dtype=np.float64), np.asarray(draws, dtype=np.float64)
    size = draws.shape[-1] if draws.ndim else 0
    if draws.shape[:-1] != y.shape or size < 2:
        raise ValueError(
            "draws must have the shape of y and another axis, of at least two draws. "
            f"Got y {y.shape} and draws {draws.shape}."
        )
    deviations = np.sort(draws - y[..., None], axis=-1)
    # Every pair once: the k-th smallest is the larger one of k pairs.
    ranks = 2 * np.arange(size) - (size - 1.0)
    half_gap = (deviations * ranks).sum(-1) / (size * (size - 1))
    return np.abs(deviations).mean(-1) - half_gap


def interval_score(y: ArrayLike, interval: ArrayLike, coverage: float) -> np.ndarray:
    r"""Score of central prediction intervals: the width, plus a penalty for a miss.

    .. math:: (u - l) + \frac{2}{1 - c} \max(l - y, 0, y - u)

    The penalty makes it proper: on average the quantiles at (1 - c)/2 and (1 + c)/2 of
    the true distribution score best. Coverage alone is not a proper score, since the
    whole line for 9 rows of 10 and an empty interval for the tenth cover 90 %.

    Parameters
    ----------
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Observations.
    interval : array-like of shape (n_samples, 2) or (n_samples, 2, n_outputs)
        Lower and upper ends, as `predict_interval` returns them.
    coverage : float
        Nominal coverage c of the intervals, in (0, 1).

    Returns
    -------
    ndarray of the shape of y
        In units of y; smaller is better.

    Raises
    ------
    ValueError
        The shapes do not fit.

    See Also
    --------
    NegIntervalScore : The scorer.

    References
    ----------
    Winkler (1972), *A decision-theoretic approach to interval estimation*; Gneiting
    and Raftery (2007), *Strictly proper scoring rules, prediction, and estimation*,
    equation (43).

    Examples
    --------
    >>> from skvi.metrics import interval_score
    >>> interval_score([0.5, 1.5], [[0.0, 1.0], [0.0, 1.0]], coverage=0.9)
    array([ 1., 11.])
    """
    interval_levels("interval_score", coverage)
    y, ends = np.asarray(y, dtype=np.float64), np.asarray(interval, dtype=np.float64)
    low, high = split_interval(y, ends)
    missed = np.maximum(np.maximum(low - y, y - high), 0.0)
    return high - low + 2 / (1 - coverage) * missed


def split_interval(y: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends, each of the shape of y."""
    if ends.shape != (*y.shape[:1], 2, *y.shape[1:]):
        raise ValueError(
            "interval must have two ends for each y: shape (n_samples, 2) or "
            "(n_samples, 2, n_outputs). "
            f"Got y {y.shape} and interval {ends.shape}."
        )
    return ends[:, 0], ends[:, 1]


ADVICE = (
    "Pass an estimator of skvi, or one with predict(X, return_std=True), or a Pipeline "
    "or fitted search that ends in one"
)


class Scorer:
    """A callable ``scorer(estimator, X, y)``, for searches and cross-validation.

    It is immutable: `set_score_request` returns another scorer.
    """

    #: Arguments of the call that metadata routing can fill.
    metadata: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._request: dict[str, bool | str | None] = {}

    def __repr__(self) -> str:
        """Show the class and its parameters."""
        shown = ", ".join(
            f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_")
        )
        return f"{type(self).__name__}({shown})"

    def set_score_request(self, **request: bool | str | None) -> "Scorer":
        """Return a scorer that requests metadata.

        Only relevant with ``sklearn.set_config(enable_metadata_routing=True)``.

        Parameters
        ----------
        **request : bool, None or str
            For each name: True requests it, False omits it, None raises if it is given,
            a string requests it by another name.

        Returns
        -------
        Scorer
            A new scorer; scorers may be shared, and are never changed.

        Raises
        ------
        TypeError
            The scorer has no such argument.
        """
        unknown = sorted(set(request) - set(self.metadata))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} cannot ask for {unknown}; it knows "
                f"{list(self.metadata)}."
            )
        new = copy(self)
        new._request = {**self._request, **request}
        return new

    def get_metadata_routing(self) -> MetadataRequest:
        """Return what the scorer requests, for scikit-learn's routing.

        Returns
        -------
        MetadataRequest
        """
        found = MetadataRequest(owner=self)
        for name in self.metadata:
            found.score.add_request(param=name, alias=self._request.get(name))
        return found

    def _accept_sample_weight(self) -> bool:
        """Without routing, searches check this before they pass sample weights."""
        return "sample_weight" in self.metadata


class RowScorer(Scorer):
    """A mean over rows: a subclass must implement `_rows`, and name its `method`."""

    metadata: ClassVar[tuple[str, ...]] = ROW_DATA
    #: Required method of the estimator, and the alternative if it is missing.
    method: ClassVar[str]
    otherwise: ClassVar[str]

    def __call__(
        self,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        **row_data: ArrayLike | None,
    ) -> float:
        """Score a fitted estimator.

        Parameters
        ----------
        estimator : estimator, Pipeline or search, fitted
        X : array-like of shape (n_samples, n_features)
            Rows not used in the fit, before a pipeline's transformations.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array-like of shape (n_samples,), default=None
            Nonnegative; a row with weight 2 counts twice.
        **row_data : array-like of shape (n_samples,)
            Passed to the estimator: ``exposure`` of counts, ``offset``, ``n_trials``.
            An estimator warns if its fit had an exposure and the score has none.

        Returns
        -------
        float
            The (weighted) mean over rows; larger is better.

        Raises
        ------
        TypeError
            The score is not defined for the estimator.
        ValueError
            The weights are negative, or all zero.
        """
        if self.method != "predict_log_density" and is_classifier(estimator):
            raise TypeError(
                f"{self!r} needs numbers, and {type(estimator).__name__} predicts "
                "classes. Use log_predictive_density_scorer, or "
                "scoring='neg_brier_score'."
            )
        found, X = find_forecast(
            estimator, X, self.method, f"{ADVICE}; {self.otherwise}."
        )
        rows = self._rows(found, X, y, row_data)
        if rows.ndim > 1:
            rows = rows.mean(1)
        return _mean(rows, sample_weight)

    def _rows(self, estimator: Any, X: Any, y: ArrayLike, options: dict) -> np.ndarray:
        """Scores of rows, (n,), or of all columns of y, (n, K)."""
        raise NotImplementedError


def _mean(rows: np.ndarray, sample_weight: ArrayLike | None) -> float:
    if sample_weight is None:
        return float(rows.mean())
    weight = check_sample_weight(
        sample_weight, rows, dtype=np.float64, ensure_non_negative=True
    )
    if not weight.sum() > 0:
        raise ValueError("sample_weight is zero in every row: there is no mean.")
    # A row of weight zero does not count, even if its score is infinite.
    used = weight > 0
    return float(np.average(rows[used], weights=weight[used]))
