"""Fitted linear models: attributes, draws, and the table of coefficients."""

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from skvi._predictive._quantiles import SampledFunction, normal_mixture_quantiles
from skvi.exceptions import SkviWarning
from skvi.linear_model._coefficients import find_coefficients
from skvi.linear_model._functions import FunctionsMixin
from skvi.linear_model._groups import correlated_groups
from skvi.plotting._rows import BLACK, BLUE, check_matplotlib, make_axes
from skvi.priors._posterior import MixtureAsPrior
from skvi.utils._tables import MAX_PRINTED, as_html
from skvi.utils._validation import interval_levels

# Fraction of the deviation of a log scale by which its nodes are smoothed.
SMOOTHING = 0.5
# Largest and least power of a scale whose nodes are smoothed.
MAX_POWER, LEAST_POWER = 2.0, 1e-12
# Ratio of standard deviations from which every row has decimals of its own.
MAX_RATIO = 100.0
HEADINGS = ("mean", "std", "lower", "upper")
# Fitted attributes that are shown below the coefficients.
NUMBERS = ("noise_scale_", "dispersion_", "prior_scale_", "lower_bound_")


@dataclass(frozen=True)
class CoefficientTable:
    """Posterior means, standard deviations and credible intervals of coefficients.

    Prints as a table; ``to_dict`` is what pandas and others read.

    Parameters
    ----------
    names : tuple of str
        Names of the rows: "intercept", and the features.
    groups : tuple
        Class or target of each row; empty if there is only one.
    group_name : str
        "class" or "target".
    mean, std, lower, upper : ndarray of shape (n_rows,)
        In the units of the coefficients; `lower` and `upper` are the ends of marginal
        central credible intervals.
    coverage : float
    title : str
    numbers : dict of str to float
        Other fitted numbers, such as the scale of the noise.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> print(BayesianLinearRegression().fit(100 * X[:, :2], y).summary())
    BayesianLinearRegression: 90 % credible intervals
                  mean    std    lower    upper
    intercept  152.133  3.614  146.189  158.078
    x0           2.756  0.803    1.426    4.066
    x1           0.194  0.738   -1.021    1.407
    noise_scale_ 75.985, lower_bound_ -2550.71
    """

    names: tuple[str, ...]
    groups: tuple[Any, ...]
    group_name: str
    mean: np.ndarray
    std: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    coverage: float
    title: str = ""
    numbers: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, list]:
        """Return one list for each column.

        Returns
        -------
        dict of str to list
            "class" or "target" if there are several, "name", "mean", "std", "lower",
            "upper".
        """
        found: dict[str, list] = {}
        if self.groups:
            found[self.group_name] = list(self.groups)
        found["name"] = list(self.names)
        for heading in HEADINGS:
            found[heading] = vars(self)[heading].tolist()
        return found

    def to_frame(self) -> Any:
        """Return a pandas data frame, with the names as its index.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        import pandas as pd

        columns = self.to_dict()
        index = [name for name in (self.group_name, "name") if name in columns]
        return pd.DataFrame(columns).set_index(index)

    def plot(self, ax: Any = None) -> Any:
        """Draw an interval for each row, from top to bottom: a caterpillar plot.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            None makes a new figure, as high as the rows need.

        Returns
        -------
        matplotlib Axes

        Raises
        ------
        ImportError
            matplotlib is not installed.
        """
        check_matplotlib(f"{type(self).__name__}.plot")
        places = np.arange(len(self))
        ax = make_axes(ax, (6.4, min(1.2 + 0.2 * len(self), 12.0)))
        ax.hlines(places, self.lower, self.upper, color=BLUE)
        ax.plot(self.mean, places, "o", color=BLUE, markersize=4)
        ax.axvline(0.0, color=BLACK, linewidth=0.8)
        labels = [str(name) for name in self.names]
        if self.groups:
            pairs = zip(self.groups, labels, strict=True)
            labels = [f"{group}  {label}" for group, label in pairs]
        ax.set_yticks(places if len(self) <= MAX_PRINTED else [])
        if len(self) <= MAX_PRINTED:
            ax.set_yticklabels(labels)
        ax.set(ylim=(len(self) - 0.5, -0.5), xlabel=self._title())
        return ax

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.names)

    def __str__(self) -> str:
        """Return one line for each coefficient, up to a maximum."""
        labels, *columns = self._cells(MAX_PRINTED).values()
        wide = max(map(len, labels), default=0)
        columns = [[h, *c] for h, c in zip(HEADINGS, columns, strict=True)]
        widths = [max(map(len, column)) for column in columns]
        lines = [self._title()]
        for label, *cells in zip(["", *labels], *columns, strict=True):
            padded = (c.rjust(w) for c, w in zip(cells, widths, strict=True))
            lines.append("  ".join([label.ljust(wide), *padded]))
        if len(self) > MAX_PRINTED:
            lines.append(f"... and {len(self) - MAX_PRINTED} more")
        if self.numbers:
            lines.append(self._note())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self._cells(len(self)), self._title(), self._note())

    def _title(self) -> str:
        return f"{self.title}: {100 * self.coverage:.4g} % credible intervals"

    def _note(self) -> str:
        formats = dict.fromkeys(self.numbers, ".5g") | {"lower_bound_": ".2f"}
        pairs = (f"{name} {x:{formats[name]}}" for name, x in self.numbers.items())
        return ", ".join(pairs)

    def _cells(self, n_rows: int) -> dict[str, list[str]]:
        """Names and rounded numbers of the first rows."""
        labels = [str(name) for name in self.names[:n_rows]]
        if self.groups:
            pairs = zip(self.groups, labels, strict=False)
            labels = [f"{group}  {name}" for group, name in pairs]
        digits = _digits(self.std[:n_rows])
        return {"": labels} | {
            name: [f"{x:.{n}f}" for x, n in zip(vars(self)[name], digits, strict=False)]
            for name in HEADINGS
        }


def _digits(std: np.ndarray) -> np.ndarray:
    """Decimals, the same for all, that show three digits of standard deviations.

    Those for a typical deviation, unless some would then have one digit or none.
    """
    known = (std > 0) & np.isfinite(std)
    if not known.any():
        return np.full(len(std), 3)
    typical = float(np.median(std[known]))
    own = np.where(known, std, typical)
    if own.max() < MAX_RATIO * own.min():
        own = np.full(len(std), typical)
    return np.clip(2 - np.floor(np.log10(own)), 0, 12).astype(int)


def summary(
    self,
    coverage: float = 0.9,
    feature_names: Sequence[str] | None = None,
    groups: bool | str = False,
) -> CoefficientTable:
    """Table of the coefficients, or of scales, with their credible intervals.

    Parameters
    ----------
    coverage : float, default=0.9
        Posterior probability of each marginal interval, in (0, 1).
    feature_names : array-like of str of shape (n_features,), default=None
        None is the names of the fit, or x0, x1, ... if it had none.
    groups : bool or str, default=False
        True for the scales of `column_groups`, which are the deviations of their
        coefficients, that of the noise, if it is inferred, and correlations; below are
        the expected shares of groups and noise in the sum of their variances (those of
        what they add to f, averaged over the rows). The name of a group for
        its coefficients alone, in ascending order of their means; that of a pair for
        those of both groups, one after the other.

    Returns
    -------
    CoefficientTable
        Prints as a table; ``to_frame()`` is one of pandas.
    """
    check_is_fitted(self)
    levels = interval_levels(type(self).__name__, coverage)
    if groups is True:
        return _table_of_scales(self, coverage, levels)
    names = _check_feature_names_in(self, feature_names)
    columns = _columns(self.intercept_, self.coef_)
    first = 0 if self.fit_intercept else 1
    names = ["intercept", *map(str, names)][first:]
    labels = self._group_labels() if len(columns) > 1 else []
    ends = self._coefficient_ends(levels[0])
    four = (columns, _columns(self.intercept_std_, self.coef_std_), *ends)
    found, title = vars(self), type(self).__name__
    if len(columns) == 1 and len(classes := found.get("classes_", ())) == 2:
        title += ", {1!r} against {0!r}".format(*classes.tolist())
    table = CoefficientTable(
        tuple(names) * len(columns),
        tuple(label for label in labels for _ in names),
        self._group_name,
        *(part[:, first:].ravel() for part in four),
        coverage=coverage,
        title=title,
        numbers={k: found[k] for k in NUMBERS if isinstance(found.get(k), float)},
    )
    return table if groups is False else _of_group(self, table, groups)


def _of_group(estimator, table, name):
    """Rows of the coefficients of one group, in ascending order."""
    pairs = correlated_groups(estimator.column_groups)
    found = {name: [name] for name in estimator.column_groups_} | pairs
    if not isinstance(name, str) or name not in found:
        raise ValueError(
            f"The fit has no group {name!r}, only {list(found)}; "
            "groups=True shows their scales."
        )
    width = len(table.names) // max(len(set(table.groups)), 1)
    firsts = range(int(estimator.fit_intercept), len(table.names), width)
    rows: list[int] = []
    for part in found[name]:
        columns = estimator.column_groups_[part]
        own = np.concatenate([columns + first for first in firsts])
        rows += own[np.argsort(table.mean[own], kind="stable")].tolist()
    return replace(
        table,
        names=tuple(table.names[k] for k in rows),
        groups=tuple(table.groups[k] for k in rows) if table.groups else (),
        numbers={},
        **{heading: vars(table)[heading][rows] for heading in HEADINGS},
    )


def _table_of_scales(estimator, coverage, levels):
    """Posterior of the scales of groups, and of the noise."""
    if not (found := estimator._log_scales()):
        raise ValueError(
            "There are no scales that were inferred: groups=True needs column_groups, "
            "and a fit that averages over their scales."
        )
    shares = _shares(estimator, found)
    named = estimator._coefficients.named_scales()
    found |= {name: named[name] for name in estimator._correlations if name in named}
    rows = []
    for name, (z, weights) in found.items():
        function = torch.tanh if name in estimator._correlations else torch.exp
        value, ends = function(z), _smooth_quantiles(z, weights, levels)
        mean = float(weights @ value)
        std = math.sqrt(float(weights @ (value - mean).square()))
        rows.append([mean, std, *function(torch.from_numpy(ends)).tolist()])
    parts = tuple(found), (), "class", *np.array(rows).T, coverage
    return CoefficientTable(*parts, type(estimator).__name__, shares)


def _shares(estimator, log_scales):
    """Expected shares of groups, and noise, in the variance that is theirs.

    The unit of a group is the deviation over the rows of what it adds to f.
    """
    unit = np.asarray(estimator._model.units.x_scale)
    logs = [
        z + math.log(unit[estimator.column_groups_[name][0]] if name != "noise" else 1)
        for name, (z, _) in log_scales.items()
    ]
    _, weights = next(iter(log_scales.values()))
    parts = weights @ torch.softmax(2 * torch.stack(logs, 1), 1)
    pairs = zip(log_scales, parts.tolist(), strict=True)
    return {f"share of {name}": share for name, share in pairs}


def _smooth_quantiles(z, weights, levels):
    """Quantiles of a density whose mass is at nodes: a mixture of the same variance.

    It is one of powers exp(p z), of which the skewness is 0: the log of a scale that
    may be 0 has a long tail on one side, and ends abruptly on the other.
    """
    center = weights @ z
    p = _power_without_skewness(z - center, weights)
    places = torch.expm1(p * (z - center)) / p
    middle = weights @ places
    std = (weights @ (places - middle).square()).sqrt()
    means = middle + math.sqrt(1 - SMOOTHING**2) * (places - middle)
    widths = torch.full_like(z, SMOOTHING * float(std))
    given = means[:, None], widths[:, None], np.array(levels), weights
    found = p * normal_mixture_quantiles(*given)[0].numpy()
    logs = float(center) + np.log1p(found.clip(min=LEAST_POWER - 1)) / p
    # Near the limit of a power logs are far beyond all nodes.
    beyond = float((weights @ (z - center).square()).sqrt())
    return logs.clip(float(z.min()) - beyond, float(z.max()) + beyond)


def _power_without_skewness(z, weights):
    """The power p with which exp(p z) is least skew; nearly 0 is z itself."""

    def skewness(p):
        x = torch.expm1((p or LEAST_POWER) * z) / (p or LEAST_POWER)
        return float(weights @ (x - weights @ x) ** 3)

    low, high = -MAX_POWER, MAX_POWER
    if skewness(low) > 0:
        return low
    if skewness(high) < 0:
        return high
    return brentq(skewness, low, high, xtol=1e-3) or LEAST_POWER


def _columns(intercept, coef):
    """Intercept and coefficients, in double precision, (n_columns, 1 + d)."""
    coef = np.atleast_2d(np.asarray(coef, dtype=np.float64))
    intercept = np.atleast_1d(np.asarray(intercept, dtype=np.float64))
    return np.column_stack([intercept, coef])


def _is_learned(prior):
    return isinstance(getattr(prior, "scale", None), str)


#: Name of a scale that another fit to the same data found, in `plug_in`.
PLUGGED_SCALE = "prior_scale"
OPEN_MEAN = (
    "prior={} does not determine the means of {} of the coefficients, which grow like "
    "its scale, as where features separate classes: medians are given, and half the "
    "width of the central 68 % interval as deviation. For means use a prior of known "
    "scale, as prior=Normal(2.5)"
)


class CoefficientsMixin(FunctionsMixin):
    """Mixin: what all linear models read from the posterior of the coefficients."""

    summary = summary
    #: Group name of rows of the summary if there are several columns of coefficients.
    _group_name = "class"

    def _posterior_attributes(self, state):
        found = super()._posterior_attributes(state)
        posterior = found["posterior_"]
        posterior.units = self._model.units
        found["_coefficients"] = self._find_coefficients(posterior)
        found |= self._moments_of(found["_coefficients"])
        if n_open := int(found["_coefficients"].has_open_mean().sum()):
            self._warn(OPEN_MEAN.format(self._coef_prior(), n_open), SkviWarning)
        return found | self._scale_in_units(found)

    def _find_coefficients(self, posterior):
        """The coefficients, as predictions and attributes read them."""
        return find_coefficients(self._model, posterior)

    def _judge_fit(self, target):
        """How many scales of the prior are averaged over; 1 beside a distribution."""
        numbers, *messages = super()._judge_fit(target)
        prior = self._model.prior
        is_carried = isinstance(prior, MixtureAsPrior)
        if is_carried or (prior is not None and prior.n_unknown_scales):
            numbers["n_scales"] = self._coefficients.n_scales
        return numbers, *messages

    def _moments_of(self, coefficients):
        """Attributes with means and standard deviations, in the units of the data."""
        layout, found = self._model.predictor.layout, {}
        moments = torch.stack(coefficients.moments())
        for name, block in layout.unpack(moments).items():
            mean, std = block.numpy().astype(self._model.dtype)
            found |= {f"{name}_": mean, f"{name}_std_": std}
        if "intercept" not in layout:
            zero = np.zeros(len(found["coef_"]), self._model.dtype)
            found |= {"intercept_": zero, "intercept_std_": zero}
        return found

    def _scale_in_units(self, found):
        """Scale of the coefficients that was inferred or learned, for the data."""
        units, scales = self._model.units, found.get("prior_scale_")
        unit = units.x_scale / units.y_scale
        if self.column_groups_:
            return {"prior_scale_": self._scales_by_group(found, unit)}
        scale = found["_coefficients"].named_scales().get("coef")
        if scale is not None:
            return {"prior_scale_": math.exp(float(scale[1] @ scale[0])) / unit}
        if PLUGGED_SCALE in self._model.taken_from_y:
            return {"prior_scale_": self._coef_prior().scale * units.y_scale}
        if isinstance(scales, dict):
            own = {n: scales[n] / unit for n in ("coef", "weight") if n in scales}
            return {"prior_scale_": {**scales, **own}}
        is_learned = _is_learned(self._coef_prior())
        return {"prior_scale_": scales / unit} if is_learned else {}

    def _scales_by_group(self, found, unit):
        """Scale of each group, and those of the columns in none, for the data."""
        own, learned = found["_coefficients"].named_scales(), found.get("prior_scale_")
        scales = {
            name: math.exp(float(w @ z))
            for name, (z, w) in own.items()
            if name not in self._correlations
        }
        if learned is not None:
            if not isinstance(learned, dict):
                names = (n for n, p in self.prior_.items() if _is_learned(p))
                learned = {next(names): learned}
            scales |= learned
        found = {n: s / unit[self._columns_of(n)] for n, s in scales.items()}
        if PLUGGED_SCALE in self._model.taken_from_y:
            y_scale = self._model.units.y_scale
            given = {n: p.scale for n, p in self.prior_.items() if np.ndim(p.scale)}
            found = {n: scale * y_scale for n, scale in given.items()}
        return {n: s if n == "coef" else float(s[0]) for n, s in found.items()}

    def _log_scales(self):
        """Logs of scales of groups, in units of the data, with weights, by name."""
        unit = np.asarray(self._model.units.x_scale / self._model.units.y_scale)
        found = self._coefficients.named_scales()
        return {
            name: (found[name][0] - math.log(unit[columns[0]]), found[name][1])
            for name, columns in self.column_groups_.items()
            if name in found
        }

    def sample_posterior(
        self, n_draws: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> dict[str, np.ndarray]:
        """Draw parameters from the fitted posterior.

        Parameters
        ----------
        n_draws : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        dict of str to ndarray
            For the features as they were given: "coef" of shape (n_draws, n_outputs,
            n_features), with as many outputs as `coef_` has rows, and "intercept" of
            shape (n_draws, n_outputs).
        """
        return self._in_units(self._draw(n_draws, random_state))

    def sample_function(
        self, random_state: int | np.random.RandomState | None = None
    ) -> Callable[[Any], np.ndarray]:
        """Draw one function from the posterior: the same coefficients for every X.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        callable
            X of shape (n_samples, n_features) -> what `predict` (for classifiers
            `predict_proba`) would return if these were the coefficients; counts are per
            unit of exposure. All calls evaluate the same function.
        """
        # A later fit must not change the function.
        return SampledFunction(copy(self), self._draw(1, random_state))

    def _mean(self, f):
        """Means of targets given f, (S, n, 1): (S, n)."""
        likelihood, units = self._model.bound(self._hyper)[1], self._model.units
        return math.exp(units.log_unit) * likelihood.mean(f - units.f_mean)

    def _in_units(self, theta):
        """Draws as blocks, in the units of the data."""
        known = self._model.predictor.layout
        blocks = self.posterior_.layout.unpack(theta)
        blocks |= known.unpack(self._model.in_units(theta))
        return {name: block.numpy() for name, block in blocks.items()}

    def _arviz_labels(self, posterior):
        """Names of features, and of groups where there are several."""
        n_groups = 1 if posterior["coef"].ndim == 2 else posterior["coef"].shape[1]
        groups = [self._group_name] if n_groups > 1 else []
        if posterior["coef"].ndim == 3 and n_groups == 1:
            posterior.update({name: x[:, 0] for name, x in posterior.items()})
        dims = {"coef": [*groups, "feature"]}
        dims |= {"intercept": groups, "noise_scale": groups}
        coords = {"feature": _check_feature_names_in(self).tolist()}
        return dims, coords | {name: self._group_labels() for name in groups}

    def _group_labels(self):
        return self.classes_.tolist()

    def _coefficient_ends(self, tail):
        return self._coefficients.ends(tail)
