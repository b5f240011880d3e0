"""Base class of bandit policies: contexts, rewards, and when a model learns them."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_consistent_length

from skvi.utils._validation import Interval, StrOptions, validate_arguments

__all__ = ["BanditPolicy"]

#: Actions that are tried at random first, of each kind on average.
INITIAL = 2


@dataclass(eq=False, repr=False)
class BanditPolicy(BaseEstimator):
    """Base class: a subclass must implement `_values(features)`.

    Its own parameters, and those that it shares with others (see `ThompsonSampler`),
    are the fields of a dataclass.

    Parameters
    ----------
    estimator : estimator
    n_actions : int
    encoding : {"blocks", "append"} or callable, default="blocks"
    batch_size : int, default=1
    n_initial : int, default=None
    refit : bool, default=False
    random_state : int, RandomState instance or None, default=None

    Examples
    --------
    >>> from skvi.bandits import BanditPolicy, ThompsonSampler
    >>> issubclass(ThompsonSampler, BanditPolicy)
    True
    """

    estimator: Any
    n_actions: int
    encoding: str | Callable = "blocks"
    batch_size: int = 1
    n_initial: int | None = None
    refit: bool = False
    random_state: Any = None

    _parameter_constraints: ClassVar[dict] = {
        "estimator": [BaseEstimator],
        "n_actions": [Interval(Integral, 2, None, closed="left")],
        "encoding": [StrOptions({"blocks", "append"}), callable],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "n_initial": [None, Interval(Integral, 1, None, closed="left")],
        "refit": ["boolean"],
        "random_state": ["random_state"],
    }
    #: What the estimator must have.
    _method: ClassVar[str] = "sample_function"

    def select(self, contexts):
        """Choose an action in each context.

        Parameters
        ----------
        contexts : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of int of shape (n_samples,)
            Numbers of actions, from 0. Uniform at random before the first fit.
        """
        self._begin()
        contexts = check_array(contexts, dtype=np.float64)
        if not self._is_ready:
            return self._rng.randint(self.n_actions, size=len(contexts))
        rows = np.concatenate(
            [self._encode(contexts, a) for a in range(self.n_actions)]
        )
        values = self._values(rows.reshape(self.n_actions, len(contexts), -1))
        # Ties are broken at random: equal values favor no action.
        top = values == values.max(0)
        return (top * self._rng.random_sample(values.shape)).argmax(0)

    def update(self, contexts, actions, rewards, expected=None):
        """Learn from rewards, in whatever order and how late they come.

        Parameters
        ----------
        contexts : array-like of shape (n_samples, n_features)
        actions : array-like of int of shape (n_samples,)
            Actions that were taken, by this policy or another one.
        rewards : array-like of shape (n_samples,)
            NaN where the reward is missing: nothing is learned there.
        expected : array-like of shape (n_samples, n_actions), default=None
            Expected rewards of all actions, if they are known, as in simulations: for
            the regret only.

        Returns
        -------
        self
        """
        self._begin()
        contexts = check_array(contexts, dtype=np.float64)
        given = np.asarray(actions)
        rewards = np.asarray(rewards, dtype=np.float64)
        check_consistent_length(contexts, given, rewards)
        if not np.isin(given, np.arange(self.n_actions)).all():
            raise ValueError(
                f"actions must be integers from 0 to {self.n_actions - 1}, one for "
                f"each context. Got {given}."
            )
        if np.isinf(rewards).any():
            raise ValueError("rewards must be finite, or NaN where missing. Got inf.")
        actions, known = given.astype(np.int64), ~np.isnan(rewards)
        if is_classifier(self.estimator) and not np.isin(rewards[known], (0, 1)).all():
            raise ValueError(
                f"{self.estimator!r} is a classifier: rewards must be 0 or 1, or NaN "
                f"where missing. Got {rewards}. Use a regressor for other rewards."
            )
        if known.any():
            rows = self._rows(contexts[known], actions[known])
            self._waiting.append((rows, rewards[known]))
        self._learn_enough()
        self.actions_ = np.append(self.actions_, actions)
        self.rewards_ = np.append(self.rewards_, rewards)
        if expected is not None:
            expected = np.asarray(expected, dtype=np.float64)
            lost = expected.max(1) - expected[np.arange(len(actions)), actions]
            self.regret_ = np.append(self.regret_, lost)
        return self

    def _begin(self):
        """Set the state of a policy that has seen nothing."""
        if "estimator_" in vars(self):
            return
        own = self.get_params(deep=False)
        validate_arguments(type(self).__name__, own, self._parameter_constraints)
        if not hasattr(self.estimator, self._method):
            raise TypeError(
                f"{self.estimator!r} has no {self._method}: use a linear model or a "
                "network of skvi, such as BayesianLinearRegression()."
            )
        self.estimator_ = clone(self.estimator)
        self._rng = check_random_state(self.random_state)
        self._is_ready, self._waiting = False, []
        self.actions_, self.rewards_ = np.zeros(0, dtype=int), np.zeros(0)
        self.regret_ = np.zeros(0)

    def _encode(self, contexts, action):
        """Features of an action in contexts."""
        if callable(self.encoding):
            return np.asarray(self.encoding(contexts, action), dtype=np.float64)
        one = np.zeros((len(contexts), self.n_actions))
        one[:, action] = 1.0
        if self.encoding == "append":
            return np.hstack([contexts, one])
        blocks = np.zeros((len(contexts), self.n_actions, contexts.shape[1]))
        blocks[:, action] = contexts
        return np.hstack([blocks.reshape(len(contexts), -1), one])

    def _rows(self, contexts, actions):
        """Features of one action in each context."""
        places, parts = [], []
        for action in np.unique(actions):
            place = np.flatnonzero(actions == action)
            places.append(place)
            parts.append(self._encode(contexts[place], action))
        return np.concatenate(parts)[np.argsort(np.concatenate(places))]

    def _learn_enough(self):
        """Learn the rewards that wait once there are enough of them."""
        n = sum(len(r) for _, r in self._waiting)
        n_initial = self.n_initial or INITIAL * self.n_actions
        least = self.batch_size if self._is_ready else max(n_initial, self.batch_size)
        n_learned = getattr(self, "_n_learned", 0) if self.refit else 0
        if n - n_learned < least:
            return
        X, y = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        if is_classifier(self.estimator):
            if not self._is_ready and len(np.unique(y)) < 2:
                return  # one class tells nothing of the other
            y = y.astype(int)
        self._learn(X, y)
        self._is_ready = True
        self._n_learned = n
        self._waiting = [(X, y.astype(float))] if self.refit else []

    def _learn(self, X, y):
        if self.refit:
            self.estimator_.fit(X, y)
        elif is_classifier(self.estimator) and not self._is_ready:
            self.estimator_.partial_fit(X, y, classes=[0, 1])
        else:
            self.estimator_.partial_fit(X, y)

    def _function(self):
        """One draw from the posterior: features -> expected rewards."""
        seed = self._rng.randint(2**31 - 1)
        function = self.estimator_.sample_function(random_state=seed)
        if not is_classifier(self.estimator):
            return function
        return lambda X: function(X)[:, -1]

    def _values(self, features):
        """Values of actions, (n_actions, n), of features (n_actions, n, d)."""
        raise NotImplementedError
