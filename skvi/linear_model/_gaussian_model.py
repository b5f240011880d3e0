"""The model of linear regression: units, centered features, inferred precisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from skvi._model import Model
from skvi.predictors import CenteredLinearPredictor, LinearPredictor
from skvi.priors import GammaHyperprior
from skvi.targets import HierarchicalTarget
from skvi.utils._arrays import as_tensor, row_chunks
from skvi.utils._shifted import ShiftedRows
from skvi.utils._sparse import as_rows

__all__ = ["GaussianLinearModel", "column_means"]

# Squares of larger features, times rows and precisions, overflow.
LARGEST_FEATURE = 1e140
# Sizes of X above which no copy of it is made (128 MiB in double precision), and of
# chunks copied to double precision at once.
MAX_COPIED, CHUNK_ELEMENTS = 2**24, 2**21


@dataclass(frozen=True, eq=False)
class GaussianLinearModel(Model):
    """Linear regression in the units of the fit, with inferred precisions.

    Parameters
    ----------
    gammas : dict of str to GammaHyperprior
        Hyperpriors of precisions: arguments of `HierarchicalTarget`.
    prior : BuiltPrior or None
        With a hyperprior of the coefficients' precisions over the intercept only.
    marginal_prior : BuiltPrior
        Over coefficients and intercept, their precisions integrated out.
    """

    gammas: Mapping[str, GammaHyperprior] = field(default_factory=dict)
    marginal_prior: Any = None
    is_centered: bool = True

    def target(self, data):
        """Log joint density of coefficients and precisions; see `Model.target`."""
        _check_range(data.X)
        rows, predictor = self.design(data.X)
        y, weight, constant = self._columns(data)
        return HierarchicalTarget(
            predictor,
            self.likelihood,
            self.loss,
            self.prior,
            rows,
            y,
            weight,
            constant,
            **self.gammas,
            is_centered=self.is_centered,
        )

    def design(self, X):
        """Centered features, and their predictor; sparse ones are centered by that.

        Large dense ones are centered when they are read: they can be a memory map.
        """
        origin = self.units.x_mean
        if origin is None:
            return as_rows(X), LinearPredictor(X.shape[1], 1, False)
        if sparse.issparse(X):
            return as_rows(X), CenteredLinearPredictor(as_tensor(origin))
        if X.size > MAX_COPIED:
            rows = ShiftedRows(as_tensor(X), as_tensor(np.asarray(origin)))
            return rows, LinearPredictor(X.shape[1])
        return as_tensor(X - origin), LinearPredictor(X.shape[1])


def column_means(X, weight):
    """Weighted means of the features, in float64."""
    w = np.ones(X.shape[0]) if weight is None else weight
    if sparse.issparse(X):
        return np.asarray(X.T @ w, dtype=np.float64).ravel() / w.sum()
    total = np.zeros(X.shape[1])
    for rows in row_chunks(*X.shape, CHUNK_ELEMENTS):  # single precision is converted
        total += w[rows] @ X[rows]
    return total / w.sum()


def _check_range(X):
    """Raise if squares of features overflow."""
    largest = max(float(X.max()), -float(X.min()))
    if largest > LARGEST_FEATURE:
        raise ValueError(
            f"X has values up to {largest:.2g}; their squares leave the range of "
            "floats. Standardize the features, with "
            "sklearn.preprocessing.StandardScaler or by a power of ten."
        )
