"""Linear regressions that learn from batches by the sums of all rows."""

from skvi._estimator._continual import (
    Past,
    check_forgetting,
    remember,
    unchanged_by_errors,
)
from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model._blocks import MAX_QUICK
from skvi.linear_model._merged import MergedRows
from skvi.utils._interrupts import raising_interrupts
from skvi.utils._validation import (
    refuse_dates_as_target,
    validate_data,
)

__all__ = ["MergingMixin"]


class MergingMixin:
    """Mixin: with normal noise, batches are merged instead of their posteriors."""

    def _learn_batch(self, X, y, sample_weight=None, exposure=None, forgetting=1.0):
        """As for every estimator; exact where the sums of rows are sufficient."""
        is_first = not self.__sklearn_is_fitted__()
        past = None if is_first else self._merged_past()
        merges = self._needs_sums_only(X) if is_first else past is not None
        if not merges:
            return super()._learn_batch(
                X, y, sample_weight, exposure, forgetting=forgetting
            )
        check_forgetting(self, forgetting)
        with unchanged_by_errors(self), raising_interrupts():
            rows = self._checked_rows(X, y, sample_weight, is_first)
            kept = {n: v for n, v in vars(self).items() if n == "feature_names_in_"}
            n_rows, n_batches = len(rows.y), 1
            rows = MergedRows.of(rows.X, rows.y, rows.weight)
            if past is not None:
                rows = past.rows.discounted(forgetting).with_rows(rows)
                n_rows, n_batches = n_rows + past.n_rows, 1 + past.n_batches
            vars(self).pop("outputs_", None)  # not to be changed, if this fails
            self._fit_one_or_more(rows.X, rows.y, rows.weight)
            vars(self).update(kept)
            bound = self.lower_bound_
            remember(self, Past(n_batches, n_rows, bound, rows=rows))
        return self

    def _needs_sums_only(self, X):
        """Whether the likelihood depends on sums over the rows alone."""
        return (
            self._resolve("likelihood").is_normal
            and self._resolve("loss").is_log_loss
            and not self._resolve("objective").is_by_row
            and (getattr(X, "shape", None) or (0, 0))[-1] <= MAX_QUICK
        )

    def _merged_past(self):
        """Merged rows of a stream, or of the exact posterior of a fit; else None."""
        past = vars(self).get("_past")
        if past is not None:
            return past if past.rows is not None else None
        if self._n_columns:
            raise IncompatibleComponentsError(
                "After a fit to several targets partial_fit cannot go on. Begin with "
                "partial_fit, also for the first batch."
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
