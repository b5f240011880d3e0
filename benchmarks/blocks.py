"""Linear models of rows in blocks of dask, beside the same fits in memory.

    python benchmarks/blocks.py [--rows 4e6] [--features 64]

Writes X to a folder, and fits it by four worker processes of at most 1 GB, by the same
while one of them is killed, and in memory by one thread. Adds to `results/blocks.csv`:
processor and wall seconds, the largest memory of a worker in GB, and the largest
differences of coefficients: relative ones from memory, and those after the kill.
"""

import argparse
import os
import re
import signal
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster
from runs import sweep
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression

RESULTS = Path(__file__).parent / "results" / "blocks.csv"
TITLE, BLOCK = "Fits in blocks of dask and in memory", 25_000
MODELS = {
    "regression": (BayesianLinearRegression(), "numbers"),
    "logistic, N(0, 1)": (BayesianLogisticRegression(prior="normal"), "labels"),
    "logistic": (BayesianLogisticRegression(), "labels"),
}


def write(folder, n, d):
    """Write features and both targets, block by block."""
    shapes = {"X": (n, d), "labels": (n,), "numbers": (n,)}
    files = {
        k: np.lib.format.open_memmap(folder / f"{k}.npy", "w+", "f8", shape)
        for k, shape in shapes.items()
    }
    coef = np.random.default_rng(0).normal(size=d) / d**0.5
    for i in range(0, n, BLOCK):
        rng = np.random.default_rng([1, i])
        X = rng.normal(size=(min(BLOCK, n - i), d)) + 1
        rows, f = slice(i, i + len(X)), (X - 1) @ coef
        files["X"][rows] = X
        files["labels"][rows] = rng.random(len(X)) < 1 / (1 + np.exp(-f))
        files["numbers"][rows] = f + rng.normal(size=len(X))


@partial(dask.delayed, pure=False)
def load(path, i):
    return np.array(np.load(path, mmap_mode="r")[i : i + BLOCK])


def in_blocks(path):
    n, *rest = np.load(path, mmap_mode="r").shape
    starts = range(0, n, BLOCK)
    shapes = [(min(BLOCK, n - i), *rest) for i in starts]
    parts = zip(starts, shapes, strict=True)
    return da.concatenate([da.from_delayed(load(path, i), s, "f8") for i, s in parts])


def seconds(client):
    """Processor seconds of the workers and of this process, so far."""
    return sum(client.run(time.process_time).values()) + time.process_time()


def peak():
    """Largest memory of this process, in kB."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def fit_blocks(model, blocks, row):
    """Two fits by four workers, one of which is killed in the second."""
    limits = {"n_workers": 4, "threads_per_worker": 1, "memory_limit": "1GB"}
    with LocalCluster(**limits, dashboard_address=None) as c, Client(c) as client:
        client.run(lambda: __import__("skvi.linear_model"))
        begin, before = time.time(), seconds(client)
        first = clone(model).fit(*blocks)
        row["wall"], row["cpu"] = time.time() - begin, seconds(client) - before
        row["worker_GB"] = max(client.run(peak).values()) / 1e6
        pid = next(iter(client.run(os.getpid).values()))
        threading.Timer(row["wall"] / 2, os.kill, (pid, signal.SIGKILL)).start()
        begin = time.time()
        again = clone(model).fit(*blocks)
        row["wall_killed"] = time.time() - begin
    row["difference_killed"] = float(np.abs(again.coef_ - first.coef_).max())
    return first.coef_


def one_run(folder, name, n):
    """Fit one model in blocks, and in memory."""
    model, target = MODELS[name]
    paths = [folder / f"{k}.npy" for k in ("X", target)]
    row = {"model": name, "rows": n, "features": np.load(paths[0], "r").shape[1]}
    coef = fit_blocks(model, [in_blocks(path) for path in paths], row)
    begin, before = time.time(), time.process_time()
    with threadpool_limits(1):
        alone = clone(model).fit(*map(np.load, paths)).coef_
    row["wall_in_memory"] = time.time() - begin
    row["cpu_in_memory"] = time.process_time() - before
    row["difference"] = float(np.max(np.abs(coef / alone - 1)))
    return {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=float, default=4e6)
    parser.add_argument("--features", type=int, default=64)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), n := int(args.rows), args.features)
        runs, run = [(model, n) for model in MODELS], partial(one_run, Path(folder))
        for row in sweep(RESULTS, ("model", "rows"), runs, run, TITLE):
            print(row, flush=True)
