"""Classifiers whose first batch lacks a class learn it once more, with the next one."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils.validation import validate_data

from skvi._continual import check_forgetting, remember, unchanged_by_errors
from skvi.exceptions import SkviWarning

__all__ = ["WaitingMixin"]

# Rows up to which a batch is kept until there are rows of every class.
MAX_KEPT = 10_000


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Rows of a stream that lacks a class so far."""

    X: Any
    y: np.ndarray
    weight: np.ndarray | None

    def and_then(self, other: "KeptRows", forgetting: float) -> "KeptRows":
        """With the rows of one more batch, before which these are discounted."""
        pair = self.X, other.X
        is_sparse = any(sparse.issparse(X) for X in pair)
        X = sparse.vstack(pair, format="csr") if is_sparse else np.vstack(pair)
        weight = None
        if forgetting < 1 or self.weight is not None or other.weight is not None:
            parts = forgetting * self.weights(), other.weights()
            weight = np.concatenate(parts)
        return KeptRows(X, np.concatenate([self.y, other.y]), weight)

    def weights(self) -> np.ndarray:
        """The weights, 1 by default."""
        return np.ones(len(self.y)) if self.weight is None else self.weight


class WaitingMixin:
    """Mixin: rows are kept until there are some of every class.

    No intercept is too extreme for rows of one class, and a normal is a poor posterior
    of that: as a prior it would bias what follows.
    """

    def _learn_batch(
        self,
        X,
        y,
        sample_weight=None,
        exposure=None,
        *,
        response=None,
        forgetting=1.0,
    ):
        past = vars(self).get("_past")
        is_first = not self.__sklearn_is_fitted__()
        if not is_first and (past is None or past.rows is None):
            return super()._learn_batch(
                X, y, sample_weight, exposure, response=response, forgetting=forgetting
            )
        check_forgetting(self, forgetting)
        with unchanged_by_errors(self):
            if is_first:
                super()._learn_batch(X, y, sample_weight, exposure, response=response)
                rows = self._checked_rows(X, y, sample_weight)
            else:
                new = self._checked_rows(X, y, sample_weight)
                self._model.response.encode(new.y)  # labels that are known
                rows = past.rows.and_then(new, forgetting)
                self._learn_again(rows, exposure)
                n_batches = past.n_batches + 1
                remember(self, replace(self._past, n_batches=n_batches))
            if self._is_to_keep(rows.y):
                remember(self, replace(self._past, rows=rows))
        return self

    def _learn_again(self, rows, exposure):
        """Begin the stream with all rows."""
        names = {n: v for n, v in vars(self).items() if n == "feature_names_in_"}
        response = self._model.response
        self._forget()
        super()._learn_batch(rows.X, rows.y, rows.weight, exposure, response=response)
        vars(self).update(names)

    def _checked_rows(self, X, y, sample_weight):
        """A copy of rows, since their arrays may be used again for the next batch."""
        X, y = validate_data(self, X, y, reset=False, **self._input)
        weight = self._check_weights(X, sample_weight)
        return KeptRows(
            X.copy(), np.array(y), None if weight is None else weight.copy()
        )

    def _is_to_keep(self, y):
        """Whether a class is missing; warns if there are too many rows to keep."""
        missing = np.setdiff1d(self.classes_, y)
        if len(missing) == 0:
            return False
        if len(y) > MAX_KEPT:
            self._warn(
                f"the first {len(y)} rows have no row of the classes "
                f"{missing.tolist()}. Their posterior is far from normal, and what "
                "follows is biased by it: shuffle the rows, or begin with some of each "
                "class",
                SkviWarning,
            )
        return len(y) <= MAX_KEPT
