"""Time and memory of BayesianLogisticRegression beside scikit-learn's, as ratios.

    python benchmarks/bench_logistic.py            # breast cancer and 200,000 x 100
    python benchmarks/bench_logistic.py --repeats 50 --no-large
    python benchmarks/bench_logistic.py --processes 5   # breast cancer, full rank

Both estimators run alternately in one process; the reference is
``LogisticRegression(solver="newton-cholesky")`` at its defaults. The median of the
pairwise ratios is quoted. With ``--processes`` fresh processes run both alternately and
each in a loop of its own, in which its code and data stay in the caches; the median of
their ratios is quoted, of wall time and of processor time, which says more beside other
busy processes. Memory is the peak of the resident set above what the process held
before the fit, data included, sampled every 2 ms.

Measured 2026-11-22 on two cores of an AMD EPYC with nothing else on the machine,
processor time, median of five processes: breast cancer, full rank, fixed scale, 3.46
[3.40, 3.47] alternating and 4.20 [3.99, 4.41] in loops (before long steps to the mode
3.69 and 4.60 on the same day); 3.45 [3.38, 3.47] and 4.37 [4.28, 4.41] hours later.
200,000 x 100, wall time: 1.79 with one thread, 1.91 with two; 1.98 hours later.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from datetime import date

import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

from skvi.linear_model import BayesianLogisticRegression


def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_beyond(function):
    """Peak of the resident set, in MiB, above its level before the call."""
    base, peak, done = resident_mib(), 0.0, threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident_mib() - base)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        function()
    finally:
        done.set()
        thread.join()
    return peak


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(name, X, y, candidates, repeats):
    def reference():
        return LogisticRegression(solver="newton-cholesky").fit(X, y)

    reference()
    for label, make in candidates.items():
        make().fit(X, y)
        pairs = [
            (seconds(reference), seconds(lambda m=make: m().fit(X, y)))
            for _ in range(repeats)
        ]
        base, ours = np.median(pairs, axis=0) * 1e3
        ratios = np.array([b / a for a, b in pairs])
        low, mid, high = np.quantile(ratios, [0.1, 0.5, 0.9])
        print(
            f"{name:<20} {label:<12} {base:9.2f} {ours:9.2f} "
            f"{mid:7.2f}  [{low:.2f}, {high:.2f}]"
        )


def both_clocks(function):
    """Wall and processor seconds."""
    start = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def report_one_process(repeats):
    """Print ratios of medians: alternating and in loops, wall and processor time."""
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)
    fits = [
        lambda: LogisticRegression(solver="newton-cholesky").fit(X, y),
        lambda: BayesianLogisticRegression(prior="normal").fit(X, y),
    ]
    for fit in fits:
        fit()
    pairs = np.array([[both_clocks(fit) for fit in fits] for _ in range(repeats)])
    loops = [[both_clocks(fit) for _ in range(repeats)] for fit in fits]
    base, ours = np.median(loops, axis=1)
    alternating = np.median(pairs[:, 1] / pairs[:, 0], axis=0)
    print(json.dumps([*alternating, *(ours / base), base[1] * 1e3, ours[1] * 1e3]))


def report_processes(n_processes, repeats):
    command = [sys.executable, __file__, "--one-process", "--repeats", str(repeats)]
    found = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for _ in range(n_processes)
    ]
    names = ("alternating, wall", "alternating, processor", "loops, wall")
    names += ("loops, processor", "sklearn, processor ms", "skvi, processor ms")
    for name, values in zip(names, np.transpose(found), strict=True):
        print(
            f"{name:<24} {np.median(values):7.2f}  [{min(values):.2f}, "
            f"{max(values):.2f}] over {n_processes} processes"
        )


def make_large(n=200_000, d=100):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    y = X @ rng.normal(size=d) * 0.1 + rng.logistic(size=n) > 0
    return X, y.astype(int)


def report_memory(label):
    X, y = load_breast_cancer(return_X_y=True)
    CANDIDATES[label]().fit(scale(X), y)  # loads the libraries
    X, y = make_large()
    extra = peak_beyond(lambda: CANDIDATES[label]().fit(X, y))
    size = X.nbytes / 2**20
    print(
        f"200,000 x 100, {label}: peak {extra:.0f} MiB beyond X, "
        f"{extra / size:.2f} times X"
    )


CANDIDATES = {
    "full_rank": lambda: BayesianLogisticRegression(prior="normal"),
    "mean_field": lambda: BayesianLogisticRegression(
        posterior="mean_field", prior="normal"
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--no-large", action="store_true")
    parser.add_argument("--memory", choices=CANDIDATES)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--one-process", action="store_true")
    options = parser.parse_args()
    if options.one_process:
        report_one_process(options.repeats)
        return
    if options.processes:
        report_processes(options.processes, options.repeats)
        return
    if options.memory:
        report_memory(options.memory)
        return
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores")
    print(
        f"{'data':<20} {'posterior':<12} {'sklearn':>9} {'skvi ms':>9} "
        f"{'ratio':>7}  [10 %, 90 %]"
    )
    X, y = load_iris(return_X_y=True)
    compare("iris 100 x 4", scale(X[50:]), y[50:], CANDIDATES, options.repeats)
    X, y = load_breast_cancer(return_X_y=True)
    compare("cancer 569 x 30", scale(X), y, CANDIDATES, options.repeats)
    if options.no_large:
        return
    X, y = make_large()
    compare("200,000 x 100", X, y, CANDIDATES, 5)
    for label in CANDIDATES:  # a fresh process each: freed memory is reused
        subprocess.run([sys.executable, __file__, "--memory", label], check=True)


if __name__ == "__main__":
    main()
