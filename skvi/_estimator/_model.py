"""The model of a fit: how data become a target, its units, its identity."""

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType
from typing import Any

import joblib
import numpy as np
import torch
from sklearn.base import BaseEstimator

from skvi._estimator._features import standardized
from skvi.base._layout import Units
from skvi.base._rows import Rows
from skvi.losses import LogLoss
from skvi.posteriors import Posterior
from skvi.targets import SupervisedTarget, Target
from skvi.targets._blocks import BlockRows
from skvi.utils._blocks import Blocks, as_floats
from skvi.utils._rows import as_rows
from skvi.utils._validation import (
    as_tensor,
    check_array,
    column_or_1d,
    refuse_dates_as_target,
)

# Weights with a smaller sum, on more than twice as many rows, are hardly counts.
FEW = 5.0


class Response:
    """Immutable encoding of the user's targets as numbers.

    A subclass is a frozen dataclass with what the targets of the fit determine, such as
    the classes.
    """

    def encode(self, y: Any) -> np.ndarray:
        """Encode targets in float64, (n_samples,); ValueError for invalid ones."""
        raise NotImplementedError

    def weights(
        self, targets: np.ndarray, sample_weight: np.ndarray | None
    ) -> np.ndarray | None:
        """Weights of the losses of rows, by default sample weights; None if all 1."""
        return sample_weight


@dataclass(frozen=True, eq=False)
class NumberColumns(Response):
    """Targets of one or several numbers; `n_columns` is None if a target is a number.

    `is_column` says that numbers came as a single column, the shape that predictions
    then have.
    """

    n_columns: int | None
    is_column: bool = False

    @classmethod
    def find(cls, y: np.ndarray) -> "NumberColumns":
        """Find the number of columns of `y`; a single one is fitted as a vector."""
        is_column = y.ndim == 2 and y.shape[1] == 1
        return cls(None if y.ndim == 1 or is_column else y.shape[1], is_column)

    def encode(self, y: Any) -> np.ndarray:
        """Check that targets are numbers of this shape; see `Response.encode`."""
        y = check_numbers(y)
        if self.n_columns is None:
            return column_or_1d(y, warn=not self.is_column)
        if y.shape[1:] != (self.n_columns,):
            raise ValueError(
                f"y must have {self.n_columns} columns, as in the fit. Got an array "
                f"of shape {y.shape}."
            )
        return y


class Numbers(Response):
    """Targets that are numbers, without encoding."""

    def encode(self, y: Any) -> np.ndarray:
        """Check that targets are numbers; see `Response.encode`."""
        return column_or_1d(check_numbers(y), warn=True)


