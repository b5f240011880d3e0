"""Runs of bandit policies on known rewards."""

import numpy as np
from sklearn.utils import check_array

__all__ = ["simulate"]


def simulate(policy, contexts, rewards, expected=None, delay=0):
    """Run a policy on contexts in which the reward of every action is known.

    Parameters
    ----------
    policy : BanditPolicy
        It is changed.
    contexts : array-like of shape (n_rounds, n_features)
    rewards : array-like of shape (n_rounds, n_actions)
        Of which the policy sees that of its action; NaN is a missing one.
    expected : array-like of shape (n_rounds, n_actions), default=None
        Expected rewards, for the regret; None takes `rewards`.
    delay : int, default=0
        Rounds after which a reward is seen.

    Returns
    -------
    ndarray of shape (n_rounds,)
        Cumulative regret.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.bandits import ThompsonSampler, simulate
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(40, 1))
    >>> expected = np.hstack([X, -X])
    >>> rewards = expected + 0.1 * rng.normal(size=expected.shape)
    >>> policy = ThompsonSampler(BayesianLinearRegression(), 2, random_state=0)
    >>> bool(simulate(policy, X, rewards, expected)[-1] < 5)
    True
    """
    contexts, rewards = check_array(contexts), np.asarray(rewards, dtype=np.float64)
    expected = rewards if expected is None else np.asarray(expected)
    n_rounds = len(contexts)
    actions, n_before = (
        np.zeros(n_rounds, dtype=int),
        len(policy.__dict__.get("regret_", ())),
    )
    for t in range(n_rounds + delay):
        if t < n_rounds:
            actions[t] = policy.select(contexts[t : t + 1])[0]
        if (k := t - delay) >= 0:
            one = slice(k, k + 1)
            seen = rewards[one, actions[k]]
            policy.update(contexts[one], actions[one], seen, expected[one])
    return np.cumsum(policy.regret_[n_before:])
