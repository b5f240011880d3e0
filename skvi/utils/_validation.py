"""Arrays in and out: checks, conversions, warnings at the user's line."""

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from difflib import get_close_matches
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import sklearn.utils.validation as sk
import torch
from scipy.sparse import issparse
from sklearn import base
from sklearn.utils import _safe_indexing
from sklearn.utils._param_validation import (
    Interval,
    InvalidParameterError,
    validate_parameter_constraints,
)
from sklearn.utils._param_validation import StrOptions as _StrOptions
from torch.utils.data import DataLoader, Dataset

__all__ = [
    "Interval",
    "InvalidParameterError",
    "StrOptions",
    "_fit_context",
    "_safe_indexing",
    "as_numpy",
    "check_array",
    "check_levels",
    "check_sample_weight",
    "column_or_1d",
    "did_you_mean",
    "interval_levels",
    "is_dask",
    "refuse_dates_as_target",
    "refuse_label_matrix",
    "validate_arguments",
    "validate_data",
    "validate_parameters",
    "warn_user",
]

Method = TypeVar("Method", bound=Callable)

#: Data of rows beside X and y, by the names that methods take.
ROW_DATA = ("sample_weight", "exposure", "offset", "n_trials")
# Beginnings of the names of types in NumPy, pandas and polars, in lower case.
DATE_TYPES = ("date", "timedelta", "duration", "period")
SEVERAL_LABELS = (
    "has several labels for each row: fit one classifier for each of them, by "
    "sklearn.multioutput.MultiOutputClassifier(estimator); MultiLabelBinarizer makes "
    "their columns."
)
# What words are called elsewhere.
SYNONYMS = {"gaussian": "normal", "normal": "gaussian", "t": "student_t"}
SYNONYMS |= {"ridge": "normal", "l2": "normal", "lasso": "laplace", "l1": "laplace"}
DATE_OBJECTS = (date, timedelta, np.datetime64, np.timedelta64)


class StrOptions(_StrOptions):
    """One of a set of strings, which messages name in alphabetical order.

    Sets of strings have another order in every process.
    """

    def __str__(self) -> str:
        """Name the options."""
        return f"a str among {{{', '.join(map(repr, sorted(self.options)))}}}"


def is_dask(values: object) -> bool:
    """Whether it is an array or a data frame of dask."""
    return type(values).__module__.partition(".")[0] == "dask"


def as_numpy(values: Any) -> Any:
    """Return a tensor of any device as an array, and everything else as it is.

    Raises TypeError for blocks of dask, which are never gathered.
    """
    if is_dask(values):
        raise TypeError(
            f"Rows in blocks of dask ({type(values).__name__}) are taken by fit of "
            "linear models, which needs X in blocks, and by predict, predict_proba, "
            "predict_log_proba and decision_function. Elsewhere give arrays, as of "
            "X.compute(), or call the method on each block, by X.map_blocks."
        )
    if isinstance(values, torch.Tensor):
        return values.detach().cpu().numpy()
    return values


def validate_data(
    estimator: Any, X: Any, y: Any = "no_validation", **options: Any
) -> Any:
    """Check rows as scikit-learn does, in numpy; also say what no message there does.

    Raises for what holds rows but is no array, for dates, and for columns of text, by
    name.
    """
    _refuse_other_containers(X)
    _refuse_dates(X)
    X, y = as_numpy(X), as_numpy(y)
    try:
        return sk.validate_data(estimator, X, y, **options)
    except ValueError as error:
        if "convert string" in str(error) and (names := _columns_of_text(X)):
            raise ValueError(
                f"X has text in {len(names)} column(s): {', '.join(map(repr, names))}. "
                "Encode it in a pipeline before the estimator: ColumnTransformer("
                f"[('text', OneHotEncoder(), {names})], remainder='passthrough')."
            ) from error
        raise


def check_array(values: Any, **options: Any) -> Any:
    """As scikit-learn's, in numpy."""
    return sk.check_array(as_numpy(values), **options)


def column_or_1d(values: Any, **options: Any) -> np.ndarray:
    """As scikit-learn's, in numpy."""
    found: np.ndarray = sk.column_or_1d(as_numpy(values), **options)
    return found


def check_sample_weight(sample_weight: Any, X: Any, **options: Any) -> np.ndarray:
    """As scikit-learn's, in numpy."""
    weight: np.ndarray = sk._check_sample_weight(as_numpy(sample_weight), X, **options)
    return weight


