"""The linear model of inducing values, with features that are made in blocks."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch

from skvi._estimator._model import Model
from skvi.base._rows import Rows
from skvi.gaussian_process._collapsed import NormalRows
from skvi.gaussian_process._features import InducingFeatures
from skvi.kernels._kernels import covariance, variance
from skvi.linear_model._coefficients import NormalCoefficients, Pair
from skvi.targets import SupervisedTarget
from skvi.targets._blocks import BlockRows
from skvi.utils._interrupts import limit_threads
from skvi.utils._rows import rows_to_start
from skvi.utils._validation import as_tensor, row_chunks

# Elements of the features of all rows beyond which they are made in blocks.
MOST_ELEMENTS = 2**25
# Rounding of a covariance of functions, relative to the prior variance of each row;
# ten times what smooth kernels at 1,000 rows need.
ROUNDING = 1e-12


class RowBlocks:
    """Rows in memory, as `Blocks`, for features that are made block by block."""

    def __init__(self, rows: NormalRows, step: int) -> None:
        self.rows, self.shape, self.look = rows, rows.X.shape, self
        self.moments = (rows.total,)
        self.slices = row_chunks(len(rows.X), 1, step)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows.X)

    def total(self, function: Callable, *args: Any) -> Any:
        """Sum of ``function(*args, X, y, weight)`` over all blocks."""
        with torch.no_grad():
            found = (function(*args, *self.rows.take(part)) for part in self.slices)
            return reduce(add, found)


@dataclass(frozen=True, eq=False)
class InducingModel(Model):
    """A linear model of inducing values; `features` are those of X."""

    features: InducingFeatures = field(kw_only=True)

    def design(self, X: Any) -> torch.Tensor:
        """Features of the inducing values; see `Model.design`."""
        with torch.no_grad():
            return self.features(as_tensor(X).double())

    def target(self, data: Any) -> Any:
        """Log joint density of data and inducing values; it knows the given rows.

        Features of many rows are made in blocks, and not kept.
        """
        y, weight, constant = self._columns(data)
        rows = NormalRows(as_tensor(data.X).double(), y[:, None], weight)
        n, m = len(y), len(self.features.Z)
        if n * m <= MOST_ELEMENTS:
            found = super().target(data)
        else:
            index = torch.from_numpy(rows_to_start(n, m))
            start = self._rows(*rows.take(index))
            own = torch.ones_like(start.y) if weight is None else start.weight
            start = replace(start, weight=own * (rows.total / float(own.sum())))
            parts = self.predictor, self.likelihood, self.loss, self.prior, start.X
            found = SupervisedTarget(*parts, start.y, start.weight, constant)
            blocks = RowBlocks(rows, max(MOST_ELEMENTS // (16 * m), 1))
            found.rows = BlockRows(blocks, self._rows, start)
        found.inputs = rows
        return found

    def _rows(self, X, y, weight):
        """Rows of a block, with their features."""
        with torch.no_grad():
            return Rows(self.features(X), y, weight)


class Functions(NormalCoefficients):
    """f under a normal of the inducing values, with what they do not determine."""

    def functions_at_nodes(self, X: Any, n_jobs: int | None) -> Pair:
        """By blocks of rows; see `NormalCoefficients.functions_at_nodes`."""
        width = len(self.model.features.Z)
        chunks = row_chunks(X.shape[0], width, MOST_ELEMENTS // 16)
        parts = [
            super(Functions, self).functions_at_nodes(X[c], n_jobs) for c in chunks
        ]
        mean, variance = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        return mean, variance

    def function_covariance(self, X: Any, n_jobs: int | None) -> np.ndarray:
        """Covariance of f between the rows of X, (n, n)."""
        found = super().function_covariance(X, n_jobs)
        features, rows = self.model.features, as_tensor(X).double()
        with torch.no_grad(), limit_threads(len(rows) ** 2 * len(features.Z), n_jobs):
            phi = self.model.design(X)[:, :-1]
            total = covariance(features.kernel, features.theta, rows, rows)
            return found + (total - phi @ phi.T).numpy()

    def sample(self, X: Any, noise: torch.Tensor, n_jobs: int | None) -> torch.Tensor:
        """Functions at rows of X, (n, S), by as many normal numbers.

        Values do not depend on the rows that follow.
        """
        features, rows = self.model.features, as_tensor(X).double()
        cov = torch.from_numpy(self.function_covariance(X, n_jobs))
        own = variance(features.kernel, features.theta, rows)
        cov.diagonal().add_(ROUNDING * own + np.finfo(float).tiny)
        mean = self.functions(X, n_jobs)[0]
        return mean[:, None] + torch.linalg.cholesky(cov) @ noise


class SampledProcess:
    """A function of each target, drawn where it is asked for, given what was drawn."""

    def __init__(self, estimator: Any, random_state: np.random.RandomState) -> None:
        self.estimator = estimator
        self.outputs = estimator.outputs_ if estimator._n_columns else [estimator]
        self.rng = np.random.default_rng(random_state.randint(2**31))
        #: Rows so far, as bytes, with their places; a normal number of each.
        self.known: dict[bytes, int] = {}
        self.noise = np.empty((0, len(self.outputs)))

    def __call__(self, X: Any) -> np.ndarray:
        """Values at rows of X, (n,) or (n, n_outputs), in units of y."""
        X = self.estimator._check_X(X).astype(np.float64) + 0.0  # -0 is 0
        places = [self.known.setdefault(x.tobytes(), len(self.known)) for x in X]
        rows = np.frombuffer(b"".join(self.known)).reshape(-1, X.shape[1])
        more = self.rng.normal(size=(len(rows) - len(self.noise), len(self.outputs)))
        self.noise, found = np.concatenate([self.noise, more]), []
        for output, noise in zip(self.outputs, self.noise.T, strict=True):
            noise, units = as_tensor(noise[:, None].copy()), output._model.units
            f = output._coefficients.sample(rows, noise, output.n_jobs)[places, 0]
            found.append(f.numpy() * units.y_scale + units.y_mean)
        return np.stack(found, 1) if self.estimator._n_columns else found[0]