def check_numbers(y: Any) -> np.ndarray:
    """Return targets as floats.

    Raises ValueError for names of classes, dates, NaN and infinite values.
    """
    refuse_dates_as_target(y)
    try:
        return check_array(y, ensure_2d=False, dtype=np.float64)
    except ValueError as error:
        if "convert string" not in str(error):
            raise
        names = np.unique(np.asarray(y, dtype=str))[:3].tolist()
        raise ValueError(
            f"y must hold numbers, and holds names such as {', '.join(names)}. To "
            "predict classes, use a classifier: BayesianLogisticRegression or "
            "BayesianMLPClassifier."
        ) from error


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Rows with a positive weight, as numpy arrays, and a checksum of all given data.

    `weight` is sample times class weight, None if all are 1; `offset` is added to the
    linear predictor; `held_out` are the rows for validation. Of rows in `blocks` these
    are the ones from which a fit starts, with the weight of all of them.
    """

    X: Any
    y: np.ndarray
    weight: np.ndarray | None
    offset: np.ndarray | None
    fingerprint: tuple[int, ...]
    held_out: "TrainingData | None" = None
    blocks: Blocks | None = None

    @classmethod
    def gather(
        cls,
        response: Response,
        X: Any,
        y: Any,
        sample_weight: np.ndarray | None,
        offset: np.ndarray | None,
    ) -> "TrainingData":
        """Encode targets, compute weights, and drop rows of weight zero.

        Such rows must not influence anything: classes in a batch, units, quadrature
        nodes.
        """
        targets = response.encode(y)
        weight = response.weights(targets, sample_weight)
        fingerprint = Rows.of(X, targets, weight, offset).fingerprint()
        return cls(X, targets, weight, offset, fingerprint).used()

    def used(self) -> "TrainingData":
        """Return the rows with a positive weight."""
        if self.weight is None or (keep := self.weight > 0).all():
            return self
        return self._take(keep)

    def over(self, blocks: Blocks) -> "TrainingData":
        """Return some rows of blocks, of which these are a sample."""
        weight, total = self.weight, blocks.look.moments[0]
        if len(blocks) > len(self.y):
            weight = np.ones(len(self.y)) if weight is None else weight
            weight = weight * (total / weight.sum())
        fingerprint = len(blocks), *self.fingerprint[1:]
        return replace(self, weight=weight, fingerprint=fingerprint, blocks=blocks)

    @property
    def features(self) -> Any:
        """X, or the blocks that hold it."""
        return self.X if self.blocks is None else self.blocks

    @property
    def total_weight(self) -> float:
        """Rows, or the sum of their weights."""
        return float(len(self.y) if self.weight is None else self.weight.sum())

    def hold_out(self, rows: np.ndarray) -> "TrainingData":
        """Return the other rows, with these as `held_out`, for validation."""
        rest = np.setdiff1d(np.arange(len(self.y)), rows)
        return replace(self._take(rest), held_out=self._take(rows))

    def _take(self, rows: np.ndarray) -> "TrainingData":
        columns = (self.X, self.y, self.weight, self.offset)
        taken = (None if column is None else column[rows] for column in columns)
        return TrainingData(*taken, self.fingerprint)

    def few_rows_message(self) -> str:
        """Say that the weights amount to next to no data; empty if they do not."""
        total, n = self.total_weight, len(self.y)
        if total >= FEW or total >= 0.5 * n:
            return ""
        return (
            f"the weights of {n} rows sum to {total:.3g}: a weight is the number of "
            "times that a row counts, so that there is next to no information; if the "
            "weights are relative, divide them by their mean"
        )

    @property
    def is_weighted(self) -> bool:
        """Whether any row has a weight other than 1."""
        return self.weight is not None and bool(np.any(self.weight != 1))


@dataclass(frozen=True, eq=False)
class Model:
    """Everything about a fit except the posterior; immutable.

    Queries such as `evidence_bounds` use it even if the estimator's parameters have
    changed. `likelihood` and `prior` are in the units of the fit; `dtype` is that of X.
    """

    response: Response
    predictor: Any
    likelihood: Any
    loss: Any
    prior: Any
    dtype: str
    units: Units | None = None
    taken_from_y: tuple[str, ...] = ()

    def target(self, data: TrainingData) -> Target:
        """Log joint density of these data and theta."""
        target = SupervisedTarget(
            self.predictor,
            self.likelihood,
            self.loss,
            self.prior,
            self.design(data.X),
            *self._columns(data),
            self._offset_of(data),
        )
        if data.held_out is None:
            return target
        judge = replace(self, loss=LogLoss())
        target.held_out = judge.target(data.held_out)
        return target

    def over_blocks(self, target: Any, data: TrainingData) -> Target:
        """The target of all blocks, from that of the rows from which a fit starts."""
        if data.blocks is not None:
            target.rows = BlockRows(data.blocks, self._read_block, target.rows)
        return target

    def _read_block(self, X: Any, y: Any, weight: Any) -> Rows:
        """Rows of a block, in the units of the fit."""
        targets = self.response.encode(np.asarray(y))
        weight = None if weight is None else np.asarray(weight, np.float64)
        weight = self.response.weights(targets, weight)
        X = as_floats(X, ensure_all_finite=False)  # the first look has checked it
        data = TrainingData(X, targets, weight, None, ()).used()
        y, own, _ = self._columns(data)
        return Rows(self.design(data.X), y, own, self._offset_of(data))

    def design(self, X: Any) -> Any:
        """Features of the fit, by which every use of X goes."""
        if self.units is None:
            return as_rows(X)
        return standardized(X, self.units.x_mean, self.units.x_scale)

    def given_features(self, X: np.ndarray) -> np.ndarray:
        """The user's features, from some dense ones of the fit."""
        if self.units is None or self.units.x_mean is None:
            return X
        return X * self.units.x_scale + self.units.x_mean

    def offset(self, given: np.ndarray | None, n_rows: int) -> np.ndarray | None:
        """Offset of f in the units of the fit, (n_rows,); None if it is 0."""
        origin = 0.0 if self.units is None else self.units.f_mean
        if given is None and origin == 0:
            return None
        return (np.zeros(n_rows) if given is None else given) - origin

    def log_units(self, y: np.ndarray) -> np.ndarray:
        """Log densities in the units of the fit less those in units of y, (n,)."""
        if self.units is None:
            return np.zeros(len(y))
        given = as_tensor((y - self.units.y_mean) / self.units.of_target)
        dense = self.likelihood._has_density(given).double().numpy()
        return (dense * np.log(self.units.of_target)).reshape(len(y), -1).sum(1)

    def bound(self, hyper: np.ndarray) -> tuple[Any, Any]:
        """Predictor and likelihood at the learned point parameters, (n_hyper,)."""
        first, second = len(self.likelihood.learned), len(self.prior.learned)
        numbers = as_tensor(hyper)
        predictor = self.predictor.bind(numbers[first + second :])
        return predictor, self.likelihood.bind(numbers[:first])

    def bound_prior(self, hyper: np.ndarray) -> Any:
        """Prior at its learned scales, the last of (n_hyper,), or None."""
        if self.prior is None:
            return None
        return self.prior.bind(as_tensor(hyper[len(hyper) - len(self.prior.learned) :]))

    def _offset_of(self, data: TrainingData) -> torch.Tensor | None:
        offset = self.offset(data.offset, len(data.y))
        return None if offset is None else as_tensor(offset)

    def _columns(
        self, data: TrainingData
    ) -> tuple[torch.Tensor, torch.Tensor | None, float]:
        """Targets in the units of the fit, weights, and the log Jacobian of the units.

        Losses other than the log loss refer to the standardized target and have no
        Jacobian.
        """
        y, constant = data.y, 0.0
        if self.units is not None:
            y = (y - self.units.y_mean) / self.units.of_target
            if np.any(self.units.of_target != 1) and self.loss.is_log_loss:
                w = np.ones(len(y)) if data.weight is None else data.weight
                constant = -float(w @ self.log_units(data.y))
        weight = None if data.weight is None else as_tensor(data.weight)
        return as_tensor(y), weight, constant


