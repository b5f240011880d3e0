"""All fits of a search: in parallel if possible, otherwise one at a time."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import Pipeline
from sklearn.utils.parallel import Parallel, delayed

from skvi._estimator._identity import describe
from skvi._estimator._side_by_side import PosedFit, can_pose, fit_side_by_side, pose
from skvi.exceptions import SkviWarning
from skvi.model_selection._candidates import final_step
from skvi.utils._validation import _safe_indexing
from skvi.utils._warnings import warn_user

__all__ = ["Outcome", "can_be_batched", "fit_candidates"]

UNFITTED = "Ctrl-C came before this fit had a result"


@dataclass(eq=False)
class Outcome:
    """A fit of a candidate to the training part of a split, or the error it raised.

    `seconds` are its own and its fraction of those of a stack; `message` says why a
    member of a stack did not converge. After Ctrl-C, `is_interrupted`, it is as far as
    it came.
    """

    estimator: Any
    seconds: float
    error: Exception | None = None
    message: str = ""
    is_interrupted: bool = False

    def interrupt(self) -> None:
        """Say that Ctrl-C came; without a fit that is its error."""
        self.is_interrupted = True
        if self.error is None and not hasattr(final_step(self.estimator), "posterior_"):
            self.error = RuntimeError(UNFITTED)


@dataclass(frozen=True, eq=False)
class Job:
    """An unfitted candidate, the rows to fit it to, and the index of their split."""

    candidate: Any
    train: np.ndarray
    split: int


def can_be_batched(estimator: Any) -> bool:
    """Whether fits of an estimator, or of a pipeline, may be members of a stack."""
    if not isinstance(estimator, Pipeline):
        return can_pose(estimator)
    # Subclasses, caches and routed input may fit differently.
    is_plain = type(estimator) is Pipeline and estimator.memory is None
    is_routed = estimator.get_params(deep=False).get("transform_input") is not None
    return is_plain and not is_routed and can_pose(final_step(estimator))


def fit_candidates(
    candidates: Sequence[Any],
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
    X: Any,
    y: Any,
    fit_params: dict[str, Any],
    n_jobs: int | None,
    pre_dispatch: int | str,
) -> list[Outcome]:
    """Fit every candidate to the training part of every split, until Ctrl-C.

    Returns all splits of the first candidate, then those of the next one. `fit_params`
    have one value for each row.
    """
    jobs = [
        Job(candidate, train, split)
        for candidate in candidates
        for split, (train, _) in enumerate(splits)
    ]
    run = Parallel(n_jobs, pre_dispatch=pre_dispatch, return_as="generator")
    pieces = _pieces(jobs, effective_n_jobs(n_jobs))
    work = (delayed(_fit_piece)(piece, X, y, fit_params) for piece in pieces)
    outcomes: list[Outcome] = []
    try:
        for part in run(work):
            outcomes += part
    except KeyboardInterrupt:
        missing = [Outcome(job.candidate, 0.0) for job in jobs[len(outcomes) :]]
        for outcome in missing:
            outcome.interrupt()
        outcomes += missing
    _warn_of(outcomes)
    return outcomes


def _pieces(jobs: Sequence[Job], n_processes: int) -> list[Sequence[Job]]:
    """All jobs for one process; as many equal pieces for each of several."""
    size = math.ceil(len(jobs) / n_processes)
    return [jobs[start : start + size] for start in range(0, len(jobs), size)]


def _fit_piece(
    jobs: Sequence[Job], X: Any, y: Any, fit_params: dict[str, Any]
) -> list[Outcome]:
    return _Piece(X, y, fit_params).fit(jobs)


class _Piece:
    """Fits in one process: shared objects are made once."""

    def __init__(self, X: Any, y: Any, fit_params: dict[str, Any]) -> None:
        self.X, self.y, self.fit_params = X, y, fit_params
        self._parts: dict[int, tuple[Any, Any, dict[str, Any]]] = {}
        self._heads: dict[Any, tuple[Pipeline, Any, float]] = {}

    def fit(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Fit all, in parallel if possible; as far as Ctrl-C lets them come."""
        outcomes = [Outcome(clone(job.candidate), 0.0) for job in jobs]
        try:
            self._fit(jobs, outcomes)
        except KeyboardInterrupt:
            for outcome in outcomes:
                outcome.interrupt()
        return outcomes

    def _fit(self, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
        posed = [
            self._pose(job, outcome)
            for job, outcome in zip(jobs, outcomes, strict=True)
        ]
        members = [fit for fit in posed if fit is not None]
        try:
            fit_side_by_side(members)
        except (
            Exception
        ) as error:  # of a single one: fitted one at a time they raise it
            text = f"A stack of fits failed: {error!r}. They are made one at a time."
            warn_user(text, SkviWarning)
            posed = [None] * len(jobs)
        for job, outcome, fit in zip(jobs, outcomes, posed, strict=True):
            if fit is not None:
                outcome.seconds += fit.seconds
                diagnostics = fit.estimator.diagnostics_
                if not diagnostics["converged"]:
                    outcome.message = diagnostics["message"]
            elif outcome.error is None:
                self._fit_alone(job, outcome)

    def _part(self, job: Job) -> tuple[Any, Any, dict[str, Any]]:
        """Training rows of a split."""
        if job.split not in self._parts:
            rows = job.train
            params = {k: _safe_indexing(v, rows) for k, v in self.fit_params.items()}
            part = _safe_indexing(self.X, rows), _safe_indexing(self.y, rows), params
            self._parts[job.split] = part
        return self._parts[job.split]

    def _pose(self, job: Job, outcome: Outcome) -> PosedFit | None:
        """Prepare a fit for its solver; None if it has to be made alone."""
        if not can_be_batched(outcome.estimator):
            return None
        X, y, params = self._part(job)
        try:
            if isinstance(outcome.estimator, Pipeline):
                X = self._transform(job, outcome)
            return pose(final_step(outcome.estimator), X, y, **params)
        except Exception as error:
            outcome.error = error
            return None

    def _transform(self, job: Job, outcome: Outcome) -> Any:
        """Fit the steps before the last one, once for each split."""
        pipeline = outcome.estimator
        *steps, last = pipeline.steps
        if not steps:
            return self._part(job)[0]
        key = job.split, describe([step for _, step in steps])
        if key not in self._heads:
            start, (X, y, _) = time.perf_counter(), self._part(job)
            head = clone(pipeline)[:-1]
            transformed = head.fit_transform(X, y)
            self._heads[key] = head, transformed, time.perf_counter() - start
        head, transformed, seconds = self._heads[key]
        outcome.seconds += seconds
        names = [name for name, _ in steps]
        fitted = [step for _, step in head.steps]
        pipeline.steps = [*zip(names, fitted, strict=True), last]
        return transformed

    def _fit_alone(self, job: Job, outcome: Outcome) -> None:
        start, (X, y, params) = time.perf_counter(), self._part(job)
        outcome.estimator = clone(job.candidate)
        try:
            outcome.estimator.fit(X, y, **params)
        except Exception as error:
            outcome.error = error
        outcome.seconds = time.perf_counter() - start


def _warn_of(outcomes: Sequence[Outcome]) -> None:
    """Warn once instead of once per fit."""
    messages = [outcome.message for outcome in outcomes if outcome.message]
    if messages:
        counts = f"{len(messages)} of {len(outcomes)} fits did not converge"
        warn_user(f"{counts}; the first: {messages[0]}.", ConvergenceWarning)
