"""Time of BayesianLinearRegression beside BayesianRidge, as ratios.

    SKVI_DATA=... python benchmarks/bench_linear_regression.py
    python benchmarks/bench_linear_regression.py --repeats 30 --no-large

Both estimators run alternately in one process, at their defaults and with one thread;
the median of the pairwise ratios is quoted, of wall clock and of processor time (other
processes disturb the latter less). Concrete is read from ``$SKVI_DATA/concrete``.
"""

import argparse
import os
import platform
import time
from datetime import date
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import ARDRegression, BayesianRidge
from threadpoolctl import threadpool_limits

from skvi.linear_model import BayesianLinearRegression


def seconds(function):
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(name, X, y, reference, ours, repeats):
    for make in (reference, ours):
        make().fit(X, y)
    pairs = np.array(
        [
            [seconds(lambda m=make: m().fit(X, y)) for make in (reference, ours)]
            for _ in range(repeats)
        ]
    )
    base, mine = np.median(pairs[..., 0], axis=0) * 1e3
    wall, cpu = np.median(pairs[:, 1] / pairs[:, 0], axis=0)
    print(f"{name:<28} {base:10.2f} {mine:10.2f} {wall:8.2f} {cpu:8.2f}")


def make_large(n=10_000, d=100):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + 3 * rng.normal(size=n)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--no-large", action="store_true")
    options = parser.parse_args()
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores")
    print(f"{'data':<28} {'sklearn ms':>10} {'skvi ms':>10} {'wall':>8} {'cpu':>8}")
    parts = BayesianRidge, BayesianLinearRegression
    sets = {"diabetes 442 x 10": load_diabetes(return_X_y=True)}
    if "SKVI_DATA" in os.environ:
        table = np.loadtxt(Path(os.environ["SKVI_DATA"], "concrete", "data.txt"))
        sets["concrete 1030 x 8"] = table[:, :-1], table[:, -1]
    with threadpool_limits(1):
        for name, (X, y) in sets.items():
            compare(name, X, y, *parts, options.repeats)
        X, y = sets["diabetes 442 x 10"]
        ard = ARDRegression, lambda: BayesianLinearRegression(prior="ard")
        compare("diabetes 442 x 10, ARD", X, y, *ard, options.repeats)
        if not options.no_large:
            compare("10,000 x 100", *make_large(), *parts, 10)


if __name__ == "__main__":
    main()
