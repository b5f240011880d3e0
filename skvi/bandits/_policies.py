"""Policies of contextual bandits, which differ in how they explore."""

from numbers import Integral, Real

import numpy as np
from sklearn.base import is_classifier

from skvi.bandits.base import BanditPolicy
from skvi.utils._validation import Interval

__all__ = ["EpsilonGreedy", "ThompsonSampler", "UpperConfidenceBound"]


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
    A draw is fresh for every row of contexts. With a posterior that is too narrow, such
    as a factorized one, too little is explored; refined samples
    (``posterior="refined"``, with `refit`) are a costly remedy for networks.

    References
    ----------
    Thompson (1933); Russo et al. (2018), *A tutorial on Thompson sampling*.

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

    def __init__(
        self,
        estimator,
        n_actions,
        encoding="blocks",
        batch_size=1,
        n_initial=None,
        refit=False,
        random_state=None,
    ):
        self.estimator = estimator
        self.n_actions = n_actions
        self.encoding = encoding
        self.batch_size = batch_size
        self.n_initial = n_initial
        self.refit = refit
        self.random_state = random_state

    def _values(self, features):
        columns = np.moveaxis(features, 1, 0)[:, :, None]
        drawn = [_by_action(self._function(), column) for column in columns]
        return np.concatenate(drawn, 1)


class EpsilonGreedy(BanditPolicy):
    """Take the action with the largest expected reward, or sometimes any.

    Parameters
    ----------
    estimator : estimator
        As in `ThompsonSampler`, as all parameters that it has.
    n_actions : int
    epsilon : float, default=0.05
        Probability of an action at random; 1 is the uniform policy.
    encoding : {"blocks", "append"} or callable, default="blocks"
    batch_size : int, default=1
    n_initial : int, default=None
    refit : bool, default=False
    random_state : int, RandomState instance or None, default=None

    Examples
    --------
    >>> from skvi.bandits import EpsilonGreedy
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> policy = EpsilonGreedy(BayesianLinearRegression(), 3, random_state=0)
    >>> policy.select([[0.0], [1.0]])  # it knows nothing yet
    array([0, 1])
    """

    _parameter_constraints: dict = {
        **BanditPolicy._parameter_constraints,
        "epsilon": [Interval(Real, 0, 1, closed="both")],
    }

    def __init__(
        self,
        estimator,
        n_actions,
        epsilon=0.05,
        encoding="blocks",
        batch_size=1,
        n_initial=None,
        refit=False,
        random_state=None,
    ):
        self.estimator = estimator
        self.n_actions = n_actions
        self.epsilon = epsilon
        self.encoding = encoding
        self.batch_size = batch_size
        self.n_initial = n_initial
        self.refit = refit
        self.random_state = random_state

    def _values(self, features):
        values = _by_action(self._mean, features)
        explores = self._rng.random_sample(features.shape[1]) < self.epsilon
        values[:, explores] = 0.0  # ties
        return values

    def _mean(self, X):
        if is_classifier(self.estimator):
            return self.estimator_.predict_proba(X)[:, -1]
        return self.estimator_.predict(X)


class UpperConfidenceBound(BanditPolicy):
    """Take the action whose expected reward may be the largest.

    Parameters
    ----------
    estimator : estimator
        As in `ThompsonSampler`, as all parameters that it has.
    n_actions : int
    width : float, default=2.0
        Standard deviations that are added to the mean, over draws from the posterior.
    n_draws : int, default=20
    encoding : {"blocks", "append"} or callable, default="blocks"
    batch_size : int, default=1
    n_initial : int, default=None
    refit : bool, default=False
    random_state : int, RandomState instance or None, default=None

    Examples
    --------
    >>> from skvi.bandits import UpperConfidenceBound
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> UpperConfidenceBound(BayesianLinearRegression(), 3, width=1.0)
    UpperConfidenceBound(estimator=BayesianLinearRegression(), n_actions=3, width=1.0)
    """

    _parameter_constraints: dict = {
        **BanditPolicy._parameter_constraints,
        "width": [Interval(Real, 0, None, closed="left")],
        "n_draws": [Interval(Integral, 2, None, closed="left")],
    }

    def __init__(
        self,
        estimator,
        n_actions,
        width=2.0,
        n_draws=20,
        encoding="blocks",
        batch_size=1,
        n_initial=None,
        refit=False,
        random_state=None,
    ):
        self.estimator = estimator
        self.n_actions = n_actions
        self.width = width
        self.n_draws = n_draws
        self.encoding = encoding
        self.batch_size = batch_size
        self.n_initial = n_initial
        self.refit = refit
        self.random_state = random_state

    def _values(self, features):
        draws = [_by_action(self._function(), features) for _ in range(self.n_draws)]
        return np.mean(draws, 0) + self.width * np.std(draws, 0, ddof=1)


def _by_action(function, features):
    """Values, (n_actions, n), of features (n_actions, n, d)."""
    values = function(features.reshape(-1, features.shape[2]))
    return np.asarray(values, dtype=np.float64).reshape(features.shape[:2])