def _fit_context(*, prefer_skip_nested_validation: bool) -> Callable[[Method], Method]:
    """Validate parameters before a fit, as scikit-learn's decorator of this name."""
    skip = prefer_skip_nested_validation
    return base._fit_context(prefer_skip_nested_validation=skip)


def validate_arguments(caller: str, values: dict, constraints: dict) -> None:
    """Check arguments as scikit-learn checks parameters; name a word that is meant."""
    try:
        validate_parameter_constraints(constraints, values, caller_name=caller)
    except InvalidParameterError as error:
        name = str(error).split("'")[1]
        words = [c.options for c in constraints[name] if isinstance(c, _StrOptions)]
        hint = did_you_mean(values[name], set().union(*words))
        raise InvalidParameterError(f"{error}{hint}") from None


def validate_parameters(estimator: base.BaseEstimator) -> None:
    """Check the parameters of an estimator, as its `_validate_params`."""
    name, given = type(estimator).__name__, estimator.get_params(deep=False)
    validate_arguments(name, given, estimator._parameter_constraints)


def did_you_mean(given: Any, words: Iterable[str]) -> str:
    """The end of a message: the words that are close to what was given, two at most.

    Of a class it is an instance.
    """
    if isinstance(given, type):
        return f" Did you mean {given.__name__}()?"
    known = {word: word for word in words}
    names = {name: word for name, word in SYNONYMS.items() if word in known} | known
    word = given.lower() if isinstance(given, str) else ""
    near = get_close_matches(word, names, 1 if word in names else 2)
    found = " or ".join(dict.fromkeys(repr(names[name]) for name in near))
    return f" Did you mean {found}?" if found else ""


def check_levels(quantiles: Any) -> np.ndarray:
    """Return probabilities as an array, (q,); raise if they are not in (0, 1)."""
    levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    inside = np.all((levels > 0) & (levels < 1))
    if levels.ndim != 1 or not len(levels) or not inside:
        raise ValueError(
            f"quantiles must be probabilities between 0 and 1. Got {quantiles!r}."
        )
    return levels


def check_coverage(caller: str, coverage: float) -> None:
    """Raise if a coverage is not a probability."""
    constraints = {"coverage": [Interval(Real, 0, 1, closed="neither")]}
    validate_arguments(caller, {"coverage": coverage}, constraints)


def interval_levels(caller: str, coverage: float) -> list[float]:
    """Probabilities below the ends of a central interval."""
    check_coverage(caller, coverage)
    tail = (1 - coverage) / 2
    return [tail, 1 - tail]


def _refuse_other_containers(X: object) -> None:
    """Raise for what holds rows but is no array: `fit` needs all of them at once."""
    if hasattr(X, "__next__"):
        way = "chunks are learned by skvi.stream(estimator, chunks), or one by one by "
        kind, way = "an iterator", f"{way}partial_fit"
    elif isinstance(X, DataLoader):
        kind = "a loader of batches"
        way = "join these: X, y = (torch.cat(parts) for parts in zip(*loader))"
    elif isinstance(X, Dataset):
        kind = "a dataset"
        way = "stack its rows: X, y = map(np.stack, zip(*dataset))"
    elif isinstance(X, Mapping) and not issparse(X):  # a sparse one by keys is both
        kind, way = "a mapping", "pandas.DataFrame(X) makes a table of its columns"
        way += "; a module whose forward has several arguments takes them by inputs="
    else:
        return
    name = type(X).__name__
    raise TypeError(f"X must be an array with all rows. Got {kind} ({name}): {way}.")


def refuse_label_matrix(y: Any) -> None:
    """Raise for several labels of a row, and for indicators of one."""
    if not isinstance(y, (np.ndarray, Sequence)) and not hasattr(y, "columns"):
        return  # scikit-learn knows what it is
    try:
        n_columns = np.shape(y)[1] if np.ndim(y) == 2 else 1
    except ValueError:  # rows of different lengths
        raise ValueError(f"y {SEVERAL_LABELS}") from None
    if n_columns == 1:
        return
    values = np.asarray(y)
    is_indicator = np.isin(values, (0, 1)).all() and (values == 1).sum(1).max() == 1
    if is_indicator and (values == 1).any(1).all():
        raise ValueError(
            f"y is one-hot, with {n_columns} columns: give one label for each row, "
            "y.argmax(axis=1)."
        )
    raise ValueError(f"y of shape {values.shape} {SEVERAL_LABELS}")


def _refuse_dates(X: object) -> None:
    """Raise if columns are dates or durations, which would become nanoseconds."""
    if dates := _types_of_dates(X):
        raise ValueError(
            f"X has {len(dates)} column(s) of dates or durations ({dates[0]}). Give "
            "numbers that mean something: days since a first day, the month, the "
            "weekday."
        )


