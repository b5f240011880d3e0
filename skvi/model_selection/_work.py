"""The two pieces of work of a search, fits and evidences, and what it says of them."""

import math
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from joblib import effective_n_jobs
from sklearn.exceptions import FitFailedWarning
from sklearn.utils.metadata_routing import get_routing_for_object
from sklearn.utils.parallel import Parallel, delayed

from skvi.evidence._unwrap import evidence_bounds
from skvi.model_selection._candidates import final_step
from skvi.utils._clock import UNLIMITED, Clock
from skvi.utils._warnings import warn_user

__all__ = [
    "Outcome",
    "SearchProgress",
    "bound_all",
    "evidence_data",
    "fit_all",
    "report_failures",
]

# Fraction of `max_seconds` that all fits may take.
OF_FITS = 0.5
# Parameters of `fit` that belong to the data, and therefore to the evidence.
DATA = ("sample_weight", "exposure")


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


def _run(
    work: Iterable[Any], size: int, n_jobs: int | None, report: Report
) -> list[Outcome]:
    """Run tasks, and report each outcome when it is there, in their order."""
    outcomes: list[Outcome] = []
    try:
        for outcome in Parallel(n_jobs=n_jobs, return_as="generator")(work):
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
    names = {name: name for name in DATA}
    if routed:
        requests = get_routing_for_object(final_step(estimator)).fit.requests
        names = {name: _source(name, requests.get(name)) for name in DATA}
    else:
        prefix = _prefix(estimator)
        names = {name: prefix + name for name in DATA}
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
