"""Columns of X: series and features, labels, and values that do not suit the models."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from skvi.changepoint._regression import RegressionModel
from skvi.changepoint._scaling import LEAST_ROWS, dispersion_of
from skvi.changepoint.base import SegmentModel

__all__ = [
    "as_table",
    "check_order",
    "check_values",
    "find_columns",
    "labels_of",
    "misfits",
    "times_of",
]

# If two rows are equal with more than this probability, the default model reports false
# changes: series rounded to steps of one and two standard deviations have 0.28 and
# 0.51, Poisson counts with means 1 and 0.2 have 0.31 and 0.68.
MOST_TIES = 1 / 3
# Variance of counts beyond the mean, relative to it, that is no mixture with zeros.
MOST_DISPERSED = 1.0
# Rows that the prior of the noise is worth, so that equal rows do not outweigh it.
ENOUGH_NOISE_DF = 20.0

NO_DENSITY = (
    "the models have densities, in which a run of equal values is a segment without "
    "noise: changes and log_evidence_ mean little, and log_evidence_ is not comparable "
    "with that of probabilities. "
)


def find_columns(
    columns: Sequence[int | str] | None, n_columns: int, names: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the columns that are series, and of features, by number or name."""
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
    series = np.setdiff1d(np.arange(n_columns), found)
    if not len(series):
        raise ValueError(
            "feature_columns contains every column of X, and leaves no series to model."
        )
    return series, np.array(found, dtype=int)


def check_values(series: np.ndarray, support: str) -> None:
    """Raise if values do not suit the models."""
    seen = series[np.isfinite(series)]
    allowed, advice = {
        "real": (np.abs(seen) < 1e100, "values must be smaller than 1e100."),
        "count": (
            (seen >= 0) & (seen == np.floor(seen)),
            "the models are of counts: 0, 1, 2, ... Use models of real numbers, such "
            "as Regression, or mark it as missing (NaN).",
        ),
        "binary": (
            (seen == 0) | (seen == 1),
            "the models are of zeros and ones. Use PoissonCounts or Regression, or "
            "mark it as missing (NaN).",
        ),
    }[support]
    if not allowed.all():
        raise ValueError(f"X has the value {seen[~allowed][0]:g}, but {advice}")


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


def times_of(labels: np.ndarray | None) -> np.ndarray | None:
    """Labels as numbers, if they are times or numbers; raise if they decrease."""
    if labels is None:
        return None
    first = labels[0] if len(labels) else None
    if hasattr(first, "ordinal"):  # periods of pandas
        labels = np.array([label.ordinal for label in labels])
    elif hasattr(first, "timestamp"):  # dates with a time zone
        labels = np.array([label.timestamp() for label in labels])
    if labels.dtype.kind not in "Mmiuf":
        return None
    times = labels.astype("int64" if labels.dtype.kind in "Mm" else float) * 1.0
    if labels.dtype.kind in "Mm":
        times[np.isnat(labels)] = np.nan
    if not np.isfinite(times).all():
        return None
    check_order(times)
    return times


def check_order(times: np.ndarray) -> None:
    """Raise if times decrease."""
    if (np.diff(times) < 0).any():
        raise ValueError(
            "The index of X decreases, and rows must be in the order of time. Sort "
            "them, X.sort_index(); or reset_index(drop=True), if it is no time."
        )


def misfits(
    columns: Sequence[np.ndarray],
    names: Sequence[str],
    models: Sequence[SegmentModel],
    is_complete: bool,
) -> str | None:
    """One message about all columns, (n,) with NaN where missing, or None.

    A column without values is reported only if the series is complete.
    """
    found = []
    for column, name in zip(columns, names, strict=True):
        seen = column[np.isfinite(column)]
        if is_complete and not len(seen):
            found.append(f"{name} has no observed value: nothing is learned from it.")
        elif (advice := misfit(seen, models)) is not None:
            found.append(f"{name} {advice}")
    if not found:
        return None
    more = len(found) - 1
    return found[0] + (f" There are {more} more such columns." if more else "")


def misfit(column: np.ndarray, models: Sequence[SegmentModel]) -> str | None:
    """What the values are that the models do not suit, and what to do, if anything."""
    support = models[0].support
    if len(column) < LEAST_ROWS or support != "real":
        return None
    return tied(column, has_noise(models))


def has_noise(models: Sequence[SegmentModel]) -> bool:
    """Whether no segment can be without noise, whatever its rows."""
    return all(
        isinstance(model, RegressionModel)
        and model.noise_scale != "auto"
        and model.noise_df >= ENOUGH_NOISE_DF
        for model in models
    )


def tied(column: np.ndarray, has_noise: bool) -> str | None:
    """Advice on a column with two values, or in which most rows are equal."""
    values, counts = np.unique(column, return_counts=True)
    n_values, fraction = len(values), counts / len(column)
    if n_values == 1 or (n_values > 2 and (fraction**2).sum() < MOST_TIES):
        return None
    if n_values == 2:
        first = f"holds only {values[0]:g} and {values[1]:g}; {NO_DENSITY}"
        if values.tolist() == [0, 1]:
            return first + 'Use models="bernoulli".'
        return f'{first}Use models="bernoulli" for X == {values[1]:g}.'
    top = values[counts.argmax()] + 0.0
    first = f"holds {top:g} in {fraction.max():.0%} of the rows; {NO_DENSITY}"
    are_counts = values[0] >= 0 and (values == np.floor(values)).all()
    if are_counts and dispersion_of(column) * column.mean() < MOST_DISPERSED:
        return first + 'Use models="poisson".'
    gaps = np.diff(values)
    if not are_counts and np.allclose(gaps, gaps.min() * np.rint(gaps / gaps.min())):
        if has_noise:
            return None
        return (
            f"{first}If it is rounded to steps of {gaps.min():g}, use "
            f"Regression(noise_scale=1.0, noise_df={ENOUGH_NOISE_DF})."
        )
    return (
        f'{first}Use models="bernoulli" for X != {top:g}, and the values themselves '
        f"with NaN for {top:g}."
    )
