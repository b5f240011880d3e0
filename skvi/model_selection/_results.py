"""The table of a search, its decision in a sentence, and what it delegates."""

import math
from typing import Any

import numpy as np
from numpy.ma import MaskedArray
from scipy.stats import rankdata
from sklearn import get_config
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skvi.model_selection._candidates import Outcome, final_step
from skvi.model_selection._race import (
    UNBOUNDED,
    Comparison,
    Model,
    Race,
    training_bound,
)
from skvi.plotting._rows import describe_candidates
from skvi.utils._tables import as_html

# Tolerance of equal training bounds: the first candidate wins.
SAME_BOUND = 1e-4
NO_CERTAINTY = "as an approximation over learned numbers says, which decides nothing"


def make_results(
    grid: list[dict], fits: list[Outcome], models: list[Model], race: Race
) -> dict[str, Any]:
    """Columns of equal length, ready for `pandas.DataFrame`, after the race was run.

    `fits` has one for each candidate, `models` those that have an evidence.
    """
    comparison, n_errors = race.compare(models), race.n_errors(models)
    groups, n_rows = [model.rows for model in models], len(grid)

    def column(values: Any, missing: Any = np.nan) -> np.ndarray:
        return _expand(n_rows, groups, values, missing)

    whole = -math.inf, math.inf  # nothing bounds an approximation
    ends = [m.interval(n_errors) if m.is_certain else whole for m in models]
    stated = [model.stated() for model in models]
    shares = comparison.probabilities()
    contenders = set(comparison.contenders())
    results = {
        **_parameter_columns(grid),
        "model": column([min(rows) for rows in groups], -1),
        "estimate": column([estimate for _, estimate, _ in stated]),
        "lower": column([low for low, _, _ in stated]),
        "upper": column([high for _, _, high in stated]),
        "laplace_term": column([model.term for model in models]),
        "lower_se": column([model.bounds.lower_se for model in models]),
        "upper_se": column([model.bounds.upper_se for model in models]),
        "interval_lower": column([low for low, _ in ends]),
        "interval_upper": column([high for _, high in ends]),
        "probability": column(shares[0]),
        "probability_lower": column(shares[1]),
        "probability_upper": column(shares[2]),
        "log_prior": race.log_prior,
        "contender": column([k in contenders for k in range(len(models))], False),
        "reliable": column([model.bounds.reliable for model in models], False),
        "reason": column([model.bounds.reason for model in models], ""),
        "method": column([model.bounds.method for model in models], ""),
        "plug_in": column([", ".join(model.bounds.plug_in) for model in models], ""),
        "precision": column([model.precision for model in models]),
        "n_runs": column([model.n_runs for model in models], 0),
        "training_bound": np.array([training_bound(fit.value) for fit in fits]),
        "fit_time": np.array([fit.seconds for fit in fits]),
        "evidence_time": column([model.seconds for model in models]),
    }
    results["rank_evidence"] = _rank(column(comparison.estimate))
    failed = {  # in a fit, or in its evidence
        row: fit.message for row, fit in enumerate(fits) if fit.value is None
    } | race.errors
    for row, message in failed.items():
        results["reason"][row] = message
    return results


def inclusion_of(
    grid: list[dict], models: list[Model], comparison: Comparison
) -> dict[str, Any]:
    """Probability of each value of each parameter, with an interval; as columns.

    Parameters that differ within a model, those of inference, have none.
    """
    rows = []
    for name in sorted({name for params in grid for name in params}):
        values: dict[str, tuple[Any, list[int]]] = {}
        own = [{repr(grid[i].get(name, ...)) for i in m.rows} for m in models]
        if any(len(found) > 1 for found in own):
            continue
        for k, model in enumerate(models):
            if name in (params := grid[model.chosen]):
                value = params[name]
                values.setdefault(repr(value), (value, []))[1].append(k)
        for value, members in values.values():
            rows.append((name, value, *comparison.share_of(members)))
    names = "parameter", "value", "probability", "lower", "upper"
    columns: dict[str, Any] = {}
    for name, column in zip(names, zip(*rows, strict=True), strict=bool(rows)):
        dtype = object if name == "value" else None
        columns[name] = np.empty(len(rows), dtype or np.asarray(column).dtype)
        columns[name][:] = column
    return columns


def results_as_html(results: dict[str, Any], verdict: str) -> str:
    """Evidences and probabilities of the candidates, the best first."""
    names = np.array(describe_candidates(results["params"]), dtype=object)
    order = np.argsort(results["rank_evidence"], kind="stable")
    columns: dict[str, Any] = {"candidate": names[order]}
    for name in ("lower", "estimate", "upper", "probability"):
        columns[name] = [f"{value:.3f}" for value in results[name][order]]
    return as_html(columns | {"reliable": results["reliable"][order]}, verdict)


