"""Time and memory of a low-rank fit on thousands of dense features.

    python benchmarks/bench_low_rank.py                      # 1,000 x 5,000, rank 10
    python benchmarks/bench_low_rank.py --rows 2000 --rank 30
    python benchmarks/bench_low_rank.py --profile

The features share factors, as pixels or genes do. Memory is the peak of the whole
process, X and the libraries included.
"""

import argparse
import cProfile
import pstats
import resource
import time

import numpy as np

from skvi.linear_model import BayesianLogisticRegression
from skvi.posteriors import LowRankNormal


def make(n, d, n_factors=20):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, n_factors)) @ rng.standard_normal((n_factors, d))
    X = X / np.sqrt(n_factors) + rng.standard_normal((n, d))
    f = X[:, :50] @ rng.standard_normal(50) / 5
    return X / X.std(0), f + rng.logistic(size=n) > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--columns", type=int, default=5000)
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--posterior", default="low_rank")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    X, y = make(options.rows, options.columns)
    posterior = options.posterior
    if posterior == "low_rank":
        posterior = LowRankNormal(options.rank)
    model = BayesianLogisticRegression(posterior=posterior, prior="normal")
    profile, start, cpu = cProfile.Profile(), time.perf_counter(), time.process_time()
    if options.profile:
        profile.runcall(model.fit, X, y)
    else:
        model.fit(X, y)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{options.rows} x {options.columns}, {posterior}: "
        f"{seconds:.1f} s ({cpu:.1f} s CPU), "
        f"{model.n_iter_} iterations, peak {peak:.2f} GiB, "
        f"ELBO {model.lower_bound_:.4f}, converged {model.converged_}, "
        f"gap {model.diagnostics_['gap']:.2g} nat"
    )
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    main()
