"""Training of mean-field networks by drawn weights or by drawn activations of rows.

Processor seconds and the ELBO of the default training with the whole divergence, over
three seeds: ten draws of the weights, which all rows share, and two of the activations
of each row. Run ``python benchmarks/bench_activations.py``: five minutes.
"""

import math
import time

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.preprocessing import StandardScaler

from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.objectives import ELBO
from skvi.solvers import Stochastic

PROBLEMS = {
    "wdbc": (load_breast_cancer, BayesianMLPClassifier, {}),
    "wine": (load_wine, BayesianMLPClassifier, {}),
    "digits": (load_digits, BayesianMLPClassifier, {}),
    "diabetes": (load_diabetes, BayesianMLPRegressor, {}),
    "diabetes, 100 x 100": (
        load_diabetes,
        BayesianMLPRegressor,
        {"hidden_layer_sizes": (100, 100)},
    ),
}


def measure(load, estimator, settings, objective, n_draws):
    """Seconds, and bounds, of three fits."""
    X, y = load(return_X_y=True)
    X, found = StandardScaler().fit_transform(X), []
    for seed in range(3):
        model = estimator(
            posterior="mean_field",
            divergence="kl",
            objective=objective,
            solver=Stochastic(n_draws=n_draws),
            random_state=seed,
            **settings,
        )
        start = time.process_time()
        model.fit(X, y)
        found.append((time.process_time() - start, model.lower_bound_))
    return np.array(found).T


if __name__ == "__main__":
    print(f"{'set':<22}{'weights, 10':>26}{'activations, 2':>26}")
    for name, parts in PROBLEMS.items():
        cells = []
        for objective, n_draws in ((ELBO(), 10), (ELBO("local"), 2)):
            seconds, bounds = measure(*parts, objective, n_draws)
            error = bounds.std(ddof=1) / math.sqrt(len(bounds))
            cells.append(f"{seconds.mean():.1f} s {bounds.mean():.1f} +- {error:.1f}")
        print(f"{name:<22}{cells[0]:>26}{cells[1]:>26}", flush=True)
