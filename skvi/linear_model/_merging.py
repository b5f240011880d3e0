"""Linear regressions that learn from batches by the sums of all rows.

With normal noise and log loss the likelihood is a function of the weighted number of
rows, their means and cross products. Few rows can have the same as all.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.linalg import helmert, qr

from skvi._estimator._continual import (
    Past,
    check_forgetting,
    remember,
    unchanged_by_errors,
)
from skvi.base import NormalForm
from skvi.base._layout import Units
from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model._one_output import mean_of_number
from skvi.posteriors import Family, Posterior
from skvi.posteriors._mixture import MixtureOverScales
from skvi.solvers._exact import MixtureOverPrecisions
from skvi.utils._interrupts import raising_interrupts
from skvi.utils._validation import (
    refuse_dates_as_target,
    row_chunks,
    validate_data,
)

# Rows are merged by blocks of so many elements.
ELEMENTS = 2**20


@dataclass(frozen=True, eq=False)
class MergedRows:
    """Features (m, d), targets (m,) or (m, K), and weights of few rows."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, X: Any, y: np.ndarray, weight: np.ndarray | None) -> "MergedRows":
        """Merge rows, of which sparse ones become dense block by block."""
        w = np.ones(len(y)) if weight is None else weight
        found = cls(np.zeros((0, X.shape[1])), y[:0], w[:0])
        for rows in row_chunks(*X.shape, ELEMENTS):
            block = X[rows].toarray() if sparse.issparse(X) else X[rows]
            kept = w[rows] > 0
            found = found.with_rows(cls(block[kept], y[rows][kept], w[rows][kept]))
        return found

    @classmethod
    def of_posterior(cls, exact: MixtureOverPrecisions, units: Units) -> "MergedRows":
        """Rows with the sums of those that an exact posterior has seen."""
        data = exact.form.data
        sizes = np.sqrt(data.values.numpy())
        root = np.zeros((len(sizes) + 1, data.n_features + 1))
        root[:-1, :-1] = sizes[:, None] * data.vectors.numpy().T
        root[:-1, -1] = sizes * data.solution.numpy()
        root[-1, -1] = np.sqrt(max(data.residual, 0.0))
        rows, weight = _spread(root, data.n)
        X = rows[:, :-1] * units.x_scale
        X = X if units.x_mean is None else X + units.x_mean
        y = units.y_mean + units.y_scale * (data.mean + rows[:, -1])
        return cls(X, y, weight)

    def discounted(self, factor: float) -> "MergedRows":
        """The same rows, of a smaller weight."""
        return replace(self, weight=factor * self.weight)

    def with_rows(self, other: "MergedRows") -> "MergedRows":
        """Rows with the sums of both, at most one more than there are columns."""
        if other.y.shape[1:] != self.y.shape[1:]:
            raise ValueError(
                f"y must have the shape (n_samples, *{self.y.shape[1:]}), as in the "
                f"batches before. Got {other.y.shape}."
            )
        w = np.concatenate([self.weight, other.weight])
        table = np.column_stack(
            [np.concatenate([self.X, other.X]), np.concatenate([self.y, other.y])]
        ).astype(np.float64)
        if len(w) > table.shape[1] + 1:
            # Relative to a row, so that constant columns stay constant.
            origin = table[0].copy()
            table -= origin
            mean = w @ table / w.sum()
            table -= mean
            table *= np.sqrt(w)[:, None]
            root = qr(table, mode="r", overwrite_a=True, check_finite=False)[0]
            table, w = _spread(root[: table.shape[1]], float(w.sum()))
            table += origin + mean
        d = self.X.shape[1]
        y = table[:, d] if self.y.ndim == 1 else table[:, d:]
        return MergedRows(np.ascontiguousarray(table[:, :d]), y.copy(), w)


