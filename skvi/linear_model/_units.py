"""Linear models in the units of the fit, and back in those of the data.

The features of a fit are centered where there is an intercept, whose prior then acts at
their means; and they are relative to the scale of the columns where the prior is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.utils import check_random_state

from skvi._estimator._base import NOTHING
from skvi._estimator._features import (
    CHUNK_ELEMENTS,
    feature_units,
    fraction_beside,
    usual_values,
)
from skvi._estimator._held_out import seed_of
from skvi._estimator._model import Model
from skvi.evidence import EvidenceBounds
from skvi.evidence._table import BoundsTable
from skvi.linear_model._groups import with_columns
from skvi.posteriors._bordered import BorderedForm
from skvi.priors import Normal
from skvi.targets._hierarchical import HierarchicalTarget
from skvi.targets._precisions import Hyperprior
from skvi.utils._validation import (
    as_tensor,
    check_array,
    refuse_dates_as_target,
    row_chunks,
    validate_data,
)


@dataclass(frozen=True, eq=False)
class LinearModel(Model):
    """A linear predictor of standardized features; `units` are always given."""

    def _offset_of(self, data):
        """Offset of f, (n,), or of the first of several columns, (n, K)."""
        offset, n_beside = super()._offset_of(data), self.predictor.n_outputs - 1
        if offset is None or n_beside == 0:
            return offset
        return torch.nn.functional.pad(offset[:, None], (0, n_beside))

    def in_units(self, theta, is_difference=False):
        """Parameters, (S, P), for the original target, features and offset.

        Rows of theta are in units of the fit: draws, means, or with `is_difference`
        differences of parameters, such as the rows of a root of a covariance.
        """
        units, layout = self.units, self.predictor.layout
        found = _mapped(layout, theta, units.y_scale, units.x_scale, units.x_mean)
        if "intercept" in layout and not is_difference:
            origin = units.y_mean - units.f_mean + units.log_unit
            found[:, layout["intercept"].slice] += origin
        return found

    def moments_in_units(self, normal):
        """Means and standard deviations of parameters, (P,), in units of the data."""
        mean = self.in_units(normal.mean[None])[0]
        if isinstance(normal, BorderedForm):
            return mean, self._variance_in_units(normal).sqrt()
        root = normal.factor
        if normal.scale.ndim == 2:
            variance, root = torch.zeros_like(mean), normal.scale
        else:
            y, x, origin = self.units.y_scale, self.units.x_scale, self.units.x_mean
            squared = None if origin is None else -(origin**2)
            own, layout = normal.scale.square()[None], self.predictor.layout
            variance = _mapped(layout, own, y**2, x**2, squared)[0]
        if root is not None:
            variance = variance + self.in_units(root.T, True).square().sum(0)
        return mean, variance.sqrt()

    def _variance_in_units(self, normal):
        """Of coefficients by their own, of the intercept by all covariances."""
        layout, units = self.predictor.layout, self.units
        given = units.y_scale**2, units.x_scale**2, None
        found = _mapped(layout, normal.variance[None], *given)[0]
        if units.x_mean is not None and "intercept" in layout:
            along = torch.zeros_like(found)
            along[layout["intercept"].slice] = 1.0
            along[layout["coef"].slice] = as_tensor(-units.x_mean / units.x_scale)
            variance = along @ normal.solve(along)
            found[layout["intercept"].slice] = units.y_scale**2 * variance
        return found


@dataclass(frozen=True, eq=False)
class HierarchicalLinearModel(LinearModel):
    """A linear model with an unknown precision of the noise, or a dispersion.

    `gammas` has its hyperprior, as `HierarchicalTarget` takes it.
    """

    gammas: Mapping[str, Hyperprior] = field(default_factory=dict)
    is_centered: bool = True

    def bound(self, hyper):
        """Predictor and likelihood, but for numbers in theta; see `Model.bound`."""
        if self.likelihood.gamma_prior is not None:
            return self.predictor, self.likelihood
        return super().bound(hyper)

    def target(self, data):
        """Log joint density of coefficients and number; see `Model.target`."""
        y, weight, constant = self._columns(data)
        return HierarchicalTarget(
            self.predictor,
            self.likelihood,
            self.loss,
            self.prior,
            self.design(data.X),
            y,
            weight,
            constant,
            **self.gammas,
            is_centered=self.is_centered,
            offset=self._offset_of(data),
        )


def _mapped(layout, theta, y_scale, x_scale, origin):
    """Rows of coefficients, and of intercepts at X = 0, from those at the origin."""
    blocks = layout.unpack(theta[:, : layout.size])
    coef = blocks["coef"] * as_tensor(np.asarray(y_scale / x_scale, np.float64))
    parts = [coef.flatten(1)]
    if "intercept" in blocks:
        shift = 0.0 if origin is None else coef @ torch.from_numpy(origin)
        parts.append(y_scale * blocks["intercept"] - shift)
    parts += [x for name, x in blocks.items() if name not in ("coef", "intercept")]
    return torch.cat(parts, 1)


def grouped_units(X, weight, centered, relative_to, groups, are_relative):
    """As `feature_units`, with one scale for all columns of a group.

    It is the deviation over the rows of what they add to f if their coefficients are
    independent N(0, 1): about 1 for indicators of labels. 1 where it is not relative.
    """
    origin = feature_units(X, weight, centered, None)[0]
    scale, unseen = np.ones(X.shape[1]), np.zeros(X.shape[1], dtype=bool)
    rest = columns_beside(groups, X.shape[1])
    if len(rest):
        given = X[:, rest], weight, centered, relative_to
        scale[rest], own = feature_units(*given)[1:]
        unseen[rest] = False if own is None else own
    for columns, is_relative in zip(groups.values(), are_relative, strict=True):
        if is_relative:
            given = X[:, columns], weight, centered, "deviation"
            sizes, constant = feature_units(*given)[1:]
            known = sizes if constant is None else sizes[~constant]
            scale[columns] = np.linalg.norm(known) if len(known) else 1.0
    return origin, scale, unseen if unseen.any() else None


# Labels from which columns are not centered: the intercept is as uncertain as the mean
# of their effects, beside which its prior must be weak.
FEW_LABELS = 10


def columns_of_labels(X, weight, groups):
    """The largest group of which each row has one column at most, and origins.

    A row has a column if that is not at its usual value; None if there is no group.
    Origins are the usual values of the columns of all such groups, by column; those of
    few labels stay centered.
    """
    largest, origins = np.zeros(0, dtype=int), {}
    for columns in groups.values():
        some = X[:, columns]
        fraction = fraction_beside(
            some, weight, np.zeros(len(columns)), np.arange(len(columns))
        )
        usual, fraction = usual_values(some, weight, fraction)
        if (fraction <= 0.5).all() and _most_in_a_row(some, usual) <= 1:
            largest = max(largest, columns, key=len)
            if len(columns) >= FEW_LABELS:
                origins |= dict(zip(columns.tolist(), usual, strict=True))
    return (largest, origins) if origins else None


def _most_in_a_row(X, usual):
    """Most values of a row that are not the usual ones."""
    if sparse.issparse(X):
        if usual.any():
            return X.shape[1]
        return int((X != 0).sum(1).max())
    chunks = row_chunks(*X.shape, CHUNK_ELEMENTS)
    return max(int((X[rows] != usual).sum(1).max()) for rows in chunks)


def columns_beside(groups, n_features):
    """Columns that are in no group."""
    return np.setdiff1d(np.arange(n_features), np.concatenate([*groups.values(), []]))


def offset_mean(offset, weight):
    """Weighted mean of the offset of f; 0 if there is none."""
    return 0.0 if offset is None else float(np.average(offset, weights=weight))


# Attributes that are stacked, one entry for each target.
STACKED = ("coef_", "coef_std_", "intercept_", "intercept_std_", "noise_scale_")
STACKED += ("alpha_", "lambda_", "sigma_")
# Attributes that all targets share.
SHARED = ("objective_", "divergence_", "loss_function_", "posterior_family_", "prior_")
SHARED += ("column_groups_", "kernel_", "inducing_points_")


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

    def _fit_one_or_more(self, X, y, sample_weight):
        """Fit a target, or the columns of several."""
        if (y if hasattr(y, "ndim") else np.asarray(y)).ndim == 2:
            return self._fit_columns(X, y, sample_weight)
        if "outputs_" in vars(self):
            self._forget()
            del self.outputs_
        return self._fit(X, y, sample_weight)

    def _params_of_output(self, X, k, n_outputs):
        """Parameters of the estimator of one column that differ from those of all."""
        prior = _of_output(self.prior, k, n_outputs)
        groups = with_columns(self.column_groups, self._find_groups(X))
        return {"prior": prior, "column_groups": groups}

    def _share(self, output, before, y):
        """Tell the estimator of one column what those before it have found."""

    def _fit_columns(self, X, y, sample_weight):
        """Fit every column, and collect the results."""
        last = getattr(self, "outputs_", ())
        self._forget()
        self.__dict__.pop("outputs_", None)
        refuse_dates_as_target(y)
        given = X
        X, y = validate_data(self, X, y, multi_output=True, **self._input)
        y = check_array(y, dtype=np.float64)
        random_state = check_random_state(self.random_state)
        shared = seed_of(self)  # the same rows are held out for each
        known = self.warm_start and len(last) == y.shape[1]
        outputs = list(last) if known else [clone(self) for _ in y.T]
        for k, (output, column) in enumerate(zip(outputs, y.T, strict=True)):
            seed = int(random_state.randint(2**31 - 1))
            own = {"random_state": seed}
            own |= self._params_of_output(given, k, y.shape[1])
            params = self.get_params(deep=False) | own
            output.set_params(**params)
            output._shared_seed = shared
            self._share(output, outputs[:k], y)
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
        shared = [name for name in SHARED if name in parts[0]]
        found = {name: _common([part[name] for part in parts]) for name in shared}
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


def _common(values):
    """What all targets have; a tuple if held-out rows chose several."""
    return values[0] if len(set(map(repr, values))) == 1 else tuple(values)


def _of_output(prior, k, n_outputs):
    """Prior of one target: its row, of numbers of shape (n_outputs, n_features)."""
    if isinstance(prior, dict):
        return {name: _of_output(part, k, n_outputs) for name, part in prior.items()}
    if not isinstance(prior, Normal):
        return prior
    given = {"scale": prior.scale, "loc": prior.loc}
    rows = {
        name: np.asarray(values)[k]
        for name, values in given.items()
        if np.ndim(values) == 2 and len(values) == n_outputs
    }
    return clone(prior).set_params(**rows)


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
