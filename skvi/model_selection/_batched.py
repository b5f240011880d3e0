"""Search over hyperparameters by cross-validation, with all fits in parallel."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, ParameterGrid, check_cv
from sklearn.utils import column_or_1d, indexable

from skvi.model_selection._batched_fits import Outcome, can_be_batched, fit_candidates
from skvi.model_selection._candidates import final_step
from skvi.utils._callbacks import has_callbacks
from skvi.utils._interrupts import raising_interrupts

__all__ = ["BatchedGridSearchCV"]

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
    ...     early_stopping=True,
    ...     solver=Stochastic(learning_rate=0.1, tol=10.0),
    ...     random_state=0,
    ... )
    >>> model = make_pipeline(StandardScaler(), network)
    >>> grid = {"bayesianmlpregressor__divergence__weight": [0.1, 0.3, 1.0]}
    >>> search = BatchedGridSearchCV(model, grid, cv=3).fit(X, y)
    >>> len(search.cv_results_["mean_test_score"])
    3
    """

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
