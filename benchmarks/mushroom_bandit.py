"""The mushroom task: eat or pass, by Thompson sampling and by baselines.

A mushroom is seen, and eaten or passed. Edible ones give 5 if eaten; poisonous ones 5
or -35 with equal probability; passed ones 0. The regret is the expected reward that is
lost to an oracle: 15 for a poisonous one that is eaten, 5 for an edible one that is
passed (Blundell et al., 2015, section 5.3). All see the same mushrooms and rewards.

    SKVI_DATA=folder python benchmarks/mushroom_bandit.py --rounds 400 --seeds 5
"""

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from skvi.bandits import EpsilonGreedy, ThompsonSampler, UpperConfidenceBound, simulate
from skvi.linear_model import BayesianLinearRegression
from skvi.neural_network import BayesianMLPRegressor
from skvi.priors import Normal

LINEAR = BayesianLinearRegression(
    prior=Normal(5.0), noise_scale=10.0, intercept_prior=Normal(10.0), normalize_y=False
)
NETWORK = BayesianMLPRegressor(
    hidden_layer_sizes=50, noise_scale=10.0, max_iter=100, random_state=0
)
OF_NETWORKS = {"encoding": "append", "refit": True, "batch_size": 40, "n_initial": 40}
OF_LINES = {"batch_size": 10, "n_initial": 10}
POLICIES = {
    "linear, Thompson": (ThompsonSampler, LINEAR, OF_LINES),
    "linear, UCB": (UpperConfidenceBound, LINEAR, OF_LINES),
    "linear, greedy 5 %": (EpsilonGreedy, LINEAR, OF_LINES),
    "linear, greedy 0 %": (EpsilonGreedy, LINEAR, {**OF_LINES, "epsilon": 0.0}),
    "uniform": (EpsilonGreedy, LINEAR, {"epsilon": 1.0, "batch_size": 10**9}),
    "network, Thompson": (ThompsonSampler, NETWORK, OF_NETWORKS),
    "network, greedy 5 %": (EpsilonGreedy, NETWORK, OF_NETWORKS),
}


def load(folder):
    """Indicators of the categories, and whether a mushroom is edible."""
    table = pd.read_csv(Path(folder) / "mushroom" / "mushroom.csv")
    X = pd.get_dummies(table.drop(columns="label")).to_numpy(dtype=float)
    return X[:, X.std(0) > 0], (table["label"] == "e").to_numpy()


def game(X, is_edible, n_rounds, seed):
    """Contexts, rewards and expected rewards of passing and eating."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(X), size=n_rounds, replace=False)
    edible = is_edible[rows]
    eaten = np.where(edible | (rng.random(n_rounds) < 0.5), 5.0, -35.0)
    none = np.zeros(n_rounds)
    expected = np.column_stack([none, np.where(edible, 5.0, -15.0)])
    return X[rows], np.column_stack([none, eaten]), expected


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    X, is_edible = load(os.environ["SKVI_DATA"])
    regret = {}
    for name in options.policies:
        kind, model, parameters = POLICIES[name]
        start, found = time.monotonic(), []
        for seed in range(options.seeds):
            played = game(X, is_edible, options.rounds, seed)
            policy = kind(model, 2, random_state=seed, **parameters)
            found.append(simulate(policy, *played))
        regret[name] = np.array(found)
        end, half = regret[name][:, -1], regret[name][:, options.rounds // 2 - 1]
        se = end.std(ddof=1) / np.sqrt(len(end))
        seconds = (time.monotonic() - start) / len(end)
        print(
            f"{name:<20} regret {end.mean():7.0f} +- {se:4.0f}, second half "
            f"{(end - half).mean():6.0f}; {seconds:.1f} s a run",
            flush=True,
        )
    for kind in ("linear", "network"):
        first = f"{kind}, Thompson"
        for name in regret.keys() - {first}:
            if first in regret and (name.startswith(kind) or name == "uniform"):
                change = regret[name][:, -1] - regret[first][:, -1]
                se = change.std(ddof=1) / np.sqrt(len(change))
                print(f"{name} minus {first}: {change.mean():.0f} +- {se:.0f}")


if __name__ == "__main__":
    main()