# Parameters without effect on the training.
FREE = frozenset({"verbose", "checkpoint_path", "checkpoint_interval"})
# Bytes read at once.
CHUNK = 2**24


def identity_of(estimator: BaseEstimator, data: Mapping[str, Any]) -> dict[str, str]:
    """Texts by name that are equal, in all processes, for fits with the same result."""
    params = estimator.get_params(deep=False)
    return {
        "estimator": _name(type(estimator)),
        **{k: describe(v) for k, v in sorted(params.items()) if k not in FREE},
        **{k: "none" if v is None else digest(v) for k, v in data.items()},
    }


def describe(value: Any) -> str:
    """A text that is the same for equal parameter values, in every process."""
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return repr(value)
    if isinstance(value, np.generic):
        return describe(value.item())
    if isinstance(value, Mapping):
        parts = (f"{k}: {describe(v)}" for k, v in value.items())
        return "{" + ", ".join(sorted(parts)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(describe(part) for part in value) + "]"
    if isinstance(value, np.ndarray | torch.Tensor):
        return f"array {digest(value)}"
    return _describe_object(value)


def _describe_object(value: Any) -> str:
    if isinstance(value, type):
        return _describe_class(value)
    if isinstance(value, torch.nn.Module):
        numbers = describe(value.state_dict())
        kinds = describe([type(part) for part in value.modules()])
        return f"{value!r} of {_digest_of_text(kinds)} at {_digest_of_text(numbers)}"
    if isinstance(value, Posterior):
        return f"{value!r} at {digest(value.params)}"
    if isinstance(value, BaseEstimator):
        params = value.get_params(deep=False)
        kept = ((k, v) for k, v in sorted(params.items()) if k not in FREE)
        parts = (f"{k}={describe(v)}" for k, v in kept)
        return f"{_name(type(value))}({', '.join(parts)})"
    if isinstance(value, partial):
        return describe([value.func, value.args, value.keywords])
    if inspect.isfunction(value):  # by what it does
        own = describe(value.__defaults__)
        own += describe([cell.cell_contents for cell in value.__closure__ or ()])
        return f"{_name(value)} {_digest_of_code(value.__code__)} {own}"
    try:
        return f"{_name(type(value))} {joblib.hash(value)}"
    except Exception:  # what cannot be pickled equals only itself
        return f"{_name(type(value))} {id(value)}"


def _describe_class(value: type) -> str:
    """Name of a class; for a module also its code."""
    if not issubclass(value, torch.nn.Module):
        return _name(value)
    methods = (part for part in vars(value).values() if inspect.isfunction(part))
    codes = " ".join(_digest_of_code(method.__code__) for method in methods)
    return f"{_name(value)} {_digest_of_text(codes)}"


def _digest_of_code(code: CodeType) -> str:
    text = f"{code.co_code!r} {code.co_names!r}"
    for part in code.co_consts:
        if isinstance(part, frozenset):  # in another order in another process
            text += repr(sorted(map(repr, part)))
        else:
            text += _digest_of_code(part) if inspect.iscode(part) else repr(part)
    return _digest_of_text(text)


def _digest_of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def digest(array: np.ndarray | torch.Tensor) -> str:
    """Shape, dtype and checksum of the values of an array, as a text."""
    if isinstance(array, torch.Tensor):
        array = array.detach().cpu().numpy()
    array = np.asanyarray(array)
    found = hashlib.sha256()
    rows = max(1, CHUNK // max(array[:1].nbytes, 1)) if array.ndim else 1
    for chunk in np.array_split(array, range(rows, len(array), rows)):
        found.update(np.ascontiguousarray(chunk).data)
    return f"{array.shape} {array.dtype} {found.hexdigest()[:16]}"
