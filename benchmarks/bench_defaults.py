"""Processor time of linear models where a full-rank posterior is large.

    python benchmarks/bench_defaults.py            # all of them
    python benchmarks/bench_defaults.py digits sparse

Every case is one fit in a process that has imported everything.

Measured 2026-11-22 on one of two cores of an AMD EPYC, beside other work, processor
seconds before and after: fewer rows than parameters are fitted in the space of the
rows, covariances of several f are made from pairs of features, mean and precision take
turns at the start of large fits, integrals over several classes have one dimension in
closed form, and steps of the noise are extrapolated.

    case        before   after
    sparse        50.8     2.9    1,000 x 3,000 sparse features
    digits         5.9     2.1    1,797 x 64, ten classes
    classes       32.4     6.9    1,500 x 20, fifty classes
    separable     35.6     2.9    2,000 x 800
    horseshoe     80.9     9.9    regression, 200 x 1,000; 20 steps, before 100 and more

Since 2026-11-23 weights whose rows sum to 0 need products of distinct classes only, and
covariances no copies of pairs of features: `digits` takes 0.75 of that (2.9 for 3.9 on
a slower machine, medians of ten fits each, in turns), `classes` 0.9.

All are full-rank posteriors. By default (``posterior="auto"``) the last one and other
sizes above 1,000 parameters are factorized: 2.2 s.
"""

import argparse
import platform
import time
from datetime import date

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_digits
from sklearn.preprocessing import scale

from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression


def sparse():
    rng = np.random.default_rng(0)
    values = rng.standard_normal
    X = sp.random(1000, 3000, 0.01, "csr", random_state=0, data_rvs=values)
    y = X @ rng.standard_normal(3000) + 0.5 * rng.standard_normal(1000) > 0
    return BayesianLogisticRegression(posterior="full_rank", prior="normal"), X, y


def digits():
    X, y = load_digits(return_X_y=True)
    model = BayesianLogisticRegression(posterior="full_rank", prior="normal")
    return model, scale(X), y


def classes():
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((1500, 20)), rng.standard_normal((20, 50))
    y = (X @ W + rng.gumbel(size=(1500, 50))).argmax(1)
    return BayesianLogisticRegression(posterior="full_rank", prior="normal"), X, y


def separable():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 800))
    y = X[:, :20].sum(1) + rng.logistic(size=2000) > 0
    return BayesianLogisticRegression(posterior="full_rank", prior="normal"), X, y


def horseshoe():
    rng = np.random.default_rng(0)
    X, coef = rng.standard_normal((200, 1000)), np.zeros(1000)
    coef[:10] = 2 * rng.standard_normal(10)
    y = X @ coef + rng.standard_normal(200)
    return BayesianLinearRegression(posterior="full_rank", prior="horseshoe"), X, y


CASES = {f.__name__: f for f in (sparse, digits, classes, separable, horseshoe)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(CASES))
    arguments = parser.parse_args()
    print(f"{date.today()} {platform.machine()}")
    print(f"{'case':<12}{'wall s':>8}{'cpu s':>8}{'steps':>7}  converged")
    for name in arguments.cases or CASES:
        model, X, y = CASES[name]()
        wall, cpu = time.perf_counter(), time.process_time()
        model.fit(X, y)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"{name:<12}{wall:8.2f}{cpu:8.2f}{model.n_iter_:7d}  {model.converged_}")


if __name__ == "__main__":
    main()