def _parameter_columns(grid: list[dict]) -> dict[str, Any]:
    """``param_*`` columns, masked where a candidate does not have the parameter."""
    columns: dict[str, Any] = {}
    for name in sorted({name for params in grid for name in params}):
        column = MaskedArray(np.empty(len(grid), dtype=object), mask=True)
        for row, params in enumerate(grid):
            if name in params:
                column[row] = params[name]
        columns[f"param_{name}"] = column
    return columns | {"params": grid}


def _expand(n_rows: int, groups: list[list[int]], values: Any, missing: Any) -> Any:
    """Repeat the value of each model for its candidates."""
    is_text = isinstance(missing, str)
    dtype = object if is_text else np.result_type(np.asarray(values), type(missing))
    column = np.full(n_rows, missing, dtype=dtype)
    for rows, value in zip(groups, values, strict=True):
        column[rows] = value
    return column


def _rank(estimates: np.ndarray) -> np.ndarray:
    """1 for the highest estimate; candidates without one come last."""
    order = np.where(np.isnan(estimates), np.inf, -estimates)
    return rankdata(order, method="min").astype(np.int32)


def models_of(groups: list[list[int]], fits: list[Outcome]) -> list[Model]:
    """Models whose candidates were fitted, with the fit of highest training bound."""
    models = []
    for group in groups:
        rows = [row for row in group if fits[row].value is not None]
        if not rows:
            continue
        found = np.array([training_bound(fits[row].value) for row in rows])
        found = np.where(np.isnan(found), -np.inf, found)
        near = found >= found.max() - SAME_BOUND
        chosen = rows[int(np.argmax(near))]
        models.append(Model(rows, chosen, fits[chosen].value))
    return models


def describe(models: list[Model], race: Race, grid: list[dict]) -> str:
    """Say which model is best, or why that is undecided, and what failed."""
    failed = len(grid) - sum(len(model.rows) for model in models)
    comparison = race.compare(models)
    if race.is_interrupted:
        best = describe_candidates(grid)[models[comparison.contenders()[0]].chosen]
        n_bounded = sum(model.bounds is not UNBOUNDED for model in models)
        return (
            f"undecided: interrupted by Ctrl-C; {best} has the highest estimate of "
            f"{len(models)} models, {n_bounded} of which have bounds; {failed} of "
            f"{len(grid)} candidates are not compared"
        )
    verdict = _compare(models, comparison, grid)
    if race.is_cut:
        verdict += "; max_seconds left no time for tighter bounds"
    if not failed:
        return verdict
    were = "candidate failed and was" if failed == 1 else "candidates failed and were"
    return f"{verdict}; {failed} {were} not compared"


def _compare(models: list[Model], comparison: Comparison, grid: list[dict]) -> str:
    best, *others = comparison.contenders()
    names = describe_candidates(grid)
    name, least = names[models[best].chosen], comparison.min_difference
    zone = f"{least:g} nat" + "s" * (least != 1)
    if len(models) == 1:
        return _describe_only(name, models[0])
    if not others:
        return (
            f"decided: {name} is better than every other model by more than {zone} "
            f"(odds above {math.exp(comparison.min_difference):.2g} to 1); its "
            f"probability is {_describe_share(comparison, best)}"
        )
    if not any(model.bounds.reliable for model in models):
        return (
            f"undecided: no model has reliable bounds ({name}, which has the highest "
            f"estimate: {models[best].bounds.reason})"
        )
    reasons = "; ".join(
        f"{names[models[j].chosen]}: {_why_left(models, comparison, best, j)}"
        for j in others
    )
    return (
        f"undecided: {name} has the highest estimate, and {len(others)} other "
        f"model{'s' if len(others) > 1 else ''} cannot be excluded ({reasons})"
    )


def _describe_only(name: str, model: Model) -> str:
    if model.bounds.reliable:
        return f"decided: {name} is the only model"
    return (
        f"decided: {name} is the only model, and its bounds are not reliable, "
        f"{model.bounds.reason}"
    )


def _describe_share(comparison: Comparison, k: int) -> str:
    """Interval of a probability, rounded outwards to three decimals, or a number."""
    _, low, high = (ends[k] for ends in comparison.probabilities())
    if low > 0.999:
        return "above 0.999"
    if round(low, 3) == round(high, 3):
        return f"{low:.3g}"
    return f"{math.floor(1e3 * low) / 1e3:g} to {math.ceil(1e3 * high) / 1e3:g}"


