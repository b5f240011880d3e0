"""Policies of contextual bandits, which differ in how they explore."""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
from sklearn.base import is_classifier

from skvi.bandits.base import BanditPolicy
from skvi.utils._validation import Interval

__all__ = ["EpsilonGreedy", "ThompsonSampler", "UpperConfidenceBound"]


@dataclass(eq=False, repr=False)
class ThompsonSampler(BanditPolicy):
    """Take the action that is best under one draw from the posterior.

    An action is taken as often as the posterior holds it for the best one: explored
    while little is known of it, and left when it is known to be worse.

    Parameters
    ----------
    estimator : estimator
        With `sample_function` and `partial_fit` (or `refit`): an skvi regressor of the
        reward, or a classifier of rewards that are 0 or 1.
    n_actions : int
    encoding : {"blocks", "append"} or callable, default="blocks"
        Features of an action in a context. "blocks": each action has coefficients and
        an intercept of its own, as linear models need. "append": the context, and
        indicators of the action, for networks. A callable of (contexts, action) returns
        an array with one row for each context.
    batch_size : int, default=1
        Rewards that are learned at once.
    n_initial : int, default=None
        Rewards before the first fit; actions are uniform until then. None is twice
        `n_actions`.
    refit : bool, default=False
        Whether all rewards are kept, and fitted again: for networks, which forget in
        many small batches. False learns by `partial_fit`.
    random_state : int, RandomState instance or None, default=None
    n_draws : int, default=1
        Draws whose average decides. More explore less.

    Attributes
    ----------
    estimator_ : estimator
        The model of the reward.
    actions_, rewards_ : ndarray of shape (n_updates,)
    regret_ : ndarray of shape (n_updates,)
        Expected reward that was lost to the best action, if it was given.

    See Also
    --------
    simulate : Run a policy on contexts whose rewards are known.

    Notes
    -----
    A draw is fresh for every row of contexts. Networks learn best with ``refit=True``
    and ``warm_start=True`` of the estimator, so that each fit goes on from the last
    one. Refined samples (``posterior="refined"``), the costly option, are stored by the
    fit: draws are taken from these until the next one.

    References
    ----------
    Thompson (1933); Russo et al. (2018), *A tutorial on Thompson sampling*; refined
    samples: Havasi et al. (2021), section 4.3.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.bandits import ThompsonSampler
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> rng = np.random.default_rng(0)
    >>> policy = ThompsonSampler(BayesianLinearRegression(), 2, random_state=0)
    >>> for x in rng.uniform(-1, 1, size=(40, 1, 1)):
    ...     action = policy.select(x)  # action 1 is the better one where x is positive
    ...     reward = action * x[0] + 0.1 * rng.normal(size=1)
    ...     policy = policy.update(x, action, reward)
    >>> policy.select([[-0.5], [0.5]])
    array([0, 1])
    """

    n_draws: int = 1

    _parameter_constraints: ClassVar[dict] = {
        **BanditPolicy._parameter_constraints,
        "n_draws": [Interval(Integral, 1, None, closed="left")],
    }

    def _values(self, features):
        columns = np.moveaxis(features, 1, 0)[:, :, None]
        return np.concatenate([self._mean_of_draws(c) for c in columns], 1)

    def _mean_of_draws(self, features):
        draws = [_by_action(self._function(), features) for _ in range(self.n_draws)]
        return np.mean(draws, 0)


@dataclass(eq=False, repr=False)
class EpsilonGreedy(BanditPolicy):
    """Take the action with the largest expected reward, or sometimes any.

    Parameters
    ----------
    estimator : estimator
        A regressor or classifier; without `partial_fit`, with `refit`. It and other
        parameters are those of `ThompsonSampler`.
    n_actions : int
    encoding : {"blocks", "append"} or callable, default="blocks"
    batch_size : int, default=1
    n_initial : int, default=None
    refit : bool, default=False
    random_state : int, RandomState instance or None, default=None
    epsilon : float, default=0.05
        Probability of an action at random; 1 is the uniform policy.

    Examples
    --------
    >>> from skvi.bandits import EpsilonGreedy
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> policy = EpsilonGreedy(BayesianLinearRegression(), 3, random_state=0)
    >>> policy.select([[0.0], [1.0]])  # it knows nothing yet
    array([0, 1])
    """

    epsilon: float = 0.05

    _method: ClassVar[str] = "predict"
    _parameter_constraints: ClassVar[dict] = {
        **BanditPolicy._parameter_constraints,
        "epsilon": [Interval(Real, 0, 1, closed="both")],
    }

    def _values(self, features):
        values = _by_action(self._mean, features)
        explores = self._rng.random_sample(features.shape[1]) < self.epsilon
        values[:, explores] = 0.0  # ties
        return values

    def _mean(self, X):
        if is_classifier(self.estimator):
            return self.estimator_.predict_proba(X)[:, -1]
        return self.estimator_.predict(X)


@dataclass(eq=False, repr=False)
class UpperConfidenceBound(BanditPolicy):
    """Take the action whose expected reward may be the largest.

    Parameters
    ----------
    estimator : estimator
        As in `ThompsonSampler`, as all parameters that it has.
    n_actions : int
    encoding : {"blocks", "append"} or callable, default="blocks"
    batch_size : int, default=1
    n_initial : int, default=None
    refit : bool, default=False
    random_state : int, RandomState instance or None, default=None
    width : float, default=2.0
        Standard deviations that are added to the mean, over draws from the posterior.
    n_draws : int, default=20

    Examples
    --------
    >>> from skvi.bandits import UpperConfidenceBound
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> UpperConfidenceBound(BayesianLinearRegression(), 3, width=1.0)
    UpperConfidenceBound(estimator=BayesianLinearRegression(), n_actions=3, width=1.0)
    """

    width: float = 2.0
    n_draws: int = 20

    _parameter_constraints: ClassVar[dict] = {
        **BanditPolicy._parameter_constraints,
        "width": [Interval(Real, 0, None, closed="left")],
        "n_draws": [Interval(Integral, 2, None, closed="left")],
    }

    def _values(self, features):
        draws = [_by_action(self._function(), features) for _ in range(self.n_draws)]
        return np.mean(draws, 0) + self.width * np.std(draws, 0, ddof=1)


def _by_action(function, features):
    """Values, (n_actions, n), of features (n_actions, n, d)."""
    values = function(features.reshape(-1, features.shape[2]))
    return np.asarray(values, dtype=np.float64).reshape(features.shape[:2])
