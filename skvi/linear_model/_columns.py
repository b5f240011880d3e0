"""Several targets: independent models with the same features."""

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from skvi._estimator._base import NOTHING
from skvi.evidence import EvidenceBounds
from skvi.evidence._named import BoundsTable
from skvi.utils._validation import (
    check_array,
    refuse_dates_as_target,
    validate_data,
)

__all__ = ["ColumnsMixin"]

# Attributes that are stacked, one entry for each target.
STACKED = ("coef_", "coef_std_", "intercept_", "intercept_std_", "noise_scale_")
STACKED += ("alpha_", "lambda_", "sigma_")
# Attributes that all targets share.
SHARED = ("objective_", "divergence_", "loss_function_", "posterior_family_", "prior_")


class ColumnsMixin:
    """Mixin: a target with K columns is K fitted estimators, in `outputs_`."""

    def __sklearn_tags__(self):
        """Declare that y may have several columns."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @property
    def _n_columns(self):
        """Number of columns of the target; 0 if it is a vector."""
        return len(getattr(self, "outputs_", ()))

    _group_name = "target"

    def _group_labels(self):
        return list(range(self._n_columns))

    def _coefficient_ends(self, tail):
        if not self._n_columns:
            return super()._coefficient_ends(tail)
        found = [output._coefficient_ends(tail) for output in self.outputs_]
        return tuple(np.concatenate(ends) for ends in zip(*found, strict=True))

    def _check_columns(self, y):
        refuse_dates_as_target(y)
        y = check_array(y, dtype=np.float64, ensure_2d=self._n_columns > 1)
        if y.ndim == 1:
            y = y[:, None]
        if y.shape[1] != self._n_columns:
            raise ValueError(
                f"The fit had {self._n_columns} targets; got {y.shape[1]} columns."
            )
        return y

    def _evidence(self, X, y, rows, random_state, options):
        """Sum of the bounds of all targets, which share the seconds."""
        if not self._n_columns:
            return super()._evidence(X, y, rows, random_state, options)
        if options["max_seconds"] is not None:
            seconds = options["max_seconds"] / self._n_columns
            options = {**options, "max_seconds": seconds}
        X, y = self._check_X(X), self._check_columns(y)
        given = rows, check_random_state(random_state), options
        columns = zip(self.outputs_, y.T, strict=True)
        return add_bounds([o._evidence(X, column, *given) for o, column in columns])

    def _arviz_groups(self, X, y, rows, n_draws, random_state):
        """Of independent targets log densities are sums, and other arrays stacked."""
        if not self._n_columns:
            return super()._arviz_groups(X, y, rows, n_draws, random_state)
        X, y = self._check_X(X), self._check_columns(y)
        given = rows, n_draws, random_state
        columns = zip(self.outputs_, y.T, strict=True)
        found = [o._arviz_groups(X, column, *given) for o, column in columns]
        sums = "log_likelihood", "sample_stats"
        return {
            group: {
                name: np.sum([f[group][name] for f in found], 0)
                if group in sums
                else np.stack([f[group][name] for f in found], -1 if name == "y" else 1)
                for name in members
            }
            for group, members in found[0].items()
        }

    def _fit_columns(self, X, y, sample_weight):
        """Fit every column, and collect the results."""
        last = getattr(self, "outputs_", ())
        self._forget()
        self.__dict__.pop("outputs_", None)
        refuse_dates_as_target(y)
        X, y = validate_data(self, X, y, multi_output=True, **self._input)
        y = check_array(y, dtype=np.float64)
        random_state = check_random_state(self.random_state)
        known = self.warm_start and len(last) == y.shape[1]
        outputs = list(last) if known else [clone(self) for _ in y.T]
        for output, column in zip(outputs, y.T, strict=True):
            seed = int(random_state.randint(2**31 - 1))
            params = self.get_params(deep=False) | {"random_state": seed}
            output.set_params(**params)
            try:
                output.fit(X, column, sample_weight)
            except KeyboardInterrupt:
                if output is not outputs[-1] or not hasattr(output, "posterior_"):
                    raise KeyboardInterrupt(NOTHING) from None
                vars(self).update(self._gather(outputs))
                raise
        vars(self).update(self._gather(outputs))
        return self

    def _gather(self, outputs):
        """Attributes of all targets: stacked, shared, or summed."""
        parts = [vars(output) for output in outputs]
        found = {name: parts[0][name] for name in SHARED}
        for name in STACKED:
            if all(name in part for part in parts):
                found[name] = np.stack([part[name] for part in parts])
        for name in ("lower_bound", "objective_value"):
            found[f"{name}_"] = float(sum(part[f"{name}_"] for part in parts))
            errors = [part[f"{name}_se_"] for part in parts]
            found[f"{name}_se_"] = float(np.linalg.norm(errors))
        found["n_iter_"] = max(o.n_iter_ for o in outputs)
        found["converged_"] = all(o.converged_ for o in outputs)
        found["loss_curve_"] = self._sum_of_curves([o.loss_curve_ for o in outputs])
        found["diagnostics_"] = {"outputs": [o.diagnostics_ for o in outputs]}
        found["posterior_"] = tuple(o.posterior_ for o in outputs)
        return {**found, "outputs_": outputs}

    def _sum_of_curves(self, curves):
        """Sum over targets; finished ones keep their last value."""
        if not all(len(curve) for curve in curves):
            return np.zeros(0)  # interrupted before the first iteration
        length = max(len(curve) for curve in curves)
        return sum(np.pad(c, (0, length - len(c)), mode="edge") for c in curves)


def add_bounds(found):
    """Bounds on the evidence of independent models of several targets.

    Errors are combined as if draws were independent. Quantities without meaning for a
    sum, such as Pareto k, are those of the worst target.
    """
    first = found[0]
    errors = {
        name: float(np.hypot.reduce([getattr(b, name) for b in found]))
        for name in ("lower_se", "upper_se")
    }
    sums = {
        name: float(sum(getattr(b, name) for b in found))
        for name in ("lower", "upper", "estimate", "gap")
    }
    bad = [b.reason for b in found if not b.reliable]
    return EvidenceBounds(
        **sums,
        **errors,
        ess=min(b.ess for b in found),
        khat=max(b.khat for b in found),
        reliable=not bad,
        reason=bad[0] if bad else first.reason,
        method=", ".join(sorted({b.method for b in found})),
        plug_in=first.plug_in,
        quantity=first.quantity,
        table=BoundsTable.sum([b.table for b in found]),
    )