def refuse_dates_as_target(y: object) -> None:
    """Raise if a target of numbers holds dates or durations."""
    if dates := _types_of_dates(y):
        raise ValueError(
            f"y must hold numbers, and holds dates or durations ({dates[0]}), which "
            "would become nanoseconds. Predict days since a first day: "
            "y = (dates - first) / np.timedelta64(1, 'D')."
        )


def _columns_of_text(X: Any) -> list:
    """Names of the columns of a data frame that hold text which is no number."""
    names = []
    for name in getattr(X, "columns", ()):
        try:
            np.asarray(X[name], dtype=np.float64)
        except (ValueError, TypeError) as error:
            names += [name] if "convert string" in str(error) else []
    return names


def _types_of_dates(values: Any) -> list[str]:
    """Types of the columns, or else of the objects, that are dates or durations."""
    if isinstance(values, (list, tuple)):
        values = np.asarray(values)
    # DataFrames, Series and arrays of any library name their types.
    types = getattr(values, "dtypes", getattr(values, "dtype", None))
    names = [str(one) for one in np.atleast_1d(np.array(types, dtype=object))]
    dates = [name for name in names if name.lower().startswith(DATE_TYPES)]
    if dates or "object" not in names:
        return dates
    objects = np.asarray(values, dtype=object).ravel()
    return list({type(v).__name__: 0 for v in objects if isinstance(v, DATE_OBJECTS)})


# Packages whose frames are between the user's line and the warning.
INNER = {"skvi", "sklearn", "joblib"}


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the innermost line outside of skvi and scikit-learn."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor that shares memory if torch allows it, else a copy.

    It must not be written to: the memory can be a read-only memory map.
    """
    shareable = array.dtype.isnative and all(
        s >= 0 and s % array.itemsize == 0 for s in array.strides
    )
    if not shareable:
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array if array.flags.writeable else _Writeable.view(array))


class _Writeable:
    """Memory of an array that claims to be writeable, as torch requires."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array  # keeps the memory
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}

    @classmethod
    def view(cls, array: np.ndarray) -> np.ndarray:
        return np.asarray(cls(array))


# Elements of a buffer, and of several temporaries, that stay in the cache.
CACHE_ELEMENTS, TEMPORARY_ELEMENTS = 2**17, 2**18


def row_chunks(
    n_rows: int, width: int, elements: int = TEMPORARY_ELEMENTS
) -> list[slice]:
    """Slices of rows whose temporaries of the given width have a bounded size."""
    step = max(1, math.ceil(elements / max(width, 1)))
    return [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]


def like_rows(vector: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """View a vector, (n,), so that it multiplies the rows of `other`, (n, ...)."""
    return vector.reshape(-1, *[1] * (other.ndim - 1))


def weighted_sum(losses: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Sum over rows, (S,), in double precision."""
    if weight is None:
        return losses.sum(1, dtype=torch.float64)
    # Single precision outputs have single precision losses; weights are double.
    return losses.to(weight.dtype) @ weight


def log_(values: torch.Tensor) -> torch.Tensor:
    """Logarithm in place; in the CPU's memory numpy's takes a fraction of the time."""
    if values.requires_grad or not values.is_cpu:
        return values.log_()
    np.log(values.numpy(), out=values.numpy())
    return values


def exp_(values: torch.Tensor) -> torch.Tensor:
    """Exponential in place, as `log_`."""
    if values.requires_grad or not values.is_cpu:
        return values.exp_()
    np.exp(values.numpy(), out=values.numpy())
    return values


def weighted_median(values: np.ndarray, w: np.ndarray) -> float:
    """Smallest value with half of the weight at or below it."""
    order = np.argsort(values)
    below = np.cumsum(w[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def median_distance(values: np.ndarray, w: np.ndarray, center: float) -> float:
    """1.4826 times the median distance from the center: a standard deviation."""
    return 1.4826 * weighted_median(np.abs(values - center), w)


def elements(draws: Mapping[str, Any]) -> tuple[list[str], np.ndarray]:
    """Names of all elements, "mu" or "theta[0,1]", and draws of them, (n, k)."""
    labels, columns = [], []
    for name, given in draws.items():
        values = np.asarray(given, dtype=np.float64)
        for index in np.ndindex(values.shape[1:]):
            place = ",".join(map(str, index))
            labels.append(f"{name}[{place}]" if place else name)
        columns.append(values.reshape(len(values), -1))
    return labels, np.concatenate(columns, 1)
