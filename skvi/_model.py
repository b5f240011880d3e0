"""The model of a fit: how data become a target, and its units."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_array, column_or_1d

from skvi.base import Rows, Units
from skvi.losses import LogLoss
from skvi.targets import SupervisedTarget, Target
from skvi.utils._arrays import as_tensor
from skvi.utils._sparse import as_rows
from skvi.utils._validation import refuse_dates_as_target

__all__ = [
    "Model",
    "NumberColumns",
    "Numbers",
    "Response",
    "TrainingData",
    "check_numbers",
]

# Weights with a smaller sum, on more than twice as many rows, are hardly counts.
FEW = 5.0


class Response:
    """Immutable encoding of a user's targets as numbers.

    A subclass is a frozen dataclass with attributes determined by the targets of the
    fit, such as the classes.
    """

    def encode(self, y: Any) -> np.ndarray:
        """Encode targets as numbers, in float64.

        Parameters
        ----------
        y : array-like of shape (n_samples,)

        Returns
        -------
        ndarray of shape (n_samples,)

        Raises
        ------
        ValueError
            The targets are invalid for this model.
        """
        raise NotImplementedError

    def weights(
        self, targets: np.ndarray, sample_weight: np.ndarray | None
    ) -> np.ndarray | None:
        """Weights of the losses of rows.

        Parameters
        ----------
        targets : ndarray of shape (n_samples,)
            Encoded.
        sample_weight : ndarray of shape (n_samples,) or None

        Returns
        -------
        ndarray of shape (n_samples,) or None
            None if all of them are 1. By default, the sample weights.
        """
        return sample_weight


@dataclass(frozen=True, eq=False)
class NumberColumns(Response):
    """Targets of one or several numbers.

    Parameters
    ----------
    n_columns : int or None
        None if a target is a number.
    is_column : bool, default=False
        Whether numbers came as a single column, the shape that predictions then have.
    """

    n_columns: int | None
    is_column: bool = False

    @classmethod
    def find(cls, y: np.ndarray) -> "NumberColumns":
        """Find the number of columns; a single one is fitted as a vector.

        Parameters
        ----------
        y : ndarray of shape (n_samples,) or (n_samples, n_columns)

        Returns
        -------
        NumberColumns
        """
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

    Parameters
    ----------
    y : array-like of shape (n_samples,) or (n_samples, n_columns)

    Returns
    -------
    ndarray of the same shape

    Raises
    ------
    ValueError
        The targets are names of classes, dates, NaN or infinite.
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
    """Rows with a positive weight, as numpy arrays, and a fingerprint.

    Parameters
    ----------
    X : ndarray or sparse matrix of shape (n_samples, n_features)
    y : ndarray of shape (n_samples,)
        Encoded targets.
    weight : ndarray of shape (n_samples,) or None
        Sample weights times class weights; None if all are 1.
    offset : ndarray of shape (n_samples,) or None
        Added to the linear predictor, such as the log of an exposure.
    fingerprint : tuple of int
        Checksum of all given data.
    held_out : TrainingData, default=None
        Held-out rows for validation.
    """

    X: Any
    y: np.ndarray
    weight: np.ndarray | None
    offset: np.ndarray | None
    fingerprint: tuple[int, ...]
    held_out: "TrainingData | None" = None

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

        The latter must not influence anything: classes in a batch, units, quadrature
        nodes.

        Parameters
        ----------
        response : Response
        X : ndarray or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight, offset : ndarray of shape (n_samples,) or None

        Returns
        -------
        TrainingData
        """
        targets = response.encode(y)
        weight = response.weights(targets, sample_weight)
        fingerprint = Rows.of(X, targets, weight, offset).fingerprint()
        if weight is not None:
            keep = weight > 0
            if not keep.all():
                X, targets, weight = X[keep], targets[keep], weight[keep]
                offset = None if offset is None else offset[keep]
        return cls(X, targets, weight, offset, fingerprint)

    def hold_out(self, rows: np.ndarray) -> "TrainingData":
        """Hold rows out, for validation of a fit to the others.

        Parameters
        ----------
        rows : ndarray of int

        Returns
        -------
        TrainingData
            The other rows, with these as `held_out`.
        """
        rest = np.setdiff1d(np.arange(len(self.y)), rows)
        return replace(self._take(rest), held_out=self._take(rows))

    def _take(self, rows: np.ndarray) -> "TrainingData":
        columns = (self.X, self.y, self.weight, self.offset)
        taken = (None if column is None else column[rows] for column in columns)
        return TrainingData(*taken, self.fingerprint)

    def few_rows_message(self) -> str:
        """Say that the weights amount to next to no data; empty if they do not."""
        if self.weight is None:
            return ""
        total, n = float(self.weight.sum()), len(self.weight)
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

    Queries such as `evidence_bounds` build their target from it, even if parameters of
    the estimator were changed since.

    Parameters
    ----------
    response : Response
    predictor : predictor
    likelihood : Likelihood
        In the units of the fit.
    loss : Loss
    prior : BuiltPrior
        Over the parameters of the predictor.
    dtype : str
        The dtype of X in the fit, and of results returned to the user.
    units : Units, default=None
        Origins and scales of target, features and offset; None if they are unchanged.
    taken_from_y : tuple of str, default=()
        Names of quantities that the prior takes from the target.
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
        """Log joint density of these data and theta.

        Parameters
        ----------
        data : TrainingData

        Returns
        -------
        Target
        """
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
        return target.with_held_out(judge.target(data.held_out))

    def design(self, X: Any) -> Any:
        """Features as the predictor takes them.

        Parameters
        ----------
        X : ndarray or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        Tensor or rows that behave like one
            Unchanged by default.
        """
        return as_rows(X)

    def offset(self, given: np.ndarray | None, n_rows: int) -> np.ndarray | None:
        """Offset of f, in the units of the fit.

        Parameters
        ----------
        given : ndarray of shape (n_rows,) or None
        n_rows : int

        Returns
        -------
        ndarray of shape (n_rows,) or None
            None if it is 0; unchanged by default.
        """
        return given

    def bound(self, hyper: np.ndarray) -> tuple[Any, Any]:
        """Predictor and likelihood at the learned point parameters.

        Parameters
        ----------
        hyper : ndarray of shape (n_hyper,)
            Point parameters of the likelihood, of the prior and of the predictor.

        Returns
        -------
        predictor : Predictor
        likelihood : Likelihood
        """
        first, second = len(self.likelihood.learned), len(self.prior.learned)
        numbers = as_tensor(hyper)
        predictor = self.predictor.bind(numbers[first + second :])
        return predictor, self.likelihood.bind(numbers[:first])

    def _offset_of(self, data: TrainingData) -> torch.Tensor | None:
        offset = self.offset(data.offset, len(data.y))
        return None if offset is None else as_tensor(offset)

    def _columns(
        self, data: TrainingData
    ) -> tuple[torch.Tensor, torch.Tensor | None, float]:
        """Targets in the units of the fit, weights, and the log Jacobian of the units.

        Losses other than the log loss refer to the standardized target and have none.
        """
        y, constant = data.y, 0.0
        if self.units is not None:
            y = (y - self.units.y_mean) / self.units.y_scale
            if np.any(self.units.y_scale != 1) and self.loss.is_log_loss:
                total = len(y) if data.weight is None else float(data.weight.sum())
                constant = -total * float(np.log(self.units.y_scale).sum())
        weight = None if data.weight is None else as_tensor(data.weight)
        return as_tensor(y), weight, constant
