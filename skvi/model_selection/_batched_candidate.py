"""A proxy that gives scikit-learn's search fits that have already been made."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.metrics import check_scoring

from skvi.model_selection._batched_fits import Outcome

__all__ = ["FittedCandidate", "Queue", "given_scorers", "scorers_of"]


class Queue:
    """Outcomes of fits, in the order in which a search requests them."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._left = list(reversed(outcomes))

    def __sklearn_clone__(self) -> "Queue":
        """Return the queue itself: clones share it."""
        return self

    def take(self) -> Outcome | None:
        """Return the next one; None if all are taken."""
        return self._left.pop() if self._left else None


class FittedCandidate(BaseEstimator):
    """An estimator whose `fit` takes the next fit of a queue, and makes none.

    When the queue is empty it fits the estimator: that is the best one, to all data.
    """

    def __init__(self, estimator: Any, queue: Queue) -> None:
        self.estimator = estimator
        self.queue = queue

    def __getattr__(self, name: str) -> Any:
        """Attributes of the estimator: predictions, scores, fitted attributes."""
        if name.startswith("__") or name in ("estimator", "queue"):
            raise AttributeError(name)
        return getattr(self.estimator, name)

    def __sklearn_tags__(self) -> Any:
        """Return those of the estimator."""
        return self.estimator.__sklearn_tags__()

    def __sklearn_is_fitted__(self) -> bool:
        """Always true: scorers only use it after `fit`."""
        return True

    def get_metadata_routing(self) -> Any:
        """Return that of the estimator."""
        return self.estimator.get_metadata_routing()

    def set_params(self, **params: Any) -> "FittedCandidate":
        """Set parameters of the estimator."""
        self.estimator.set_params(**params)
        return self

    def fit(self, X: Any, y: Any = None, **params: Any) -> "FittedCandidate":
        """Take the next fit, or raise what it raised."""
        outcome = self.queue.take()
        if outcome is None:
            self.estimator.fit(X, y, **params)
            return self
        if outcome.error is not None:
            raise outcome.error
        self.estimator = outcome.estimator
        return self


class _OfEstimator:
    """A scorer that receives the estimator instead of its proxy."""

    def __init__(self, scorer: Any) -> None:
        self.scorer = scorer
        # Searches read it to learn whether the scorer takes weights.
        self.__signature__ = signature(scorer)

    def __call__(self, stand_in: FittedCandidate, *data: Any, **params: Any) -> Any:
        """Score the estimator."""
        return self.scorer(stand_in.estimator, *data, **params)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the scorer."""
        if name.startswith("__") or name == "scorer":
            raise AttributeError(name)
        return getattr(self.scorer, name)


def scorers_of(scoring: Any, estimator: Any) -> Any:
    """Scorers for a search of fitted candidates, from its argument `scoring`."""
    if isinstance(scoring, Mapping):
        pairs = scoring.items()
    elif isinstance(scoring, (list, tuple, set)):
        pairs = [(name, name) for name in scoring]
    else:
        return _OfEstimator(check_scoring(estimator, scoring))
    return {name: _OfEstimator(check_scoring(estimator, one)) for name, one in pairs}


def given_scorers(scorers: Any) -> Any:
    """Undo `scorers_of`: return the original scorers."""
    if isinstance(scorers, Mapping):
        return {name: scorer.scorer for name, scorer in scorers.items()}
    return scorers.scorer
