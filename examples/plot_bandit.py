"""A bandit that decides by draws from a posterior
=================================================

In each round one of three actions is taken in a context, and only its reward is seen.
Thompson sampling takes the action that is best under one function drawn from the
posterior of the reward, so that it explores what it does not know, and stops when it
knows enough. The greedy choice takes the best mean, sometimes (with probability
epsilon) any action. Regret is the expected reward lost to an oracle.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone

from skvi.linear_model import BayesianLinearRegression
from skvi.priors import Normal

N_ACTIONS, N_ROUNDS, N_GAMES = 3, 200, 6

# The noise is known; each action has coefficients and an intercept of its own.
reward = BayesianLinearRegression(
    prior=Normal(1.0), noise_scale=0.5, normalize_y=False, fit_intercept=False
)


def features(context):
    """A row for each action: the context in the columns of this action, zeros else."""
    return np.kron(np.eye(N_ACTIONS), np.append(context, 1.0))


def thompson(model, rows, rng):
    """The best action under one draw from the posterior."""
    return model.sample_function(int(rng.integers(2**31)))(rows).argmax()


def greedy(epsilon):
    """The best mean, but for a share epsilon of uniform choices."""

    def choose(model, rows, rng):
        explores = rng.random() < epsilon
        return rng.integers(len(rows)) if explores else model.predict(rows).argmax()

    return choose


def play(choose, contexts, expected, rewards, seed):
    """Cumulative regret of a game; rewards arrive after every third round."""
    rng, model, lost = np.random.default_rng(seed), clone(reward), []
    taken, seen = [], []
    for t, context in enumerate(contexts):
        rows = features(context)
        # The first rounds try each action.
        action = t if t < N_ACTIONS else choose(model, rows, rng)
        taken.append(rows[action])
        seen.append(rewards[t, action])
        if len(seen) == N_ACTIONS:
            model.partial_fit(np.array(taken), seen)
            taken, seen = [], []
        lost.append(expected[t].max() - expected[t, action])
    return np.cumsum(lost)


policies = {
    "Thompson": thompson,
    "greedy": greedy(0.0),
    "greedy, epsilon .05": greedy(0.05),
}
curves = {name: [] for name in [*policies, "any action"]}
for seed in range(N_GAMES):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(N_ROUNDS, 2))
    expected = X @ rng.normal(size=(2, 3)) + 0.5 * rng.normal(size=3)
    rewards = expected + 0.5 * rng.normal(size=expected.shape)
    for name, choose in policies.items():
        curves[name].append(play(choose, X, expected, rewards, seed))
    curves["any action"].append(np.cumsum(expected.max(1) - expected.mean(1)))

figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
print("mean regret after 50, 100 and 200 rounds, and its standard error at the end")
for name, found in curves.items():
    mean, end = np.mean(found, 0), np.array(found)[:, -1]
    ax.plot(mean, label=name)
    error = end.std(ddof=1) / np.sqrt(N_GAMES)
    table = " ".join(f"{mean[t - 1]:6.1f}" for t in (50, 100, 200))
    print(f"{name:20} {table} +- {error:.1f}")
ax.set(xlabel="round", ylabel="cumulative regret", yscale="log")
ax.legend(fontsize="small")

path = sys.argv[1] if len(sys.argv) > 1 else "bandit.png"
figure.savefig(path, dpi=120)
print(f"The picture is in {path}")
