"""Search by cross-validation, with all fits in parallel."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from sklearn import get_config
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, ParameterGrid, check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils import column_or_1d, indexable
from sklearn.utils.parallel import Parallel, delayed

from skvi._estimator._model import describe
from skvi._estimator._side_by_side import PosedFit, can_pose, fit_side_by_side, pose
from skvi.exceptions import SkviWarning
from skvi.model_selection._candidates import final_step, return_as
from skvi.utils._interrupts import has_callbacks, raising_interrupts
from skvi.utils._links import page_template
from skvi.utils._validation import _safe_indexing, warn_user

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
    run = Parallel(n_jobs, pre_dispatch=pre_dispatch, return_as=return_as())
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


NOTHING = "Ctrl-C before a candidate was fitted to all folds: there is no score yet"
SCORES = "Ctrl-C: the search has scores, of fits as far as they came"


class BatchedGridSearchCV(GridSearchCV):
    """`GridSearchCV` that trains candidates and folds as members of one program.

    Networks of one shape that differ in continuous hyperparameters (weight and order
    of the divergence, prior scale, learning rate), in their seeds or in their rows are
    trained in parallel, in stacks of matrix products. Scores, ranks and the best
    candidate are those of `sklearn.model_selection.GridSearchCV` with the same
    `random_state`, up to rounding, with the same interface. Candidates that cannot
    share a stack (another number of units, another loss, or an estimator that is not
    fitted by stochastic gradients) are in separate stacks, or fitted as usual.

    Parameters
    ----------
    estimator : estimator or Pipeline
        A pipeline whose last step can be stacked transforms each fold once for all
        candidates with the same transformers.
    param_grid : dict or list of dict
        See `GridSearchCV`, as for all parameters below.
    scoring : str, callable, list, tuple or dict, default=None
    n_jobs : int, default=None
        Processes. None is one, in which all fits run in parallel; with several, each
        takes an equal part of them.
    refit : bool, str or callable, default=True
    cv : int, cross-validation generator or iterable, default=None
    verbose : int, default=0
    pre_dispatch : int or str, default="2*n_jobs"
    error_score : "raise" or numeric, default=nan
    return_train_score : bool, default=False

    Attributes
    ----------
    cv_results_ : dict of ndarray
        As in `GridSearchCV`. The time of a fit is that of its own work plus its
        fraction of that of its stack.
    best_estimator_ : estimator
        Fitted to all data, as usual, with all of its diagnostics.
    best_score_ : float
    best_params_ : dict
    best_index_ : int
    scorer_ : function or dict
    n_splits_ : int
    refit_time_ : float
    multimetric_ : bool
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    See Also
    --------
    EvidenceSearch : Without folds, by the evidence.

    Notes
    -----
    Only the scores of the fits to folds are kept. These fits skip costly steps that
    predictions do not need: the ELBO comes from 100 draws, and weight diagnostics are
    omitted. One warning counts the fits that did not converge. All fits, and the
    training part of every fold, are in memory until they are scored.

    Estimators with callbacks or ``verbose > 0``, searches with callbacks, and arguments
    of `fit` other than `sample_weight` and `groups` are handled one fit at a time.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skvi.divergences import KLDivergence
    >>> from skvi.model_selection import BatchedGridSearchCV
    >>> from skvi.neural_network import BayesianMLPRegressor
    >>> from skvi.solvers import Stochastic
    >>> X, y = load_diabetes(return_X_y=True)
    >>> network = BayesianMLPRegressor(
    ...     posterior="mean_field",
    ...     divergence=KLDivergence(),
    ...     hidden_layer_sizes=5,
    ...     likelihood="gaussian",
    ...     solver=Stochastic(learning_rate=0.1, tol=10.0),
    ...     random_state=0,
    ... )
    >>> model = make_pipeline(StandardScaler(), network)
    >>> grid = {"bayesianmlpregressor__divergence__weight": [0.1, 0.3, 1.0]}
    >>> search = BatchedGridSearchCV(model, grid, cv=3).fit(X, y)
    >>> len(search.cv_results_["mean_test_score"])
    3
    """

    _doc_link_module = "skvi"
    _doc_link_template = property(page_template)

    def fit(self, X: Any, y: Any = None, **params: Any) -> "BatchedGridSearchCV":
        """Fit all candidates to all folds, and the best one to all data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        **params : dict
            Such as ``sample_weight``, and ``groups`` for the splitter.

        Returns
        -------
        self

        Raises
        ------
        KeyboardInterrupt
            On Ctrl-C. Scores are kept, of fits as far as they came, NaN where one of
            the folds has none; and `best_estimator_` if it was already being fitted.
            The search is not fitted if no candidate has a score.
        """
        self.__dict__ = {k: v for k, v in vars(self).items() if not k.endswith("_")}
        if not self._can_batch(y, params):
            return super().fit(X, y, **params)
        self._validate_params()
        X, y = indexable(X, y)
        if np.ndim(y) == 2 and np.shape(y)[1] == 1:
            y = column_or_1d(y, warn=True)
        cv = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        splits = [*cv.split(X, y, params.get("groups"))]
        grid = [*ParameterGrid(self.param_grid)]
        candidates = [
            clone(self.estimator).set_params(**clone(one, safe=False)) for one in grid
        ]
        weight = params.get("sample_weight")
        with raising_interrupts():
            outcomes = fit_candidates(
                candidates,
                splits,
                X,
                y,
                {} if weight is None else {"sample_weight": weight},
                self.n_jobs,
                self.pre_dispatch,
            )
            fits = Fits(outcomes, any(outcome.is_interrupted for outcome in outcomes))
            shape = len(grid), len(splits)
            has_failed = [outcome.error is not None for outcome in outcomes]
            if fits.is_interrupted and np.reshape(has_failed, shape).any(1).all():
                raise KeyboardInterrupt(NOTHING)
            try:
                inner = self._score(fits, splits, X, y, params)
            except KeyboardInterrupt:
                fits = Fits(outcomes, True)
                inner = self._score(fits, splits, X, y, params)
            seconds = [outcome.seconds for outcome in outcomes]
            self._take_over(inner, np.reshape(seconds, shape))
            if fits.is_interrupted:
                raise KeyboardInterrupt(self._without_unfitted())
        return self

    def _score(
        self, fits: "Fits", splits: list, X: Any, y: Any, params: dict[str, Any]
    ) -> GridSearchCV:
        """A search that takes fits, and after them the best candidate's to all data."""
        estimator, own = taking(self.estimator, fits), self.get_params(deep=False)
        own |= {"estimator": estimator, "n_jobs": None, "cv": splits}
        if fits.is_interrupted:
            own["error_score"] = np.nan
        inner = GridSearchCV(**own).fit(X, y, **params)
        estimator.__class__ = type(self.estimator)  # the default scorer keeps it
        return inner

    def _without_unfitted(self) -> str:
        """Drop a best estimator that Ctrl-C left unfitted; say what is kept."""
        best = vars(self).get("best_estimator_")
        if best is not None and not hasattr(final_step(best), "posterior_"):
            del self.best_estimator_, self.refit_time_
        has = "and" if hasattr(self, "best_estimator_") else "but no"
        return f"{SCORES}, {has} best_estimator_"

    def _can_batch(self, y: Any, params: dict[str, Any]) -> bool:
        """Whether fits can run in parallel, and nothing prevents it."""
        if y is None or has_callbacks(self) or not can_be_batched(self.estimator):
            return False
        if params and get_config()["enable_metadata_routing"]:
            return False
        known = {"groups"}
        if can_be_batched(self.estimator) and not hasattr(self.estimator, "steps"):
            known.add("sample_weight")
        return set(params) <= known

    def _take_over(self, inner: GridSearchCV, seconds: np.ndarray) -> None:
        """Copy the results of a search of fitted candidates, with times of fits."""
        found = {
            name: value
            for name, value in vars(inner).items()
            if name.endswith("_") and not name.startswith("_")
        }
        found["cv_results_"]["mean_fit_time"] = seconds.mean(1)
        found["cv_results_"]["std_fit_time"] = seconds.std(1)
        vars(self).update(found)


@dataclass
class Fits:
    """Outcomes in the order in which a search requests them, and if Ctrl-C came."""

    outcomes: list[Outcome]
    is_interrupted: bool


def taking(estimator: Any, fits: Fits) -> Any:
    """A copy of an estimator whose `fit` takes the next outcome, and computes nothing.

    It then is that fit, of the estimator's own class, so that scorers see no stand-in.
    After the last outcome it fits: that is the best candidate, to all data. On Ctrl-C
    it is as far as it came, and unfitted if Ctrl-C had come before.
    """
    own, left = type(estimator), iter(fits.outcomes)

    class Taking(own):
        """Fits in the order in which a search requests them."""

        def fit(self, X: Any, y: Any = None, **params: Any) -> Any:
            """Take the next fit, or raise what it raised."""
            self.__class__ = own
            outcome = next(left, None)
            if outcome is None:
                try:
                    return self if fits.is_interrupted else self.fit(X, y, **params)
                except KeyboardInterrupt:
                    fits.is_interrupted = True
                    return self
            if outcome.error is not None:
                raise outcome.error
            vars(self).update(vars(outcome.estimator))
            return self

    copy = clone(estimator)
    copy.__class__ = Taking
    return copy
