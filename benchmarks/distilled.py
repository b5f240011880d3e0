"""What a distilled network loses, and how much faster it predicts.

Networks with default parameters are teachers, `distill` with default parameters makes
the students: test negative log density of both, and how much faster predictions are, of
the test rows (where checks take most of the time), and of 5,000 rows. The settings of
`distill` were chosen by held-out training rows of energy, yacht, digits; no test rows
of any set, and no rows of these four, were used for it.

    SKVI_DATA=folder python benchmarks/distilled.py
"""

import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skvi.metrics import log_predictive_density_scorer
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor, distill

SETS = {"bostonHousing": False, "concrete": False, "pima": True, "ionosphere": True}


def load(folder, name, is_class):
    place = Path(folder) / name
    if is_class:
        table = pd.read_csv(place / f"{name}.csv")
        return table.drop(columns="target").to_numpy(float), table["target"].to_numpy()
    table = np.loadtxt(place / "data.txt")
    features = np.loadtxt(place / "index_features.txt").astype(int)
    return table[:, features], table[:, int(np.loadtxt(place / "index_target.txt"))]


def log_density(student, X, y, is_class):
    """Mean log predictive density of rows."""
    if is_class:
        return log_predictive_density_scorer(student, X, y)
    mean, std = student.predict(X, return_std=True)
    return norm.logpdf(y, mean, std).mean()


def seconds(predict, X):
    """The fastest of twenty predictions."""
    found = []
    for _ in range(20):
        start = time.perf_counter()
        predict(X)
        found.append(time.perf_counter() - start)
    return min(found)


def main():
    warnings.simplefilter("ignore")
    for name, is_class in SETS.items():
        X, y = load(os.environ["SKVI_DATA"], name, is_class)
        stratify = y if is_class else None
        A, B, a, b = train_test_split(
            X, y, test_size=0.2, random_state=0, stratify=stratify
        )
        kind = BayesianMLPClassifier if is_class else BayesianMLPRegressor
        start = time.monotonic()
        teacher = make_pipeline(StandardScaler(), kind(random_state=0)).fit(A, a)
        middle = time.monotonic()
        student = distill(teacher, A, random_state=0)
        end = time.monotonic()
        given = -log_predictive_density_scorer(teacher, B, b)
        own = -log_density(student, B, b, is_class)
        method = "predict_proba" if is_class else "predict"
        ratios = []
        for rows in (B, np.resize(B, (5000, B.shape[1]))):
            slow, fast = (seconds(getattr(m, method), rows) for m in (teacher, student))
            ratios.append(round(slow / fast))
        print(
            f"{name:<14} {len(a)} rows; {given:.4f} {own:.4f} "
            f"({100 * (own - given) / abs(given):+.1f} %), {ratios} times faster; "
            f"fits {middle - start:.0f} s and {end - middle:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
