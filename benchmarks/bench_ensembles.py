"""When `posterior="ensemble"` predicts better than one network, and what it costs.

Test log density, in nats a row, of eight networks minus that of one, paired over
splits, and the ratio of their seconds: with all defaults, and with two layers of 50
relu units and a weight of 0.3 of the divergence. In the sets "gap" the test rows are in
the middle of [-3, 3], where there are no training rows, and half a period of a sine
fits. With "defaults" an ensemble now is another network (two layers of 50, noise of its
own, a weight from held-out rows); the guide's figures are of eight equal ones.

    SKVI_DATA=folder python benchmarks/bench_ensembles.py --splits 5
"""

import argparse
import os
import time
import warnings

import numpy as np
from sklearn import datasets
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from uci_networks import load as load_uci

from skvi.divergences import KLDivergence
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.solvers import Stochastic

DEEP = {
    "hidden_layer_sizes": (50, 50),
    "activation": "relu",
    "divergence": KLDivergence(0.3),
    "solver": Stochastic(learning_rate=0.02),
}
SETTINGS = {"defaults": {}, "two layers, 0.3": DEEP}
UCI = {
    "Boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "yacht": "yacht",
}
NUMBERS = [*UCI, "diabetes", "friedman1", "gap", "gap of 30 rows"]
CLASSES = ["breast cancer", "wine", "digits"]


def load(name, seed):
    """Rows for training and test, of one split."""
    rng = np.random.default_rng(seed)
    if name.startswith("gap"):
        n = 30 if "30" in name else 200
        x = np.concatenate([rng.uniform(-3, -1, n // 2), rng.uniform(1, 3, n // 2)])
        x = np.concatenate([x, rng.uniform(-1, 1, 100)])
        y = np.sin(2 * x) + 0.1 * rng.normal(size=len(x))
        return x[:n, None], x[n:, None], y[:n], y[n:]
    if name in UCI:
        X, y, _ = load_uci(os.environ["SKVI_DATA"], UCI[name])
    elif name == "friedman1":
        X, y = datasets.make_friedman1(300, noise=1.0, random_state=seed)
    else:
        read = getattr(datasets, f"load_{name.replace(' ', '_')}")
        X, y = read(return_X_y=True)
    return train_test_split(X, y, test_size=0.2, random_state=seed)


def difference(name, setting, seed):
    A, B, y, z = load(name, seed)
    kind = BayesianMLPClassifier if name in CLASSES else BayesianMLPRegressor
    scaler, scores, seconds = StandardScaler().fit(A), [], []
    for posterior in ("mean_field", "ensemble"):
        model = kind(posterior=posterior, random_state=seed, **SETTINGS[setting])
        start = time.perf_counter()
        model.fit(scaler.transform(A), y)
        seconds.append(time.perf_counter() - start)
        scores.append(model.predict_log_density(scaler.transform(B), z).mean())
    return scores[1] - scores[0], seconds[1] / seconds[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--sets", nargs="+", default=[*NUMBERS, *CLASSES])
    parser.add_argument("--settings", nargs="+", default=[*SETTINGS])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # fits that end by the number of epochs
    for setting in options.settings:
        for name in options.sets:
            runs = [difference(name, setting, seed) for seed in range(options.splits)]
            gains, ratios = np.array(runs).T
            error = gains.std(ddof=1) / len(gains) ** 0.5
            print(
                f"{setting:<16} {name:<15} {gains.mean():+.3f} +- {error:.3f}   "
                f"{np.median(ratios):.1f} times",
                flush=True,
            )


if __name__ == "__main__":
    main()
