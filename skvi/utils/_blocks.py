"""Rows in blocks of dask: workers add sums of them, and predict their own."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce, wraps
from inspect import getfullargspec
from operator import add
from typing import Any, Self, TypeVar

import numpy as np
import torch

from skvi.utils._interrupts import limit_threads
from skvi.utils._rows import rows_to_start
from skvi.utils._validation import check_array, is_dask

Method = TypeVar("Method", bound=Callable)

# Sums that one task adds.
AT_ONCE = 8
# Labels of a block beyond which y holds no classes.
MOST_LABELS = 10_000


class Blocks:
    """Rows whose blocks (X, y, weight) stay on the workers."""

    def __init__(self, X: Any, y: Any, weight: Any, has_labels: bool) -> None:
        import dask.array as da

        self.columns = list(X.columns) if hasattr(X, "columns") else None
        given = [_as_array(da, v) for v in (X, y, weight) if v is not None]
        if given[0].ndim != 2 or any(v.ndim != 1 for v in given[1:]):
            shapes = [v.shape for v in given]
            raise ValueError(f"X must have two axes, y and weights one. Got {shapes}.")
        if len({len(v) for v in given}) > 1:
            raise ValueError(
                "Found input variables with inconsistent numbers of samples: "
                f"{[len(v) for v in given]}"
            )
        self.shape, rows = given[0].shape, given[0].chunks[0]
        given = [v.rechunk((rows, -1)[: v.ndim]) for v in given]
        blocks = [v.to_delayed().ravel() for v in given]
        self.parts = [(*part, None)[:3] for part in zip(*blocks, strict=True)]
        ends, first = np.cumsum(rows), rows_to_start(*self.shape)
        found = np.split(first, np.searchsorted(first, ends[:-1]))
        own = zip(found, (0, *ends[:-1]), strict=True)
        tasks = [(look_at, (has_labels, index - at)) for index, at in own]
        #: What one pass over the rows has found.
        self.look: Look = self._sum(tasks, range(len(tasks)))

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def total(self, function: Callable, *args: Any) -> Any:
        """Sum of ``function(*args, X, y, weight)`` over all blocks."""
        return self._sum([(function, args)], [0] * len(self.parts))

    def first(self) -> tuple:
        """X, y and weights of the rows from which a fit starts."""
        X, *columns = self.look.some.joined()
        if self.columns is not None:
            import pandas as pd

            X = pd.DataFrame(X, columns=self.columns)
        return X, *columns

    def _sum(self, tasks: list, which: Any) -> Any:
        import dask

        tasks = [dask.delayed(task, traverse=False) for task in tasks]
        call, join = dask.delayed(_call, pure=False), dask.delayed(_join, pure=False)
        pairs = zip(which, self.parts, strict=True)
        found = [call(tasks[k], *part) for k, part in pairs]
        while len(found) > 1:
            found = [
                join(found[i : i + AT_ONCE]) for i in range(0, len(found), AT_ONCE)
            ]
        return found[0].compute()


def _as_array(da: Any, values: Any) -> Any:
    """A dask array with known numbers of rows in its blocks."""
    if not is_dask(values):
        return da.from_array(np.asarray(values))
    if not isinstance(values, da.Array):
        if str(getattr(values, "dtype", "")) in ("string", "category"):
            values = values.astype(object)
        return values.to_dask_array(lengths=True)
    if np.isnan(values.shape[0]):
        values = values.copy()
        values.compute_chunk_sizes()
    return values


def _call(task: tuple[Callable, tuple], *block: Any) -> Any:
    function, args = task
    with limit_threads(0), torch.no_grad():  # the scheduler has a thread for each core
        return function(*args, *block)


def _join(parts: list) -> Any:
    found = [part for part in parts if part is not None]  # of no rows
    return reduce(add, found) if found else None


@dataclass(frozen=True, eq=False)
class Look:
    """What a pass over rows finds: ends and sums of their columns, and some of them."""

    low: np.ndarray  # (d,)
    high: np.ndarray  # (d,)
    total: np.ndarray  # weighted sum of the features, (d,)
    #: Sum of the weights, mean of y, and sum of its squared distances from the mean.
    moments: tuple[float, float, float]
    #: All labels; of numbers both ends, and one that is not whole, if there is any.
    values: np.ndarray
    some: "SomeRows"

    def __add__(self, other: Self) -> "Look":
        """Join what was found in other rows."""
        (n, mean, square), (m, other_mean, other_square) = self.moments, other.moments
        away = other_mean - mean
        square += other_square + away**2 * n * m / max(n + m, 1e-300)
        return Look(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.total + other.total,
            (n + m, mean + away * m / max(n + m, 1e-300), square),
            np.unique(np.concatenate([self.values, other.values])),
            self.some + other.some,
        )

    def root_mean_square(self, origin: float) -> float:
        """Of the distances of y from an origin."""
        n, mean, square = self.moments
        return float(np.sqrt(square / n + (mean - origin) ** 2))


@dataclass(frozen=True, eq=False)
class SomeRows:
    """Rows of several blocks, in order."""

    parts: list[tuple]

    def __add__(self, other: Self) -> "SomeRows":
        """Put others after them."""
        return SomeRows(self.parts + other.parts)

    def joined(self) -> tuple[np.ndarray | None, ...]:
        """X, y and weights, or None."""
        columns = zip(*self.parts, strict=True)
        return tuple(None if c[0] is None else np.concatenate(c) for c in columns)


def look_at(has_labels: bool, index: np.ndarray, X: Any, y: Any, weight: Any) -> Look:
    """Look at a block; ValueError for NaN and infinite values."""
    columns = (None if v is None else np.asarray(v)[index] for v in (X, y, weight))
    some = SomeRows([tuple(columns)])
    X, y = as_floats(X), np.asarray(y)
    w = np.ones(len(X)) if weight is None else np.asarray(weight, np.float64)
    if not np.isfinite(w).all() or (w < 0).any():
        raise ValueError("sample_weight must be finite and not negative.")
    if not w.all():
        X, y, w = X[w > 0], y[w > 0], w[w > 0]
    n, mean, square, values = float(w.sum()), 0.0, 0.0, y
    if not has_labels:
        y = check_array(y, ensure_2d=False, dtype=np.float64, ensure_min_samples=0)
        mean = float(w @ y) / max(n, 1e-300)
        square = float(w @ (y - mean) ** 2)
        rest = y[y != np.floor(y)][:1]
        values = np.concatenate([y[[y.argmin(), y.argmax()]] if len(y) else y, rest])
    ends = X.min(0, initial=np.inf), X.max(0, initial=-np.inf)
    low, high = (np.asarray(end, np.float64) for end in ends)
    values = np.unique(values)[:MOST_LABELS]
    return Look(low, high, w @ X, (n, mean, square), values, some)


def as_floats(X: Any, **options: Any) -> np.ndarray:
    """Features of a block, in single or double precision."""
    options |= {"dtype": [np.float64, np.float32], "ensure_min_samples": 0}
    found: np.ndarray = check_array(X, **options)
    return found


def by_blocks(method: Method) -> Method:
    """Make a prediction lazy where rows are in blocks of dask.

    TypeError names the estimator, and what it has in place of an unknown argument.
    """
    known = getfullargspec(method)

    @wraps(method)
    def predict(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        if unknown := not known.varkw and sorted(options.keys() - set(known.args)):
            raise TypeError(
                f"{type(self).__name__}.{method.__name__} takes no {unknown[0]!r}."
                f"{self._instead.get(unknown[0], '')}"
            )
        if not is_dask(X):
            return method(self, X, *args, **options)
        return _lazily(partial(method, self), X, args, options)

    return predict  # type: ignore[return-value]


def _lazily(predict: Callable, X: Any, args: tuple, options: dict) -> Any:
    """Predictions of all blocks, as one array, or as several where it gives a pair."""
    if (
        options.get("return_cov")
        or len(args) > 1
        or any(map(np.ndim, options.values()))
    ):
        raise ValueError(
            "X is in blocks of dask, which are predicted one by one: without "
            "return_cov, and with no other array of all rows. Give arrays, as of "
            "X.compute()."
        )
    names = None
    if hasattr(X, "columns"):
        X, names = X.to_dask_array(), list(X.columns)
    X = X.rechunk({1: -1})
    of_block = partial(_predict_block, predict, names, args, options)
    first = of_block(np.zeros((1, X.shape[1]), X.dtype))
    layout: dict = {"drop_axis": 1}
    if first.ndim == 2:
        layout = {"chunks": (X.chunks[0], (first.shape[1],))}
    meta = first[:0]
    found = X.map_blocks(of_block, dtype=first.dtype, meta=meta, **layout)
    is_pair = bool(args and args[0]) or bool(options.get("return_std"))
    return (found[:, 0], found[:, 1]) if is_pair else found


def _predict_block(
    predict: Callable, names: list | None, args: tuple, options: dict, X: Any
) -> np.ndarray:
    if names is not None:
        import pandas as pd

        X = pd.DataFrame(X, columns=names)
    with limit_threads(0):
        found = predict(X, *args, **options)
    return np.stack(found, 1) if isinstance(found, tuple) else found
