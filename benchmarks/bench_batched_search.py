"""A search of 20 candidates in 5 folds beside fits one at a time, on the concrete data.

    SKVI_DATA=... python benchmarks/bench_batched_search.py           # about 4 minutes
    SKVI_DATA=... python benchmarks/bench_batched_search.py --n-jobs 2 orders
    SKVI_DATA=... python benchmarks/bench_batched_search.py --no-reference

The network has the defaults (20 units, double precision), but relu, behind a
`StandardScaler`. `orders` searches over orders of the Rényi divergence, `weights` over
those of KL. For each: processor seconds of a single fit of the pipeline to one fold
(median of ten, before and after the search) and of both searches without the refit, how
many single fits that is, and the largest difference between their scores. Monte Carlo
error is the standard deviation of a fold's score over seeds. With several processes the
seconds are those of the clock.

2026-11-22, x86_64, 2 virtual cores, torch 2.13.0, one thread, the default prior, whose
scales are learned; other processes ran beside (load 10), so that shares mean more than
seconds:

- orders: a single fit 0.84 s; the search 51 s, 61 of them for its 100 fits. With
  automatic differentiation of the divergence a single fit took 3.2 s.
- weights: a single fit 0.56 s; the search 26 s, 47 of them.

Before prior scales were learned by default:

- orders: GridSearchCV 118 to 128 single fits of 0.45 s; weights: 101 to 103 of 0.39 s.
- The largest difference of scores is 1e-16; over seeds they differ by 4e-3 to 6e-3.

A stack saves what a gradient step costs beside its arithmetic. Here that is a third to
a half of it: the rest are matrix products of 40 rows (see bench_network_step.py), which
100 members need 100 times. Fewer than about 40 single fits are out of reach of a core.
"""

import argparse
import os
import statistics
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from skvi.divergences import KL, Renyi
from skvi.model_selection import BatchedGridSearchCV
from skvi.neural_network import BayesianMLPRegressor

N_CANDIDATES, N_FOLDS, N_SEEDS = 20, 5, 5
SEARCHES = {
    "orders": (Renyi(), "alpha", np.linspace(0.1, 2.0, N_CANDIDATES)),
    "weights": (KL(), "weight", np.geomspace(0.05, 2.0, N_CANDIDATES)),
}


def concrete():
    table = np.loadtxt(Path(os.environ["SKVI_DATA"], "concrete", "data.txt"))
    return table[:, :-1], table[:, -1]


def timed(function, clock=time.process_time):
    start = clock()
    found = function()
    return clock() - start, found


def single_fits(model, X, y, train, clock):
    fits = (timed(lambda: clone(model).fit(X[train], y[train]), clock) for _ in "12345")
    return [seconds for seconds, _ in fits]


def scores_of(search):
    names = [f"split{fold}_test_score" for fold in range(N_FOLDS)]
    return np.array([search.cv_results_[name] for name in names])


def noise_of_seeds(model, X, y, splits):
    """Standard deviation of the first folds' scores over seeds."""
    found = []
    for train, test in splits[:2]:
        scores = []
        for seed in range(N_SEEDS):
            one = clone(model).set_params(network__random_state=seed)
            scores.append(one.fit(X[train], y[train]).score(X[test], y[test]))
        found.append(np.std(scores, ddof=1))
    return float(np.mean(found))


def measure(name, X, y, n_jobs, has_reference):
    divergence, parameter, values = SEARCHES[name]
    network = BayesianMLPRegressor(
        activation="relu", divergence=divergence, random_state=0
    )
    model = Pipeline([("scaler", StandardScaler()), ("network", network)])
    grid = {f"network__divergence__{parameter}": list(values)}
    splits = [*KFold(N_FOLDS, shuffle=True, random_state=0).split(X)]
    options = {"cv": splits, "refit": False, "n_jobs": n_jobs}
    train, _ = splits[0]
    clone(model).fit(X[train], y[train])  # what is done once in a process
    clock = time.process_time if n_jobs is None else time.perf_counter
    singles = single_fits(model, X, y, train, clock)
    search = BatchedGridSearchCV(model, grid, **options)
    seconds, batched = timed(lambda: search.fit(X, y), clock)
    singles += single_fits(model, X, y, train, clock)
    single = statistics.median(singles)
    print(
        f"{name}: a single fit {single:.2f} s; the search {seconds:.1f} s", flush=True
    )
    print(f"  = {seconds / single:.0f} single fits, for {20 * N_FOLDS} of them")
    if not has_reference:
        return
    search = GridSearchCV(model, grid, **options)
    seconds, usual = timed(lambda: search.fit(X, y), clock)
    difference = np.abs(scores_of(batched) - scores_of(usual)).max()
    noise = noise_of_seeds(model, X, y, splits)
    print(f"  GridSearchCV {seconds:.1f} s = {seconds / single:.0f} single fits")
    print(f"  largest difference of scores {difference:.1e}, over seeds {noise:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("searches", nargs="*", default=list(SEARCHES))
    parser.add_argument("--n-jobs", type=int)
    parser.add_argument("--no-reference", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    X, y = concrete()
    for name in arguments.searches:
        measure(name, X, y, arguments.n_jobs, not arguments.no_reference)


if __name__ == "__main__":
    main()
