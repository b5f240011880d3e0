"""Origins and scales of the features, in which fits see them.

What a column's zero and unit are then changes nothing.
"""

from dataclasses import replace

import numpy as np
from scipy import sparse

from skvi._estimator._regressors import LARGEST
from skvi.predictors import LinearPredictor
from skvi.utils._blocks import Blocks, as_floats
from skvi.utils._rows import ShiftedRows, SparseRows, as_rows
from skvi.utils._validation import as_tensor, row_chunks

# Sizes of X above which no copy of it is made (128 MiB in double precision), and of
# chunks copied to double precision at once.
MAX_COPIED, CHUNK_ELEMENTS = 2**24, 2**21
# Rows by which the usual value of a column is guessed; rounding of fractions of rows.
N_SAMPLED, ROUNDING = 2000, 1e-12


def standardized(X, origin, scale):
    """Rows of ``(X - origin) / scale``; sparse ones keep their zeros.

    Large dense ones are computed when they are read: they can be a memory map.
    """
    if origin is None and np.all(scale == 1.0):
        return as_rows(X)
    origin = np.zeros(X.shape[1]) if origin is None else origin
    if sparse.issparse(X):
        return SparseRows.standardized(X, origin, scale)
    if X.size > MAX_COPIED:
        wide = np.broadcast_to(np.asarray(scale, np.float64), origin.shape)
        return ShiftedRows(as_tensor(X), as_tensor(origin), as_tensor(wide.copy()))
    return as_tensor((X - origin) / scale)


def feature_units(X, weight, centered, relative_to):
    """Origin, (d,) or None, and scale, a number or (d,), of the features of a fit.

    Scales are relative to "each" column, as `_column_units`; to its "deviation", the
    weighted standard deviation, without an intercept the root mean square; or to "all",
    the root mean square of the deviations. Third are features that are constant, as far
    as their scale depends on them. ValueError if squares overflow.
    """
    low, high = _ends(X)
    _check_range(max(float(high.max()), -float(low.min())))
    origin = None
    if centered:
        # Constant columns are exactly 0 in the fit, whatever their mean is rounded to.
        origin = _means(X, weight).clip(low, high)
    if relative_to is None:
        return origin, 1.0, None
    sizes = _column_units if relative_to == "each" else _deviations
    found = sizes(X, weight, origin, low, high)
    return origin, *_scale_of(found, relative_to != "all")


def with_new_features(units, X, weight):
    """Units of a stream, where features vary for the first time in a batch.

    The posterior of their coefficients is the prior still: it can have any unit.
    """
    if units.unseen is None:
        return units
    is_each = np.ndim(units.x_scale) > 0
    sizes = _column_units if is_each else _deviations
    scale, unseen = _scale_of(sizes(X, weight, units.x_mean, *_ends(X)), is_each)
    if is_each:
        scale = np.where(units.unseen, scale, units.x_scale)
        unseen = None if unseen is None else units.unseen & unseen
    return replace(units, x_scale=scale, unseen=unseen)


def _scale_of(sizes, is_each):
    """Scale of the features, a number or (d,), and those that are constant, or None."""
    varies = sizes > 0
    if is_each:
        scale = np.where(varies, sizes, 1.0)
        return scale, None if varies.all() else ~varies
    largest = sizes.max(initial=0.0)
    if largest == 0:
        return 1.0, ~varies
    ratios = sizes[varies] / largest
    return float(largest * np.sqrt(np.mean(ratios**2))), None


def _column_units(X, weight, origin, low, high):
    """By how much each column differs where it differs; 0 for constant features.

    If at least half of the rows have one value, the root mean square of the others'
    distances from it, so that rare words are not freed; for two values it is their
    range. Else the standard deviation, which is smaller by a factor of at most 2.
    Without an intercept every row is compared with 0.
    """
    every = np.arange(X.shape[1])
    usual, fraction = np.zeros(len(every)), np.ones(len(every))
    if sparse.issparse(X) or origin is None:
        fraction = fraction_beside(X, weight, usual, every)
    if origin is not None:
        usual, fraction = usual_values(X, weight, fraction)
    is_usual = (fraction <= 0.5 + ROUNDING) | (origin is None)
    away = 0.0 if origin is None else origin - usual
    sizes = _deviations(X, weight, origin, low, high)
    squares = np.hypot(sizes, away) / np.sqrt(np.where(fraction > 0, fraction, np.inf))
    return np.where(is_usual, squares, sizes)