def _spread(root: np.ndarray, total: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows of mean 0 and equal weights, the weighted cross products being root' root.

    Contrasts (Helmert's) are orthogonal to each other and to a constant.
    """
    n = len(root) + 1
    return np.sqrt(n / total) * helmert(n).T @ root, np.full(n, total / n)


# Parameters up to which a covariance is factorized in every step of a fit: with a fixed
# scale a fit with one column then takes a few seconds, one with fifty classes ten.
MAX_FULL = 1000
# Where it is factorized once, or with so few rows, it takes as long up to more.
MAX_QUICK, MAX_QUICK_ROWS = 3000, 1500


def check_joint(posterior: Posterior, family: Family) -> None:
    """Raise if a number of the likelihood is independent of the coefficients."""
    if posterior.layout.positive and len(posterior.parts) > 1:
        name = posterior.layout.positive[0]
        raise IncompatibleComponentsError(
            f"posterior={family!r}",
            f"a {name} that is not independent of the coefficients",
            f"'full_rank' or 'mean_field', which are normal at every {name}",
        )


def mean_log_number(posterior: Posterior) -> float:
    """Posterior mean of the log of the number of a likelihood, which comes last."""
    if isinstance(posterior, MixtureOverPrecisions):  # whose normal is large
        return posterior.mean_of(lambda t: t, "noise")
    if not isinstance(posterior, MixtureOverScales):
        normal = posterior.as_prior().as_normal()
        if normal is not None:
            return float(normal.mean[-1])
    return mean_of_number(posterior, lambda z: z)


def normal_of_predictor(posterior: Posterior) -> NormalForm | None:
    """Normal of the coefficients and the intercept; None if it is not normal."""
    names = [name for name in posterior.layout if name not in posterior.layout.positive]
    if len(posterior.parts) == 1 and len(names) < len(posterior.layout):
        return None  # dependent on positive parameters
    parts = [posterior.part(name) for name in names]
    if len(names) == 1 or parts[0].layout.keys() == set(names):
        return parts[0].as_normal()
    forms = [form for part in parts if (form := part.as_normal()) is not None]
    return join_independent(forms) if len(forms) == len(parts) else None


def join_independent(forms: list[NormalForm]) -> NormalForm:
    """Normal of independent normals."""
    mean = torch.cat([form.mean for form in forms])
    if all(form.is_diagonal for form in forms):
        return NormalForm(mean, torch.cat([form.scale for form in forms]))
    dense = [torch.linalg.cholesky(form.covariance()) for form in forms]
    return NormalForm(mean, torch.block_diag(*dense))


class MergingMixin:
    """Mixin: with normal noise, batches are merged instead of their posteriors."""

    def _learn_batch(self, X, y, sample_weight=None, forgetting=1.0):
        """As for every estimator; exact where the sums of rows are sufficient."""
        self._check_stream()
        is_first = not self.__sklearn_is_fitted__()
        past = None if is_first else self._merged_past()
        merges = self._needs_sums_only(X) if is_first else past is not None
        if not merges:
            return super()._learn_batch(X, y, sample_weight, forgetting=forgetting)
        check_forgetting(self, forgetting)
        with unchanged_by_errors(self), raising_interrupts():
            rows = self._checked_rows(X, y, sample_weight, is_first)
            kept = {n: v for n, v in vars(self).items() if n == "feature_names_in_"}
            groups = self._find_groups(X) if is_first else self.column_groups_
            n_rows, n_batches = len(rows.y), 1
            rows = MergedRows.of(rows.X, rows.y, rows.weight)
            if past is not None:
                rows = past.rows.discounted(forgetting).with_rows(rows)
                n_rows, n_batches = n_rows + past.n_rows, 1 + past.n_batches
            vars(self).pop("outputs_", None)  # not to be changed, if this fails
            self._merged_groups = groups  # merged rows have no names
            self._fit_one_or_more(rows.X, rows.y, rows.weight)
            del self._merged_groups
            vars(self).update(kept)
            bound = self.lower_bound_
            remember(self, Past(n_batches, n_rows, bound, rows=rows))
        return self

    def _find_groups(self, X):
        known = vars(self).get("_merged_groups")
        return super()._find_groups(X) if known is None else known

    def _needs_sums_only(self, X):
        """Whether the likelihood depends on sums over the rows alone."""
        return (
            self._resolve("likelihood").is_normal
            and self._resolve("loss").is_log_loss
            and self._resolve("objective").kind != "rows"
            and (getattr(X, "shape", None) or (0, 0))[-1] <= MAX_QUICK
        )

    def _merged_past(self):
        """Merged rows of a stream, or of the exact posterior of a fit; else None."""
        past = vars(self).get("_past")
        if past is not None:
            return past if past.rows is not None else None
        if self._n_columns:
            raise IncompatibleComponentsError(
                "partial_fit to several targets",
                "a first batch of its own; this model had a fit",
                "partial_fit for all batches, or one target",
            )
        if self._exact is None:
            return None
        rows = MergedRows.of_posterior(self._exact, self._model.units)
        return Past(1, self._fingerprint[0], self.lower_bound_, rows=rows)

    def _checked_rows(self, X, y, sample_weight, is_first):
        refuse_dates_as_target(y)
        options = {**self._input, "multi_output": True, "y_numeric": True}
        X, y = validate_data(self, X, y, reset=is_first, **options)
        return MergedRows(X, y, self._check_weights(X, sample_weight))

    def _evidence(self, *given):
        self._check_rows_are_kept()
        return super()._evidence(*given)

    def _arviz_groups(self, *given):
        self._check_rows_are_kept()
        return super()._arviz_groups(*given)

    def _check_rows_are_kept(self):
        past = vars(self).get("_past")
        if past is not None and past.rows is not None:
            raise ValueError(
                f"partial_fit does not keep the {past.n_rows} rows that "
                "evidence_bounds and to_arviz need. lower_bound_ is that of all of "
                "them, with the exact posterior (the default) their log evidence; for "
                "bounds on both sides, fit all rows at once."
            )
