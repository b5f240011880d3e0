"""Linear models of rows in blocks of dask, beside the same fits in memory.

    python benchmarks/blocks.py [4e6]

Writes X to a folder, and fits it by four worker processes of at most 1 GB, by the same
while one of them is killed, and in memory by one thread. Adds to `results/blocks.csv`:
processor and wall seconds, the largest memory of a worker in GB, and the largest
differences of coefficients: relative ones from memory, and those after the kill.
"""

import os
import re
import signal
import sys
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
TITLE, WIDTH, BLOCK = "Fits in blocks of dask and in memory", 64, 25_000
MODELS = {
    "logistic, N(0, 1)": (BayesianLogisticRegression(prior="normal"), "labels"),
    "logistic": (BayesianLogisticRegression(), "labels"),
    "regression": (BayesianLinearRegression(), "numbers"),
}


def write(folder, n):
    """Write features and both targets, block by block."""
    shapes = {"X": (n, WIDTH), "labels": (n,), "numbers": (n,)}
    new = partial(np.lib.format.open_memmap, mode="w+", dtype="f8")
    files = {k: new(folder / f"{k}.npy", shape=shape) for k, shape in shapes.items()}
    coef = np.random.default_rng(0).normal(size=WIDTH) / WIDTH**0.5
    for i in range(0, n, BLOCK):
        rng, rows = np.random.default_rng([1, i]), slice(i, i + BLOCK)
        X = rng.normal(size=files["X"][rows].shape) + 1
        f, files["X"][rows] = (X - 1) @ coef, X
        files["labels"][rows] = rng.random(len(X)) < 1 / (1 + np.exp(-f))
        files["numbers"][rows] = f + rng.normal(size=len(X))


@partial(dask.delayed, pure=False)
def load(path, i):
    return np.array(np.load(path, mmap_mode="r")[i : i + BLOCK])


def in_blocks(path):
    rows = np.load(path, mmap_mode="r")
    starts = range(0, len(rows), BLOCK)
    parts = [(load(path, i), rows[i : i + BLOCK].shape, "f8") for i in starts]
    return da.concatenate([da.from_delayed(*part) for part in parts])


def seconds(client):
    """Processor seconds so far: of all processes, and of the tasks in the workers."""
    every = sum(client.run(time.process_time).values()) + time.process_time()
    ask = partial(client.submit, time.thread_time, pure=False)
    tasks = [ask(workers=[w]) for w in client.scheduler_info()["workers"]]
    return np.array([every, sum(client.gather(tasks))])


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
        row["wall"] = time.time() - begin
        row["cpu"], row["cpu_tasks"] = map(float, seconds(client) - before)
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
    row = {"model": name, "rows": n, "features": WIDTH}
    coef = fit_blocks(model, [in_blocks(path) for path in paths], row)
    begin, before = time.time(), time.process_time()
    with threadpool_limits(1):
        alone = clone(model).fit(*map(np.load, paths)).coef_
    row["wall_in_memory"] = time.time() - begin
    row["cpu_in_memory"] = time.process_time() - before
    row["difference"] = float(np.max(np.abs(coef / alone - 1)))
    return {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()}


if __name__ == "__main__":
    n = int(float(sys.argv[1])) if sys.argv[1:] else 4_000_000
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), n)
        runs, run = [(model, n) for model in MODELS], partial(one_run, Path(folder))
        for row in sweep(RESULTS, ("model", "rows"), runs, run, TITLE):
            print(row, flush=True)