def usual_values(X, weight, fraction):
    """The value that half of the rows have, and the fraction of the rows beside it.

    `fraction` is that beside 0, if known, else 1. Of some rows the value is a quantile
    beside the median; columns without one have a fraction above a half.
    """
    usual, some = np.zeros(X.shape[1]), X
    wanted = np.flatnonzero(fraction > 0.5 + ROUNDING)
    if isinstance(X, Blocks):
        some = X.look.some.joined()[0]
    elif weight is not None or X.shape[0] > N_SAMPLED:
        total = np.cumsum(np.ones(X.shape[0]) if weight is None else weight)
        strata = np.arange(N_SAMPLED) + np.random.default_rng(0).random(N_SAMPLED)
        some = X[np.searchsorted(total, strata / N_SAMPLED * total[-1])]
    some = some[:, wanted]
    some = np.sort(some.toarray() if sparse.issparse(some) else some, axis=0)
    for level in (0.45, 0.55):
        value = some[int(level * len(some))]
        often = np.mean(some == value, axis=0) > 0.4
        value, columns = value[often], wanted[often]
        beside = fraction_beside(X, weight, value, columns)
        usual[columns] = np.where(beside < fraction[columns], value, usual[columns])
        fraction[columns] = np.minimum(beside, fraction[columns])
    return usual, fraction


def fraction_beside(X, weight, value, columns):
    """Weighted fractions of the rows that do not have a value, in some columns."""
    if isinstance(X, Blocks):
        part = X.total(_of_block, _beside, value, columns)
        return part / X.look.moments[0]
    w = np.ones(X.shape[0]) if weight is None else weight
    if not sparse.issparse(X):
        total = np.zeros(len(columns))
        for rows in row_chunks(*X.shape, CHUNK_ELEMENTS):
            total += w[rows] @ (X[rows][:, columns] != value).astype(w.dtype)
        return total / w.sum()
    some = X[:, columns]
    own = np.repeat(w / w.sum(), np.diff(some.indptr))
    own[some.data == 0] = 0.0  # as where none is stored
    stored = np.bincount(some.indices, own, len(columns))
    own[some.data != value[some.indices]] = 0.0
    same = np.bincount(some.indices, own, len(columns))
    beside = np.where(value == 0, stored, 1 - same)
    return np.where(beside > ROUNDING, beside, 0.0)


def _deviations(X, weight, origin, low, high):
    """Root mean squares of the distances from an origin; 0 for constant features."""
    middle = 0.0 if origin is None else origin
    size = np.maximum(high - middle, middle - low)
    varies = size > 0
    size = np.where(varies, size, 1.0)
    if isinstance(X, Blocks):
        squares = X.total(_of_block, _squares, origin, size) / X.look.moments[0]
    else:
        w = np.ones(X.shape[0]) if weight is None else weight
        squares = _squares(X, w / w.sum(), origin, size)
    return np.where(varies, size * np.sqrt(squares.clip(min=0)), 0.0)


def _squares(X, w, origin, size):
    """Weighted sums of squares of standardized features."""
    rows, plain = standardized(X, origin, size), LinearPredictor(X.shape[1], 1, False)
    return plain.gram_diagonal(rows, as_tensor(w)).numpy()


def _beside(X, w, value, columns):
    """Weights of the rows that do not have a value, in some columns."""
    return fraction_beside(X, w, value, columns) * w.sum()


def _of_block(function, *args):
    """A function of a block's features and weights; None for no rows."""
    *given, X, _, weight = args
    w = np.ones(len(X)) if weight is None else np.asarray(weight, np.float64)
    return function(as_floats(X)[w > 0], w[w > 0], *given) if w.any() else None


def _means(X, weight):
    """Weighted means of the features, in float64."""
    if isinstance(X, Blocks):
        return X.look.total / X.look.moments[0]
    w = np.ones(X.shape[0]) if weight is None else weight
    if sparse.issparse(X):
        return np.asarray(X.T @ w, dtype=np.float64).ravel() / w.sum()
    total = np.zeros(X.shape[1])
    for rows in row_chunks(*X.shape, CHUNK_ELEMENTS):  # single precision is converted
        total += w[rows] @ X[rows]
    return total / w.sum()


def _ends(X):
    """Smallest and largest value of every feature, in float64."""
    if isinstance(X, Blocks):
        return X.look.low, X.look.high
    ends = X.min(0), X.max(0)
    if sparse.issparse(X):
        ends = tuple(end.toarray().ravel() for end in ends)
    return tuple(np.asarray(end, dtype=np.float64) for end in ends)


def _check_range(largest):
    """Raise if squares of features overflow."""
    if largest > LARGEST:
        raise ValueError(
            f"X has values up to {largest:.2g}; their squares leave the range of "
            "floats. Standardize the features, with "
            "sklearn.preprocessing.StandardScaler or by a power of ten."
        )
