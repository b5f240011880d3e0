"""Time and memory of a fit on sparse features that would not fit dense.

    python benchmarks/bench_sparse.py                 # 20,000 x 50,000, 0.1 % stored
    python benchmarks/bench_sparse.py --classes 3

Memory is the peak of the resident set above its level before the fit, X included in
that level, sampled every 2 ms.
"""

import argparse
import os
import platform
import threading
import time
from datetime import date

import numpy as np
import scipy.sparse as sp

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


def make(n, d, density, n_classes):
    rng = np.random.default_rng(0)
    X = sp.random(n, d, density, "csr", random_state=rng, data_rvs=rng.standard_normal)
    f = X @ rng.standard_normal((d, n_classes))
    return X, (f + 0.3 * rng.gumbel(size=f.shape)).argmax(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=50_000)
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--classes", type=int, default=2)
    options = parser.parse_args()
    X, y = make(options.rows, options.columns, options.density, options.classes)
    small = BayesianLogisticRegression(posterior="mean_field", prior="normal")
    small.fit(X[:50, :20], y[:50])  # loads the libraries
    model = BayesianLogisticRegression(posterior="mean_field", prior="normal")
    start = time.perf_counter()
    extra = peak_beyond(lambda: model.fit(X, y))
    seconds = time.perf_counter() - start
    stored = (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) / 2**20
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores")
    print(
        f"{X.shape[0]:,} x {X.shape[1]:,}, {X.nnz:,} stored ({stored:.0f} MiB), "
        f"{options.classes} classes: {seconds:.1f} s, {model.n_iter_} iterations, "
        f"converged {model.converged_}, peak {extra:.0f} MiB beyond X"
    )


if __name__ == "__main__":
    main()
