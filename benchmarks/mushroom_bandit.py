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
from sklearn.base import clone
from sklearn.neural_network import MLPRegressor

from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import BayesianLinearRegression
from skvi.neural_network import BayesianMLPRegressor
from skvi.posteriors import RefinedNormal
from skvi.priors import Normal
from skvi.solvers import Stochastic

# Rounds between fits, before the first of which any action is taken.
EVERY = 20


def eaten(context):
    """Features of a mushroom that is eaten, zeros for one that is passed."""
    return np.outer([0.0, 1.0], np.append(context, 1.0))


def blocks(context):
    """Coefficients and an intercept for each of both."""
    return np.kron(np.eye(2), np.append(context, 1.0))


def thompson(n_draws):
    """The best action under the mean of draws from the posterior."""

    def choose(model, rows, rng):
        seeds = rng.integers(2**31, size=n_draws).tolist()
        return np.mean([model.sample_function(s)(rows) for s in seeds], 0).argmax()

    return choose


def greedy(epsilon):
    """The best mean, but for a share of uniform choices."""

    def choose(model, rows, rng):
        explores = rng.random() < epsilon
        return rng.integers(2) if explores else model.predict(rows).argmax()

    return choose


def network(posterior):
    return BayesianMLPRegressor(
        hidden_layer_sizes=20,
        posterior=posterior,
        prior="normal",
        likelihood=GaussianLikelihood(5.0),
        solver=Stochastic(n_draws=2, learning_rate=0.01),
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
REFINED = RefinedNormal(n_auxiliary=2, n_draws=10)
# How it chooses, the model, features, and whether all rows are fitted again.
POLICIES = {
    "uniform": (greedy(1.0), None, eaten, False),
    "linear, Thompson": (thompson(1), LINEAR, blocks, False),
    "linear, greedy": (greedy(0.05), LINEAR, blocks, False),
    "point network, greedy": (greedy(0.05), POINT, eaten, True),
    "mean field, greedy": (greedy(0.05), network("mean_field"), eaten, True),
    "mean field, Thompson": (thompson(3), network("mean_field"), eaten, True),
    "refined, Thompson": (thompson(3), network(REFINED), eaten, True),
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


def regret_of(policy, contexts, rewards, expected, seed):
    """Cumulative regret of a game."""
    choose, model, features, refits = policy
    rng, model = np.random.default_rng(seed), model and clone(model)
    rows, seen, lost = [], [], []
    for t, context in enumerate(contexts):
        both, is_known = features(context), model is not None and t >= EVERY
        action = choose(model, both, rng) if is_known else rng.integers(2)
        rows.append(both[action])
        seen.append(rewards[t, action])
        lost.append(expected[t].max() - expected[t, action])
        if model is not None and (t + 1) % EVERY == 0:
            learn = model.fit if refits else model.partial_fit
            new = slice(None if refits else -EVERY, None)
            learn(np.array(rows[new]), np.array(seen[new]))
    return np.cumsum(lost)


def play(file, n_rounds, n_seeds):
    """Append the cumulative regret of every game, at every 50 rounds, to a file."""
    X, is_edible = load(os.environ["SKVI_DATA"])
    for seed in range(n_seeds):
        played = game(X, is_edible, n_rounds, seed)
        for name, policy in POLICIES.items():
            start = time.monotonic()
            regret = regret_of(policy, *played, seed)[49::50]
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
