"""Stored values of the references that take seconds; `--write` computes them again.

Run as ``python -m tests.references.make_estimators --write`` in the root folder.
"""

import json
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris, load_wine
from sklearn.preprocessing import scale

from tests.linear_model.reference_multinomial import Multinomial, importance_evidence
from tests.reference import Problem, chain_mean, real_data, sample_chains

PATH = Path(__file__).with_name("estimators.json")
LOADERS = {"iris": load_iris, "wine": load_wine}
CHAINS = ("setosa", "virginica", "breast_cancer")


def multinomial(name):
    """Optima of the negative ELBO in nats, and log evidence with its error."""
    X, y = LOADERS[name](return_X_y=True)
    problem = Multinomial(scale(X), y)
    value, m, L = problem.optimum(full_rank=True)
    return {
        "mean_field": problem.optimum(full_rank=False)[0],
        "full_rank": value,
        "evidence": importance_evidence(problem, m, L, 100_000, seed=0),
    }


def moments(name):
    """Posterior moments of a logistic model, each as mean and error over chains.

    "products" are correlations, the upper triangle in order.
    """
    n_iter = 1500 if name == "breast_cancer" else 2000
    theta = sample_chains(Problem(*real_data(name)), 100, 200, n_iter, seed=0)
    mean, _ = found = chain_mean(theta)
    variance = chain_mean((theta - mean) ** 2)
    i, j = np.triu_indices(len(mean), 1)
    z = (theta - mean) / np.sqrt(variance[0])
    products = chain_mean(z[..., i] * z[..., j])
    table = {"mean": found, "variance": variance, "products": products}
    return {key: [part.tolist() for part in pair] for key, pair in table.items()}


def rounded(value):
    """Eight significant digits, so that the file stays small."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    return float(f"{value:.8g}")


def compute():
    """All of it."""
    return rounded(
        {
            "multinomial": {name: multinomial(name) for name in LOADERS},
            "moments": {name: moments(name) for name in CHAINS},
        }
    )


def load():
    """Stored values."""
    return json.loads(PATH.read_text(encoding="utf-8"))


if __name__ == "__main__" and "--write" in sys.argv[1:]:
    PATH.write_text(json.dumps(compute()) + "\n", encoding="utf-8")
