"""Which columns of X are series, and which are exogenous features of regressions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Columns", "as_table", "find_columns", "labels_of"]


class Columns:
    """Indices of the columns that are modeled, and of those that are features."""

    def __init__(self, n_columns: int, features: Sequence[int]) -> None:
        self.features = np.array(features, dtype=int)
        self.series = np.setdiff1d(np.arange(n_columns), self.features)
        if not len(self.series):
            raise ValueError(
                "feature_columns contains every column of X, and leaves no series to "
                "model."
            )

    def split(self, X: np.ndarray, support: str) -> tuple[np.ndarray, np.ndarray]:
        """Split into series and features; raise if values do not suit the models."""
        series, features = X[:, self.series], X[:, self.features]
        seen = series[np.isfinite(series)]
        allowed = {
            "real": np.abs(seen) < 1e100,
            "count": (seen >= 0) & (seen == np.floor(seen)),
            "binary": (seen == 0) | (seen == 1),
        }[support]
        if not allowed.all():
            raise ValueError(
                f"X has the value {seen[~allowed][0]:g}, but "
                + {
                    "real": "values must be smaller than 1e100.",
                    "count": "the models are of counts: 0, 1, 2, ... Use models of "
                    "real numbers, such as Regression, or mark it as missing (NaN).",
                    "binary": "the models are of zeros and ones. Use PoissonCounts or "
                    "Regression, or mark it as missing (NaN).",
                }[support]
            )
        return series, features


def find_columns(
    columns: Sequence[int | str] | None, n_columns: int, names: np.ndarray | None
) -> Columns:
    """Find columns by number or by name."""
    found = []
    for column in [] if columns is None else columns:
        if isinstance(column, str):
            known = [] if names is None else names.tolist()
            if column not in known:
                raise ValueError(
                    f"feature_columns has {column!r}, which is not a column of X. "
                    f"Columns: {known or 'X has no names, give numbers'}."
                )
            found.append(known.index(column))
        elif not 0 <= column < n_columns:
            raise ValueError(
                f"feature_columns has {column}, but X has {n_columns} column(s), "
                f"numbered from 0."
            )
        else:
            found.append(int(column))
    return Columns(n_columns, found)


def as_table(X: Any, is_series: bool) -> Any:
    """Return a one-dimensional container as a column, if it can only be one series."""
    if isinstance(X, (list, tuple)):
        is_flat = all(value is None or np.isscalar(value) for value in X)
    else:
        is_flat = len(getattr(X, "shape", ())) == 1
    if not (is_flat and is_series):
        return X
    if hasattr(X, "to_frame") and hasattr(X, "index"):
        return X.to_frame(0)  # pandas: its missing values are kept
    return np.reshape(np.asarray(X), (-1, 1))


def labels_of(X: Any) -> np.ndarray | None:
    """Index of a pandas container, such as dates; None where it only counts rows."""
    index = getattr(X, "index", None)
    if index is None or callable(index):  # lists have a method of that name
        return None
    # Every batch of a stream is counted from 0 by default.
    is_count = type(index).__name__ == "RangeIndex" and index.start == 0
    return None if is_count and index.step == 1 else index.to_numpy()
