"""Candidates: which are one model, their fits and their evidences."""

import math
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from joblib.parallel import get_active_backend
from sklearn.base import clone, is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import get_routing_for_object
from sklearn.utils.parallel import Parallel, delayed

from skvi._estimator._model import describe
from skvi._estimator._parts import SHORTHANDS, ZEROS
from skvi.evidence._fitted import evidence_bounds
from skvi.posteriors import Posterior
from skvi.utils._interrupts import UNLIMITED, Clock
from skvi.utils._validation import ROW_DATA, warn_user
from skvi.utils._wrappers import refuse_samplers, refuse_supervised

# Parameters of inference, which do not define the model.
INFERENCE = frozenset(
    {
        "objective",
        "divergence",
        "posterior",
        "solver",
        "batch_size",
        "max_iter",
        "tol",
        "early_stopping",
        "warm_start",
        "n_predict_draws",
        "device",
        "n_jobs",
        "verbose",
        "random_state",
    }
)

#: Further remedies for candidates that differ.
REMEDIES = {
    "kind of target": ", or compare log densities of held-out rows",
    "normalize_y": ", or use normalize_y=False, with priors in units of y, for all: "
    "with True the prior is made from y, and the evidence is not a probability of y",
}


def make_candidates(
    estimator: Any, grid: list[dict], allow_supervised: bool = False
) -> list[Any]:
    """Unfitted copies with the parameters of a grid, each able to bound evidence."""
    made = []
    for params in grid:
        candidate = clone(estimator).set_params(**clone(params, safe=False))
        final = final_step(candidate)
        if not hasattr(final, "evidence_bounds"):
            raise TypeError(
                f"{type(final).__name__} has no method evidence_bounds. Search over an "
                "estimator of skvi, or a Pipeline that ends in one."
            )
        refuse_samplers(candidate)
        if not allow_supervised:
            refuse_supervised(candidate)
        made.append(candidate)
    return made


def final_step(estimator: Any) -> Any:
    """Return the final estimator of a pipeline."""
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1]
    return estimator


def model_key(estimator: Any) -> str:
    """Text that two candidates share if they differ in inference alone.

    Features (steps of a pipeline), likelihood, loss and prior define the evidence;
    `INFERENCE` does not.
    """
    if hasattr(estimator, "steps"):
        *features, (_, last) = estimator.steps
        return describe([step for _, step in features]) + model_key(last)
    if not hasattr(estimator, "evidence_bounds"):
        return describe(estimator)
    params = estimator.get_params(deep=False).items()
    kept = {k: _resolve(k, value) for k, value in params if k not in INFERENCE}
    if any(isinstance(value, str) and value == "auto" for value in kept.values()):
        # In an ensemble of networks it stands for another model.
        kept["auto"] = getattr(estimator, "_is_generalized", False)
    return describe([type(estimator), kept])


def prior_rule(estimator: Any) -> str | None:
    """Text that estimators share if their priors are given by equal parameters."""
    final = final_step(estimator)
    params = final.get_params(deep=False)
    if "prior" not in params:
        return None
    # Beside another divergence than KL a scale is learned that is else integrated out.
    names = "prior", "intercept_prior", "divergence"
    return describe([type(final), *(_resolve(k, params.get(k)) for k in names)])


def _resolve(name: str, value: Any) -> Any:
    """Return the object of a shorthand."""
    table = SHORTHANDS.get(name, {})
    return table[value]() if isinstance(value, str) and value in table else value


def check_comparable(candidates: list[Any]) -> None:
    """Raise if evidences have no common unit, or refer to different rows."""
    for candidate in candidates:
        fraction = final_step(candidate).get_params().get("validation_fraction")
        if fraction is not None:
            raise ValueError(
                "Evidences refer to the training rows, and "
                f"validation_fraction={fraction!r} takes rows out of them. Use "
                "validation_fraction=None: the bound needs no held-out rows."
            )
        if final_step(candidate).get_params().get("loss") == "auto":
            raise ValueError(
                "Evidences of different losses have no common unit, and with "
                "loss='auto' every candidate chooses its own. Use a given one, such as "
                "loss='log'."
            )
    units = [_unit(candidate) for candidate in candidates]
    for name in units[0]:
        values = {describe(unit[name][0]): unit[name][1] for unit in units}
        if len(values) > 1:
            shown = ", ".join(sorted(values.values()))
            raise ValueError(
                f"The candidates differ in {name}: {shown}. Evidences of different "
                f"{name} have no common unit and cannot be compared: make one search "
                f"for each{REMEDIES.get(name, '')}."
            )