def _why_left(models: list[Model], comparison: Comparison, best: int, j: int) -> str:
    for k, whose in ((j, "its"), (best, "the best one's")):
        if not models[k].bounds.reliable:
            return f"{whose} bounds are not reliable, {models[k].bounds.reason}"
    if not (comparison.is_certain[best] and comparison.is_certain[j]):
        nats = comparison.estimate[best] - comparison.estimate[j]
        return f"lower by about {nats:.2g} nats, {NO_CERTAINTY}"
    if comparison.is_above(best, j):
        learned = ", ".join(sorted(comparison.learned[best] - comparison.learned[j]))
        return f"lower, but the best one is optimistic by learning {learned}"
    low = comparison.low[best] - comparison.high[j]
    high = comparison.high[best] - comparison.low[j]
    span = f"the best one is better by {low:.2g} to {high:.2g} nats"
    if comparison.is_tie(best, j):
        return f"{span}, within min_difference"
    return (
        f"{span}, which cannot be distinguished from min_difference at this precision"
    )


ROUTED = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score",
)


CLASSES = "ndarray of shape (n_samples, n_classes)"


def _best_has(name):
    """Whether the best estimator, or before `fit` the given one, has a method.

    An average transforms features for the last steps of pipelines, which must have it.
    """

    def check(search):
        if not search.refit:
            raise AttributeError(
                f"This EvidenceSearch has refit=False, which keeps no estimator: use "
                f"refit=True to have {name}."
            )
        own = getattr(search, "best_estimator_", search.estimator)
        getattr(final_step(own) if search.refit == "average" else own, name)
        return True

    return check


def _call(search, name, X, *args, **params):
    check_is_fitted(search)
    if name in ROUTED and get_config()["enable_metadata_routing"]:
        params = process_routing(search, name, **params)["estimator"][name]
    return getattr(search._predictor, name)(X, *args, **params)


def _delegate(name, what, returns):
    """Make a method that calls that of the best estimator, if it has one."""

    def method(self, X, *args, **params):
        return _call(self, name, X, *args, **params)

    method.__name__, method.__qualname__ = name, f"Delegates.{name}"
    method.__doc__ = f"""{what} of the best estimator, or of the average.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        *args : tuple
            Such as y, or quantiles, of the estimator's method of this name.
        **params : dict
            Such as ``return_std=True``.

        Returns
        -------
        {returns}
        """
    return available_if(_best_has(name))(method)


class Delegates:
    """Mixin: predictions and scores of `best_estimator_`, or of the average."""

    @property
    def _predictor(self):
        is_average = self.refit == "average"
        return self._average if is_average else self.best_estimator_

    predict = _delegate("predict", "Predictions", "ndarray or tuple of ndarray")
    predict_proba = _delegate("predict_proba", "Class probabilities", CLASSES)
    predict_log_proba = _delegate("predict_log_proba", "Log probabilities", CLASSES)
    decision_function = _delegate("decision_function", "Decision function", "ndarray")
    predict_interval = _delegate("predict_interval", "Prediction intervals", "ndarray")
    predict_quantiles = _delegate("predict_quantiles", "Quantiles", "ndarray")
    predict_proba_interval = _delegate(
        "predict_proba_interval",
        "Intervals of class probabilities",
        "ndarray of shape (n_samples, 2, n_classes)",
    )
    predict_uncertainty = _delegate(
        "predict_uncertainty", "Parts of the uncertainty", "dict of str to ndarray"
    )
    predict_log_density = _delegate("predict_log_density", "Log densities", "ndarray")
    sample_y = _delegate("sample_y", "Draws of new targets", "ndarray")
    _predictive_normals = _delegate("_predictive_normals", "Normals", "tuple")

    @available_if(_best_has("score"))
    def score(self, X, y=None, **params):
        """Score of these predictions, as the estimator defines it: accuracy or R².

        `best_score_` is the log evidence of the training data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), default=None
        **params : dict
            Such as ``sample_weight``.

        Returns
        -------
        float
        """
        return _call(self, "score", X, y, **params)

    @property
    def classes_(self) -> np.ndarray:
        """Class labels of the best estimator."""
        _best_has("classes_")(self)
        return self.best_estimator_.classes_

    @property
    def n_features_in_(self) -> int:
        """Number of features of `fit`."""
        if not hasattr(self, "best_estimator_"):
            raise AttributeError(f"{type(self).__name__} has no best_estimator_ yet.")
        return self.best_estimator_.n_features_in_
