"""Refined posteriors on the UCI sets: test density and ELBO beside their start's.

    SKVI_DATA=folder python benchmarks/bench_refined.py [sets] [splits]

One hidden layer of 50 units, defaults; ten samples with five auxiliary variables. Log
density of test rows minus that of the factorized start, ELBO of both, and seconds of
processor time (2026-11-25, one core of a machine with other work; first splits):

    set       log density, gain     ELBO, gain          seconds
    yacht     -0.626 -0.074 +- .079  -444.3 +23 +- 2     7.9 +3.0
    energy    -0.638 +0.030 +- .012  -937.2 +30 +- 12   19.2 +0.5
"""

import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.preprocessing import StandardScaler
from uci_networks import load

from skvi.neural_network import BayesianMLPRegressor

SETS = "yacht,energy,bostonHousing,concrete,wine-quality-red,power-plant"


def fitted(posterior, X, y):
    """Network, and seconds of its fit."""
    start = time.process_time()
    network = BayesianMLPRegressor(
        hidden_layer_sizes=(50,), posterior=posterior, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.fit(X, y)
    return network, time.process_time() - start


def main(sets=SETS, n_splits="2"):
    """Print a row for each split."""
    print(
        "set, split: log density, its gain +- error, ELBO, its gain +- error, seconds"
    )
    for name in sets.split(","):
        X, y, splits = load(Path(os.environ["SKVI_DATA"]), name)
        for index, (train, test) in enumerate(splits[: int(n_splits)]):
            scaler = StandardScaler().fit(X[train])
            inside, outside = scaler.transform(X[train]), scaler.transform(X[test])
            (start, before), (end, after) = (
                fitted(family, inside, y[train]) for family in ("mean_field", "refined")
            )
            density = start.predict_log_density(outside, y[test])
            gain = end.predict_log_density(outside, y[test]) - density
            error = gain.std(ddof=1) / len(gain) ** 0.5
            more = end.lower_bound_ - start.lower_bound_
            more_se = np.hypot(end.lower_bound_se_, start.lower_bound_se_)
            print(
                f"{name}, {index}: {density.mean():.3f} {gain.mean():+.4f} "
                f"+- {error:.4f}  {start.lower_bound_:.1f} {more:+.1f} +- {more_se:.1f}"
                f"  {before:.1f} {after - before:+.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
