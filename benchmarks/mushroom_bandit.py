"""The mushroom task: eat or pass, by Thompson sampling and by baselines.

A mushroom is seen, and eaten or passed. Edible ones give 5 if eaten; poisonous ones 5
or -35 with equal probability; passed ones 0. The regret is the expected reward that is
lost to an oracle: 15 for a poisonous one that is eaten, 5 for an edible one that is
passed (Blundell et al., 2015, section 5.3; Havasi et al., 2021, figure 5). All policies
see the same mushrooms and rewards, and learn after every 20 rounds; networks go on from
their last fit, and see the mushroom only if it is eaten (a product of features and
action: with the action as one more feature they learn little in so few rounds). Their
noise, step size and width were chosen by mean-field Thompson sampling in other games,
with seeds 1000 to 1002.

    SKVI_DATA=folder python benchmarks/mushroom_bandit.py mushroom.csv
"""

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.neural_network import MLPRegressor

from skvi.bandits import EpsilonGreedy, ThompsonSampler, simulate
from skvi.linear_model import BayesianLinearRegression
from skvi.neural_network import BayesianMLPRegressor
from skvi.posteriors import Refined
from skvi.priors import Normal

EVERY = {"batch_size": 20, "n_initial": 20}


def eaten(contexts, action):
    """Features of a mushroom that is eaten, zeros for one that is passed."""
    return np.hstack([action * contexts, np.full((len(contexts), 1), float(action))])


def network(posterior):
    return BayesianMLPRegressor(
        hidden_layer_sizes=20,
        posterior=posterior,
        prior="normal",
        noise_scale=5.0,
        n_draws=2,
        learning_rate=0.01,
        max_iter=40,
        n_predict_draws=10,
        warm_start=True,
        random_state=0,
    )


LINEAR = BayesianLinearRegression(
    prior=Normal(5.0), noise_scale=10.0, intercept_prior=Normal(10.0), normalize_y=False
)
# A maximum-likelihood network, as in the paper.
POINT = MLPRegressor(
    hidden_layer_sizes=20,
    learning_rate_init=0.01,
    max_iter=300,
    warm_start=True,
    random_state=0,
)
OF_NETWORKS = {**EVERY, "encoding": eaten, "refit": True}
THREE = {**OF_NETWORKS, "n_draws": 3}
REFINED = Refined(n_auxiliary=2, n_samples=10)
POLICIES = {
    "uniform": (EpsilonGreedy, LINEAR, {"epsilon": 1.0, "batch_size": 10**9}),
    "linear, Thompson": (ThompsonSampler, LINEAR, EVERY),
    "linear, greedy": (EpsilonGreedy, LINEAR, EVERY),
    "point network, greedy": (EpsilonGreedy, POINT, OF_NETWORKS),
    "mean field, greedy": (EpsilonGreedy, network("mean_field"), OF_NETWORKS),
    "mean field, Thompson": (ThompsonSampler, network("mean_field"), THREE),
    "refined, Thompson": (ThompsonSampler, network(REFINED), THREE),
}


def load(folder):
    """Standardized indicators of the categories, and whether it is edible."""
    table = pd.read_csv(Path(folder) / "mushroom" / "mushroom.csv")
    X = pd.get_dummies(table.drop(columns="label")).to_numpy(dtype=float)
    X = X[:, X.std(0) > 0]
    return (X - X.mean(0)) / X.std(0), (table["label"] == "e").to_numpy()


def game(X, is_edible, n_rounds, seed):
    """Contexts, rewards and expected rewards of passing and eating."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(X), size=n_rounds, replace=False)
    edible = is_edible[rows]
    eaten = np.where(edible | (rng.random(n_rounds) < 0.5), 5.0, -35.0)
    none = np.zeros(n_rounds)
    expected = np.column_stack([none, np.where(edible, 5.0, -15.0)])
    return X[rows], np.column_stack([none, eaten]), expected


def play(file, n_rounds, n_seeds):
    """Append the cumulative regret of every game, at every 50 rounds, to a file."""
    X, is_edible = load(os.environ["SKVI_DATA"])
    for seed in range(n_seeds):
        played = game(X, is_edible, n_rounds, seed)
        for name, (kind, model, parameters) in POLICIES.items():
            start = time.monotonic()
            policy = kind(model, 2, random_state=seed, **parameters)
            regret = simulate(policy, *played)[49::50]
            row = {"policy": name, "seed": seed, "seconds": time.monotonic() - start}
            row |= {50 * (i + 1): value for i, value in enumerate(regret)}
            pd.DataFrame([row]).round(1).to_csv(
                file, mode="a", header=not Path(file).exists(), index=False
            )


def report(file):
    """Print means with standard errors, and paired differences."""
    table = pd.read_csv(file)
    regret = table.drop(columns="seconds").set_index(["policy", "seed"])
    groups = regret.groupby("policy", sort=False)
    seconds = table.groupby("policy")["seconds"].mean()
    for name, mean in groups.mean().iterrows():
        se = groups.sem().loc[name].iloc[-1]
        curve = " ".join(f"{v:.0f}" for v in mean)
        print(f"{name:<22} {curve} +- {se:.0f}; {seconds[name]:.1f} s")
    end = regret[regret.columns[-1]].unstack("policy")
    for first in ("mean field, Thompson", "refined, Thompson"):
        for other in end.columns.drop(first):
            change = end[other] - end[first]
            se = change.sem()
            order = "" if abs(change.mean()) > 2 * se else " (no order)"
            print(f"{other} minus {first}: {change.mean():.0f} +- {se:.0f}{order}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if not Path(options.file).exists():
        play(options.file, options.rounds, options.seeds)
    report(options.file)


if __name__ == "__main__":
    main()
