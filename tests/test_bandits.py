"""Policies of contextual bandits."""

from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression

from skvi._draws import SampledFunction
from skvi.bandits import (
    EpsilonGreedy,
    ThompsonSampler,
    UpperConfidenceBound,
    simulate,
)
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.neural_network import BayesianMLPRegressor
from skvi.posteriors import Refined
from skvi.priors import Normal

KNOWN = BayesianLinearRegression(
    prior=Normal(1.0), noise_scale=0.5, normalize_y=False, intercept_prior=Normal(1.0)
)


def game(n=300, seed=0):
    """Three actions with linear rewards, in two features."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 2))
    expected = X @ rng.normal(size=(2, 3)) + [0.2, 0.0, -0.2]
    return X, expected + 0.5 * rng.normal(size=(n, 3)), expected


def test_actions_are_taken_as_often_as_they_are_best():
    """In shares of the posterior, which for one context is a bivariate normal.

    Wrong variant: the mean instead of a draw; one draw for all rows of contexts.
    """
    policy = ThompsonSampler(KNOWN, 2, random_state=0)
    rng = np.random.default_rng(0)
    X, actions = rng.uniform(-1, 1, size=(12, 1)), np.arange(12) % 2
    policy.update(X, actions, 0.1 * actions)
    features = np.array([[0.3, 0.0, 1.0, 0.0], [0.0, 0.3, 0.0, 1.0]])
    draws = policy.estimator_.sample_posterior(20_000, random_state=1)
    f = draws["coef"] @ features.T
    expected = (f[:, 1] > f[:, 0]).mean()
    n = 1000
    share = policy.select(np.full((n, 1), 0.3)).mean()
    assert 0.1 < expected < 0.9
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / n)
    # The mean of several draws varies less.
    several = ThompsonSampler(KNOWN, 2, n_draws=4, random_state=0)
    several.update(X, actions, 0.1 * actions)
    means = f[:20_000].reshape(5000, 4, 2).mean(1)
    expected = (means[:, 1] > means[:, 0]).mean()
    share = several.select(np.full((250, 1), 0.3)).mean()
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / 250)
    blind = EpsilonGreedy(KNOWN, 2, epsilon=0.0).update(X, actions, X[:, 0])
    assert len(set(blind.select(np.full((50, 1), 0.3)))) == 1


def test_the_regret_of_a_linear_bandit_grows_slowly():
    """Less than half as much in the second half, and far below a uniform choice."""
    X, rewards, expected = game(300)
    found = simulate(ThompsonSampler(KNOWN, 3, random_state=0), X, rewards, expected)
    uniform = (expected.max(1) - expected.mean(1)).sum()
    assert found[-1] - found[149] < 0.5 * found[149]
    assert found[-1] < 0.25 * uniform


def test_optimism_and_chance():
    """Upper bounds are means plus deviations; epsilon is a share of uniform choices."""
    X, rewards, _ = game(60)
    ucb = UpperConfidenceBound(KNOWN, 3, width=3.0, n_draws=400, random_state=0)
    ucb.update(X, np.zeros(60, int), rewards[:, 0])  # the others are unknown
    context = np.array([[0.1, 0.1]])
    rows = np.stack([ucb._encode(context, a) for a in range(3)])
    values = ucb._values(rows)[:, 0]
    draws = ucb.estimator_.sample_posterior(20_000, random_state=0)
    f = draws["coef"] @ rows[:, 0].T + draws["intercept"][:, None]
    expected = f.mean(0) + 3 * f.std(0)
    np.testing.assert_allclose(values, expected, atol=0.6 * f.std(0).max())
    assert ucb.select(context)[0] != 0
    greedy = EpsilonGreedy(KNOWN, 3, epsilon=0.3, random_state=0)
    greedy.update(X, np.arange(60) % 3, rewards[np.arange(60), np.arange(60) % 3])
    chosen = greedy.select(np.repeat(context, 3000, 0))
    other = 1 - np.bincount(chosen, minlength=3).max() / 3000
    assert abs(other - 0.2) < 4 * np.sqrt(0.16 / 3000)


def test_late_missing_and_joint_rewards():
    """Of a conjugate model the order does not matter. Wrong variants: missing rewards
    are learned as zeros; a late one belongs to the present context."""
    X, rewards, _ = game(40)
    actions = np.arange(40) % 3
    seen = np.where(np.arange(40) % 5 == 0, np.nan, rewards[np.arange(40), actions])
    one = ThompsonSampler(KNOWN, 3, random_state=0).update(X, actions, seen)
    late = ThompsonSampler(KNOWN, 3, batch_size=7, random_state=0)
    for k in reversed(range(40)):
        late.update(X[[k]], actions[[k]], seen[[k]])
    late.batch_size = 1
    late.update(X[:1], actions[:1], [np.nan])
    again = clone(KNOWN)
    known = np.isfinite(seen)
    rows = np.stack([one._encode(X[[k]], a)[0] for k, a in enumerate(actions)])
    again.fit(rows[known], seen[known])
    for policy in (one, late):
        np.testing.assert_allclose(policy.estimator_.coef_, again.coef_, atol=1e-8)
    lost = np.where(np.arange(40)[:, None] % 2, rewards, np.nan)
    found = simulate(
        ThompsonSampler(KNOWN, 3, random_state=0), X, lost, rewards, delay=9
    )
    assert len(found) == 40


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        (BayesianLogisticRegression(prior="normal"), {}),
        (BayesianPoissonRegressor(prior="normal"), {"n_initial": 10}),
        (
            BayesianMLPRegressor(
                skip_connection=False,
                noise="constant",
                likelihood="gaussian",
                activation="softplus",
                divergence="kl",
                posterior="mean_field",
                hidden_layer_sizes=4,
                max_iter=3,
                random_state=0,
            ),
            {"encoding": "append", "refit": True, "batch_size": 20},
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_other_models(estimator, options):
    X, rewards, expected = game(30)
    rewards = (rewards > 0).astype(float)
    policies = ThompsonSampler, EpsilonGreedy, UpperConfidenceBound
    for policy in policies:
        made = policy(estimator, 3, random_state=0, **options)
        found = simulate(made, X, rewards, expected)
        assert len(found) == len(made.actions_) == len(made.rewards_) == 30
        assert set(made.actions_) <= {0, 1, 2}


def test_refined_samples_decide():
    """Those that the fit has stored. Wrong variant: draws of the normal before it."""
    network = BayesianMLPRegressor(
        divergence="kl",
        hidden_layer_sizes=2,
        max_iter=3,
        posterior=Refined(n_auxiliary=2, n_samples=3),
        random_state=0,
    )
    X, rewards, _ = game(12)
    options = {"encoding": "append", "refit": True, "random_state": 0}
    policy = ThompsonSampler(network, 2, **options)
    with pytest.warns(ConvergenceWarning):
        policy.update(X, np.arange(12) % 2, rewards[:, 0])
    rows = np.stack([policy._encode(X[:1], a) for a in (0, 1)])
    model = policy.estimator_
    stored = model.posterior_.params.reshape(3, 1, -1)
    expected = [SampledFunction(model, theta)(rows[:, 0]) for theta in stored]
    for _ in range(5):
        found = policy._values(rows)[:, 0]
        assert min(np.abs(values - found).max() for values in expected) < 1e-5


def test_functions_average_to_predictions():
    """Of classes and counts; wrong variant: without the origin of the exposure."""
    X, rewards, _ = game(100)
    y = (rewards[:, 0] > 0).astype(int)
    counts = BayesianPoissonRegressor(prior="normal").fit(X, y, exposure=y + 3.0)
    model = BayesianLogisticRegression().fit(X, y)
    one = partial(counts.predict, exposure=1)
    for fitted, method in ((model, model.predict_proba), (counts, one)):
        draws = np.array([fitted.sample_function(i)(X[:3]) for i in range(400)])
        se = draws.std(0) / 20
        assert (np.abs(draws.mean(0) - method(X[:3])) < 4.5 * se + 1e-9).all()


def test_messages():
    policy = ThompsonSampler(KNOWN, 2)
    with pytest.raises(ValueError, match=r"actions must be integers from 0 to 1"):
        policy.update(np.zeros((2, 1)), [0, 2], [1.0, 1.0])
    with pytest.raises(TypeError, match="has no sample_function"):
        ThompsonSampler(EpsilonGreedy(KNOWN, 2), 2).select([[0.0]])
    greedy = EpsilonGreedy(LinearRegression(), 2, refit=True, random_state=0)
    greedy.update([[0.0], [1.0]] * 3, [0, 1] * 3, [0.0, 1.0] * 3)
    assert greedy.select([[1.0]]).tolist() == [1]  # it needs no posterior
    with pytest.raises(ValueError, match="'epsilon' parameter"):
        EpsilonGreedy(KNOWN, 2, epsilon=2.0).select([[0.0]])


def test_rewards_of_a_classifier_are_zero_or_one():
    """Wrong variant: rewards are cut to integers, .9 to 0."""
    policy = ThompsonSampler(BayesianLogisticRegression(), 2)
    with pytest.raises(ValueError, match="rewards must be 0 or 1"):
        policy.update(np.zeros((2, 1)), [0, 1], [0.9, 0.0])
    with pytest.raises(ValueError, match="actions must be integers"):
        policy.update(np.zeros((1, 1)), [1.5], [1.0])
