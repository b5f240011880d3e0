"""Time and memory of a network's predictions beside a loop written by hand.

    python benchmarks/bench_prediction.py
    python benchmarks/bench_prediction.py --rows 20000 --repeats 20

Means and standard deviations of 100,000 rows with 8 features over 100 networks with 50
relu units. The loop goes over blocks of 8,192 rows and over networks, into buffers
that are made once, and sums outputs and their squares. Both run alternately in one
process, with one thread each (more with ``--threads``); the median of the pairwise
ratios is quoted. Memory is the peak of the resident set of a fresh process above its
level before the prediction, sampled every 2 ms; X is not counted.

Measured 2026-11-22 on two shared cores of an AMD EPYC with AVX-512 (torch 2.13, one
thread): ratio 0.94 in float32 (0.20 s against 0.21) and 0.84 in float64 (0.57 s against
0.58), one row 0.75 and 1.2 ms, peaks of 2 to 3 MiB beyond X. Before blocks of 192 rows
shared products and buffers: 0.75 and 0.81 s, one row 1.2 and 0.9 ms.
"""

import argparse
import os
import platform
import subprocess
import sys
import warnings
from datetime import date

import numpy as np
import torch
from bench_logistic import peak_beyond, seconds

from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor

N_FEATURES, N_UNITS, BLOCK = 8, 50, 8192


def fit(estimator, dtype):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, N_FEATURES)).astype(dtype)
    y = np.sin(X[:, 0]) + X[:, 1] > 0
    model = estimator(hidden_layer_sizes=N_UNITS, max_iter=3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three epochs do not converge
        return model.fit(X, y)


def hand_written(model, X):
    """Mean and standard deviation of the first rows' outputs, noise included."""
    theta, X = torch.from_numpy(model._theta), torch.from_numpy(X)
    n_draws, n_rows, dtype = len(theta), len(X), theta.dtype
    blocks = model._model.predictor.layout.unpack(theta)
    first = torch.cat([blocks["coef_0"], blocks["intercept_0"][:, None]], 1)
    last, shift = blocks["coef_1"][..., 0].clone(), blocks["intercept_1"][:, 0]
    shift = shift.tolist()
    hidden = torch.empty(BLOCK, N_UNITS, dtype=dtype)
    output = torch.empty(BLOCK, dtype=dtype)
    total, squares = torch.zeros(2, n_rows, dtype=dtype)
    with torch.inference_mode():
        X = torch.cat([X, torch.ones(n_rows, 1, dtype=dtype)], 1)
        for start in range(0, n_rows, BLOCK):
            x = X[start : start + BLOCK]
            h, f = hidden[: len(x)], output[: len(x)]
            s, q = total[start : start + BLOCK], squares[start : start + BLOCK]
            for j in range(n_draws):
                torch.mm(x, first[j], out=h).relu_()
                torch.mv(h, last[j], out=f).add_(shift[j])
                s.add_(f)
                q.addcmul_(f, f)
        mean = total / n_draws
        variance = (squares - n_draws * mean**2) / (n_draws - 1)
        units = model._model.units
        variance = variance * units.y_scale**2 + model.noise_scale_**2
        mean = mean * units.y_scale + units.y_mean
    return mean.numpy(), variance.sqrt().numpy()


def compare(dtype, n_rows, repeats):
    model = fit(BayesianMLPRegressor, dtype)
    X = np.random.default_rng(1).standard_normal((n_rows, N_FEATURES)).astype(dtype)

    def ours():
        return model.predict(X, return_std=True)

    def reference():
        return hand_written(model, X)

    for found, expected in zip(ours(), reference(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    pairs = [(seconds(reference), seconds(ours)) for _ in range(repeats)]
    base, time = np.median(pairs, axis=0)
    low, mid, high = np.quantile([b / a for a, b in pairs], [0.1, 0.5, 0.9])
    one = np.median([seconds(lambda: model.predict(X[:1], True)) for _ in range(100)])
    print(
        f"{np.dtype(dtype).name:<8} {base:9.3f} {time:9.3f} {mid:7.2f}  "
        f"[{low:.2f}, {high:.2f}] {one * 1e3:9.2f}",
        flush=True,
    )


MEMORY = {
    "predict": lambda model, X: model.predict(X, return_std=True),
    "predict_log_density": lambda model, X: model.predict_log_density(X, X[:, 0]),
    "predict_proba": lambda model, X: model.predict_proba(X),
}


def report_memory(method, n_rows):
    is_class = method == "predict_proba"
    model = fit(BayesianMLPClassifier if is_class else BayesianMLPRegressor, "float32")
    X = np.random.default_rng(1).standard_normal((n_rows, N_FEATURES), "float32")
    MEMORY[method](model, X[:1000])  # loads the libraries
    extra = peak_beyond(lambda: MEMORY[method](model, X))
    print(f"{method}: peak {extra:.0f} MiB beyond X of {X.nbytes / 2**20:.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", choices=MEMORY)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory:
        report_memory(options.memory, options.rows)
        return
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores")
    print(
        f"{'dtype':<8} {'by hand s':>9} {'skvi s':>9} {'ratio':>7}  [10 %, 90 %] "
        f"{'1 row ms':>9}"
    )
    for dtype in ("float32", "float64"):
        compare(dtype, options.rows, options.repeats)
    for method in MEMORY:  # a fresh process each: freed memory is reused
        command = [sys.executable, __file__, "--memory", method]
        subprocess.run([*command, "--rows", str(options.rows)], check=True)


if __name__ == "__main__":
    main()
