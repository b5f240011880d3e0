"""Base classes of scorers: the call, means over rows, metadata routing."""

from copy import copy
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import is_classifier
from sklearn.utils.metadata_routing import MetadataRequest

from skvi.utils._forecasts import find_forecast
from skvi.utils._validation import check_sample_weight

__all__ = ["RowScorer", "Scorer"]

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

    metadata: ClassVar[tuple[str, ...]] = ("sample_weight", "exposure")
    #: Required method of the estimator, and the alternative if it is missing.
    method: ClassVar[str]
    otherwise: ClassVar[str]
    needs_numbers: ClassVar[bool] = True

    def __call__(
        self,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
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
        exposure : array-like of shape (n_samples,), default=None
            Passed to the estimator, for `BayesianPoissonRegressor`, which warns if its
            fit had one and the score has none.

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
        if self.needs_numbers and is_classifier(estimator):
            raise TypeError(
                f"{self!r} needs numbers, and {type(estimator).__name__} predicts "
                "classes. Use log_predictive_density_scorer, or "
                "scoring='neg_brier_score'."
            )
        found, X = find_forecast(
            estimator, X, self.method, f"{ADVICE}; {self.otherwise}."
        )
        options = {} if exposure is None else {"exposure": exposure}
        rows = self._rows(found, X, y, options)
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
