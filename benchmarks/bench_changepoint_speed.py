"""CPU seconds per row of the changepoint detector, beside a public implementation.

Run as ``python benchmarks/bench_changepoint_speed.py [part]``, with
``bayesian_changepoint_detection`` 0.2.dev1 of PyPI installed for the comparison (its
``online_changepoint_detection``: the same recursion with the same model, in numpy, with
no pruning).

Two cores, one thread, nothing else running, 22 November 2026; CPU milliseconds per row,
averaged over the series, the best of three runs:

    rows    ours, all kept   ours, default   public   ratios
      300            0.017           0.019    0.095   5.7, 4.9
     1000            0.022           0.019    0.122   5.5, 6.4
     4000            0.047           0.019    0.245   5.2, 13.0
    10000            0.100           0.017    0.583   5.8, 34.6

"All kept" is the same recursion: no hypothesis is dropped. The public code computes
posteriors only; ours also predicts every row and keeps what a look back needs. Its
floor is about 13 calls of numpy and one of the standard library for each row, 8
microseconds, and a fit's 0.4 milliseconds to begin with; the rest of the time goes
into arithmetic on rows times hypotheses. A stream that comes row by row costs 0.25 ms
per row: no two rows are computed together, and each is a call of its own.

    10^5 rows in stretches of 10^4: 0.020 ms per row in the first stretch, 0.024 to
        0.025 in all others, at most 200 hypotheses, peak memory 349 MiB after the
        first stretch and 351 MiB after the last
    vector autoregression, 8 series, order 3, 200 hypotheses: 0.97 ms per row
    robust detector, one series: 1.6 ms per row

On another machine, 25 November 2026, with other work on it (``rows``: unit noise, no
change; ``many``: one of the series shifts by 3):

    rows: standard 0.029 ms per row at once, 0.37 row by row; robust 2.1 and 2.5
    many: 1, 10 and 50 series 0.03, 0.08 and 0.35 ms per row (0.03, 0.04 and 0.08
        when new segments of many series were dropped too early, and the shift missed)
"""

import resource
import sys
import time
from functools import partial

import numpy as np

from skvi.changepoint import (
    BayesianChangepointDetector,
    Regression,
)


def series(n, d=1, seed=0):
    """Levels that change about every 500 rows, in unit noise."""
    rng = np.random.default_rng(seed)
    changes = np.cumsum(rng.random(n) < 1 / 500)
    levels = 4 * rng.standard_normal((changes[-1] + 1, d))
    return levels[changes] + rng.standard_normal((n, d))


def curve(n=100_000, step=10_000):
    """Time of each stretch of a long stream, memory, and the length of the state."""
    X = series(n)
    detector = BayesianChangepointDetector(hazard=500.0, burn_in=1000)
    print("rows so far   ms per row   hypotheses   peak memory, MiB")
    for start in range(0, n, step):
        begin = time.process_time()
        detector.partial_fit(X[start : start + step])
        spent = (time.process_time() - begin) / step
        kept = len(detector.run_lengths_)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{start + step:11,d} {1e3 * spent:12.3f} {kept:12d} {peak:18.0f}")
    print(f"changepoints found: {len(detector.changepoints_)}")


def timed(run, n):
    """Milliseconds per row, the best of three runs."""
    found = []
    for _ in range(3):
        begin = time.process_time()
        run()
        found.append((time.process_time() - begin) / n * 1e3)
    return min(found)


def compare(lengths=(300, 1000, 4000, 10_000)):
    """Both on the same series."""
    from bayesian_changepoint_detection import online_changepoint_detection as public

    print("rows   ours, all kept   ours, default   public    ratios")
    for n in lengths:
        X = series(n)
        times = []
        for options in ({"max_hypotheses": None, "min_probability": 0.0}, {}):
            detector = BayesianChangepointDetector(
                Regression(noise_scale=1.0),
                hazard=500.0,
                scaling=None,
                history=n,
                **options,
            )
            times.append(timed(partial(detector.fit, X), n))
        times.append(
            timed(
                lambda: public.online_changepoint_detection(
                    X[:, 0],  # noqa: B023
                    partial(public.constant_hazard, 500),
                    public.StudentT(1.5, 1.5, 0.25, 0),
                ),
                n,
            )
        )
        print(
            f"{n:5d} {times[0]:15.3f} {times[1]:15.3f} {times[2]:9.3f}"
            f"    {times[2] / times[0]:.1f}, {times[2] / times[1]:.1f}"
        )


def vector(n=3000):
    """A vector autoregression of 8 series and order 3, with 200 hypotheses."""
    X = series(n, 8)
    detector = BayesianChangepointDetector(
        Regression(3, across=True), min_probability=0.0, max_hypotheses=200
    )
    detector.partial_fit(X[:500])
    begin = time.process_time()
    detector.partial_fit(X[500:])
    spent = (time.process_time() - begin) / (n - 500)
    kept = len(detector.run_lengths_)
    print(f"vector autoregression: {1e3 * spent:.2f} ms per row, {kept} kept")


def robust(n=3000):
    """The robust detector on one series."""
    X = series(n)
    detector = BayesianChangepointDetector(hazard=500.0, loss="beta", burn_in=1000)
    begin = time.process_time()
    detector.fit(X)
    print(f"robust: {1e3 * (time.process_time() - begin) / n:.2f} ms per row")


def rows(n=600):
    """Both detectors, all rows at once and row by row, burn-in included."""
    X = np.random.default_rng(0).standard_normal((n, 1))
    for loss in ("log", "beta"):
        for part, size in (("at once", n), ("row by row", 1)):
            detector = BayesianChangepointDetector(loss=loss)
            begin = time.process_time()
            for i in range(0, n, size):
                detector.partial_fit(X[i : i + size])
            spent = (time.process_time() - begin) / n
            print(f"{loss}, {part}: {1e3 * spent:.2f} ms per row")


def many(n=600):
    """One of several series shifts."""
    for n_series in (1, 10, 50):
        X = np.random.default_rng(0).standard_normal((n, n_series))
        X[250:, 0] += 3.0
        detector = BayesianChangepointDetector()
        spent = timed(partial(detector.fit, X), n)
        print(f"{n_series} series: {spent:.3f} ms per row, {detector.changepoints_}")


if __name__ == "__main__":
    parts = ("compare", "vector", "robust", "rows", "many", "curve")
    for part in sys.argv[1:] or parts:
        globals()[part]()
