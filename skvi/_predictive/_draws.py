"""Predictions from draws of the parameters, for every predictor and family."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.utils import gen_batches
from torch.nn.functional import logsigmoid

from skvi.predictors.base import Predictor
from skvi.utils._arrays import as_tensor
from skvi.utils._device import CPU, Movable
from skvi.utils._log_space import log_mean_exp
from skvi.utils._sparse import Features, SparseRows, as_rows
from skvi.utils._threads import limit_threads

__all__ = [
    "Draws",
    "SampledFunction",
    "average_log_probabilities",
    "log_class_probabilities",
]

# Rows that are predicted at once. The number is constant (a short block is padded),
# because matrix products of other sizes may round differently: the prediction for a row
# must not depend on the other rows. It is a multiple of the widths, 8, 12, 16, 48 and
# 64, in which products and sums process rows together, so that all positions in a block
# are equivalent as well.
ROW_BLOCK = 192
# The number on other devices, where every operation on a block has an overhead of
# microseconds.
DEVICE_BLOCK = 64 * ROW_BLOCK


@dataclass(frozen=True, eq=False)
class Draws(Movable):
    """Functions drawn from a posterior: `theta` has shape (n_draws, n_params).

    `read` turns the features of the user into those of the predictor.
    """

    predictor: Predictor
    theta: torch.Tensor
    read: Callable[[Any], Any] = field(default=as_rows, kw_only=True)

    def by_rows(
        self, X: Any, function: Callable[..., torch.Tensor], *columns: np.ndarray
    ) -> np.ndarray:
        """Apply a function to the outputs of all draws, in blocks of rows; float64.

        It gets f of shape (n_draws, rows, n_outputs) and the rows of `columns`, and
        returns a tensor whose first axis is the rows.
        """
        rows, device = self.read(X), self.theta.device
        arrays = [as_tensor(column).to(device) for column in columns]
        size = ROW_BLOCK if device == CPU else DEVICE_BLOCK
        with limit_threads(0):  # copies of the weights need no second thread
            forward = self.predictor.block_forward(self.theta, size)
        result = None
        with torch.no_grad(), limit_threads(forward.work):
            for block in gen_batches(len(rows), size):
                f = forward(_dense(rows[block], self.theta.dtype).to(device)).double()
                filled = (_fill(array[block], size) for array in arrays)
                part = function(f, *filled)[: min(block.stop, len(rows)) - block.start]
                if result is None:
                    result = part.new_empty(len(rows), *part.shape[1:])
                result[block] = part
        return result.cpu().numpy()


class SampledFunction:
    """The function of a fitted estimator at one draw of its parameters."""

    def __init__(self, estimator, theta):
        self.estimator, self.draws = estimator, estimator._drawn(theta)

    def __call__(self, X):
        """Targets in units of y without noise, or class probabilities; float64."""
        X = self.estimator._check_X(X)
        return self.draws.by_rows(X, lambda f: self.estimator._mean(f)[0])


def log_class_probabilities(f: torch.Tensor) -> torch.Tensor:
    """Log class probabilities given f, (n_draws, rows, n_classes)."""
    if f.shape[2] > 1:
        return torch.log_softmax(f, 2)
    return torch.cat([logsigmoid(-f), logsigmoid(f)], 2)


def average_log_probabilities(f: torch.Tensor) -> torch.Tensor:
    """Log of class probabilities averaged over draws, (rows, n_classes)."""
    return log_mean_exp(log_class_probabilities(f), 0)


def _dense(rows: Features, dtype: torch.dtype) -> torch.Tensor:
    """Rows of a block as a tensor; a block of sparse rows is small enough for this."""
    if isinstance(rows, SparseRows):
        return rows.dense().to(dtype)
    return rows


def _fill(block: torch.Tensor, n_rows: int) -> torch.Tensor:
    """Append rows of zeros."""
    padding = [0, 0] * (block.ndim - 1) + [0, n_rows - len(block)]
    return torch.nn.functional.pad(block, padding)
