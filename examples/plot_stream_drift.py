"""A stream that drifts, and a bandit that decides
==================================================

The coefficients of a logistic regression turn slowly while its rows arrive. Each chunk
is scored before it is learned. A posterior that keeps everything becomes certain of the
average of all times; with ``forgetting`` it follows. Below, Thompson sampling chooses
one of three actions by draws from a posterior, and is compared with a greedy choice.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import skvi
from skvi.bandits import EpsilonGreedy, ThompsonSampler, simulate
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.priors import Normal

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")


# %%
# A stream that drifts
# --------------------


def chunks(n_chunks=60, n_rows=100):
    rng = np.random.default_rng(0)
    for angle in np.linspace(0, np.pi, n_chunks):
        X = rng.standard_normal((n_rows, 2))
        f = 2 * X @ [np.cos(angle), np.sin(angle)]
        yield X, (f + rng.logistic(size=n_rows) > 0).astype(int)


name = "log_predictive_density"
for forgetting in (1.0, 0.9, 0.5):
    model = BayesianLogisticRegression(prior="normal")
    found = skvi.stream(model, chunks(), classes=[0, 1], forgetting=forgetting)
    left.plot(found.scores[name], label=f"forgetting={forgetting}")
    print(f"forgetting={forgetting}: {found.mean(name):.3f} nats per row")
left.axhline(-np.log(2), color="0.6", linestyle=":", label="knows nothing")
left.set(xlabel="chunk", ylabel="mean log density before it is learned")
left.legend(fontsize="small")

# %%
# A bandit
# --------
# Rewards of three actions are linear in the context; the noise is known.

rng = np.random.default_rng(0)
n_rounds, n_runs = 200, 5
reward = BayesianLinearRegression(
    prior=Normal(1.0), intercept_prior=Normal(1.0), noise_scale=0.5, normalize_y=False
)
policies = {
    "Thompson": lambda seed: ThompsonSampler(reward, 3, random_state=seed),
    "greedy": lambda seed: EpsilonGreedy(reward, 3, epsilon=0.0, random_state=seed),
    "uniform": lambda seed: EpsilonGreedy(
        reward, 3, epsilon=1.0, batch_size=n_rounds, random_state=seed
    ),
}
curves = {name: [] for name in policies}
for seed in range(n_runs):
    X = rng.uniform(-1, 1, size=(n_rounds, 2))
    expected = X @ rng.normal(size=(2, 3)) + 0.5 * rng.normal(size=3)
    rewards = expected + 0.5 * rng.normal(size=expected.shape)
    for name, make in policies.items():
        curves[name].append(simulate(make(seed), X, rewards, expected))
for name, found in curves.items():
    mean, end = np.mean(found, 0), np.array(found)[:, -1]
    right.plot(mean, label=name)
    error = end.std(ddof=1) / np.sqrt(n_runs)
    print(f"{name}: regret {end.mean():.1f} +- {error:.1f} after {n_rounds} rounds")
right.set(xlabel="round", ylabel="cumulative regret", yscale="log")
right.legend(fontsize="small")

path = sys.argv[1] if len(sys.argv) > 1 else "stream_drift.png"
figure.savefig(path, dpi=120)
print(f"The picture is in {path}")