def _unit(candidate: Any) -> dict[str, tuple[Any, str]]:
    """Determinants of the unit of an evidence: values to compare, and to show."""
    final = final_step(candidate)
    params = final.get_params(deep=False)
    loss = _resolve("loss", params.get("loss"))
    weight = params.get("class_weight")
    return {
        "loss": (loss, repr(params.get("loss"))),
        "class weights": (weight, repr(weight)),
        "kind of target": _kind(final),
        "normalize_y": _normalization(params),
    }


def _normalization(params: dict[str, Any]) -> tuple[Any, str]:
    """Quantities that the prior takes from y; robust losses also use these units."""
    scaled, prior = params.get("normalize_y"), params.get("prior")
    if scaled is None:
        return None, "None"  # targets without units
    if isinstance(prior, Posterior) and prior.units is not None:
        return False, "the units of the posterior that is the prior"
    if scaled and not params.get("fit_intercept", True):
        return "scale", "True without an intercept (the scale of y alone)"
    return scaled, repr(scaled)


def _kind(final: Any) -> tuple[str, str]:
    if is_classifier(final):
        return "classes", "classes"
    given = final.get_params(deep=False).get("likelihood")
    if (words := getattr(final, "_names", ())) and isinstance(given, str):
        given = next(iter(words)) if given == "auto" else given
    given = _resolve("likelihood", given)
    if given in ZEROS if isinstance(given, str) else getattr(given, "is_discrete", 0):
        return "counts", "counts"
    is_positive = get_tags(final).target_tags.positive_only
    return ("positive", "positive numbers") if is_positive else ("real", "real numbers")


def group_models(candidates: list[Any]) -> list[list[int]]:
    """Candidates of the same model, ordered by the first of each."""
    groups: dict[Any, list[int]] = {}
    for index, candidate in enumerate(candidates):
        groups.setdefault(model_key(candidate), []).append(index)
    return list(groups.values())


def log_prior(
    model_prior: Callable | Sequence[float] | None, grid: list[dict]
) -> np.ndarray:
    """Log prior weights of the candidates, (n_candidates,), up to a constant.

    None gives all the same. ValueError unless there is one positive number for each.
    """
    if model_prior is None:
        return np.zeros(len(grid))
    weights = model_prior
    if callable(weights):
        weights = [weights(params) for params in grid]
    weights = np.asarray(weights, dtype=float)
    good = weights.shape == (len(grid),) and np.all(
        (weights > 0) & np.isfinite(weights)
    )
    if not good:
        raise ValueError(
            "model_prior must be a function of a candidate's parameters, or "
            f"{len(grid)} weights, one for each candidate in the order of "
            f"ParameterGrid; all positive and finite. Got {model_prior!r}, "
            f"which gives {weights!r}."
        )
    return np.log(weights)


# Fraction of `max_seconds` that all fits may take.
OF_FITS = 0.5


@dataclass
class Outcome:
    """The result of a task: `value` is None if it failed, or never ended."""

    value: Any
    seconds: float
    error: str = ""
    is_interrupted: bool = False  # by Ctrl-C, or not begun

    @property
    def message(self) -> str:
        """Last line of the traceback."""
        if self.is_interrupted:
            return "Ctrl-C came before the end of its fit"
        return self.error.strip().rpartition("\n")[2]


Report = Callable[[Outcome], None]


def fit_all(
    candidates: list[Any],
    X: Any,
    y: Any,
    params: dict,
    n_jobs: int | None,
    reraise: bool,
    report: Report,
    clock: Clock = UNLIMITED,
) -> list[Outcome]:
    """Fit every candidate; all fits share half of the seconds, in their order."""
    width = effective_n_jobs(n_jobs)
    n_rounds = math.ceil(len(candidates) / width)
    ends = [1 + i // width for i in range(len(candidates))]
    work = (
        delayed(_attempt)(
            _fit, reraise, c, X, y, params, clock.until(OF_FITS * end / n_rounds)
        )
        for c, end in zip(candidates, ends, strict=True)
    )
    return _run(work, len(ends), n_jobs, report)


def bound_all(
    fitted: list[Any],
    X: Any,
    y: Any,
    options: list[dict],
    n_jobs: int | None,
    reraise: bool,
    report: Report,
) -> list[Outcome]:
    """Bound the evidence of every fitted estimator, with its own options."""
    work = (
        delayed(_attempt)(_bound, reraise, estimator, X, y, option)
        for estimator, option in zip(fitted, options, strict=True)
    )
    return _run(work, len(fitted), n_jobs, report)


def return_as() -> str:
    """How outcomes come: at once, or after the last where a backend, as ray's, must."""
    backend, _ = get_active_backend()
    return "generator" if backend.supports_return_generator else "list"


def _run(
    work: Iterable[Any], size: int, n_jobs: int | None, report: Report
) -> list[Outcome]:
    """Run tasks, and report each outcome when it is there, in their order."""
    outcomes: list[Outcome] = []
    try:
        for outcome in Parallel(n_jobs=n_jobs, return_as=return_as())(work):
            outcomes.append(outcome)
            report(outcome)
    except KeyboardInterrupt:
        missing = size - len(outcomes)
        outcomes += [Outcome(None, 0.0, is_interrupted=True)] * missing
    return outcomes


def _fit(estimator: Any, X: Any, y: Any, params: dict, deadline: float) -> Any:
    """Fit; a model that looks at the clock ends after the iteration at the deadline."""
    if deadline == math.inf:
        return estimator.fit(X, y, **params)
    final = final_step(estimator)
    final._deadline = deadline
    try:
        return estimator.fit(X, y, **params)
    finally:
        del final._deadline


def _bound(estimator: Any, X: Any, y: Any, options: dict) -> Any:
    # Whether transformers may use y was checked before the fits.
    options = {**options, "allow_supervised_transformers": True}
    bounds = evidence_bounds(estimator, X, y, **options)
    if not math.isfinite(bounds.estimate):
        raise ValueError(f"The log evidence is not finite: {bounds.reason}")
    return bounds


def _attempt(work: Callable, reraise: bool, *arguments: Any) -> Outcome:
    start = time.perf_counter()
    try:
        value, error = work(*arguments), ""
    except Exception:
        if reraise:
            raise
        value, error = None, traceback.format_exc()
    return Outcome(value, time.perf_counter() - start, error)


def report_failures(outcomes: list[Outcome], what: str) -> None:
    """Warn of failed tasks; raise if all of them failed."""
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if not errors:
        return
    counts = {error: errors.count(error) for error in errors}
    details = "\n".join(
        f"{'-' * 72}\n{count} failed with the following error:\n{error}"
        for error, count in counts.items()
    )
    hint = "With error_score='raise' the first error is raised as it is."
    if len(errors) == len(outcomes):
        raise ValueError(f"All the {len(errors)} {what} failed. {hint}\n{details}")
    warn_user(
        f"{len(errors)} {what} failed out of a total of {len(outcomes)}; these "
        f"candidates have no evidence. {hint}\n{details}",
        FitFailedWarning,
    )


def evidence_data(estimator: Any, params: dict, routed: bool) -> dict[str, Any]:
    """The metadata that the final step was fitted with, by their plain names.

    Without scikit-learn's metadata routing (`routed`) a pipeline takes
    ``step__sample_weight``.
    """
    names = {name: name for name in ROW_DATA}
    if routed:
        requests = get_routing_for_object(final_step(estimator)).fit.requests
        names = {name: _source(name, requests.get(name)) for name in ROW_DATA}
    else:
        prefix = _prefix(estimator)
        names = {name: prefix + name for name in ROW_DATA}
    found = {name: params.get(source) for name, source in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def _source(name: str, request: Any) -> str:
    """Name under which a step requests metadata; empty if it does not."""
    if isinstance(request, str):
        return request
    return name if request is True else ""


def _prefix(estimator: Any) -> str:
    prefix = ""
    while hasattr(estimator, "steps"):
        name, estimator = estimator.steps[-1]
        prefix += f"{name}__"
    return prefix


class SearchProgress:
    """Lines on the terminal, or none."""

    def __init__(
        self, names: Sequence[str], verbose: bool | int, n_jobs: int | None
    ) -> None:
        self.names, self.verbose = names, verbose
        self._n_jobs = effective_n_jobs(n_jobs)
        self._rows: Sequence[int] = []
        self._seconds: list[float] = []

    def begin(self, what: str, rows: Sequence[int]) -> None:
        """Announce tasks, one for each of these candidates."""
        self._rows, self._seconds = rows, []
        self.write(f"{len(rows)} {what}")

    def __call__(self, outcome: Outcome) -> None:
        """Report the next task, and how long the others will take at this rate."""
        row, n_tasks = self._rows[len(self._seconds)], len(self._rows)
        self._seconds.append(outcome.seconds)
        n_done = len(self._seconds)
        text = f"{n_done} of {n_tasks}, {self.names[row]}: {outcome.seconds:.2g} s"
        if outcome.error:
            text += f", {outcome.message}"
        if n_done < n_tasks:
            mean = sum(self._seconds) / n_done
            text += f"; about {self._wall(mean * (n_tasks - n_done))} more"
        self.write(text)

    def write(self, text: str) -> None:
        """Write a line."""
        if self.verbose:
            print(f"[EvidenceSearch] {text}", flush=True)  # noqa: T201

    def _wall(self, seconds: float) -> str:
        """Seconds of all processes, as those of the clock on the wall."""
        return f"{float(f'{seconds / self._n_jobs:.2g}'):g} s"
