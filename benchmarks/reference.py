"""A frozen reference: what skvi computes on small problems, and in which time.

    PYTHONPATH=. python benchmarks/reference.py check [-k text] [--jobs 2]
    PYTHONPATH=. python benchmarks/reference.py store [-k text] [--jobs 2]

Data are in reference_data.py, the table of problems in reference_problems.py, values
and tolerances in reference_values.py; results/reference.json is what is stored.

`check` runs every problem, prints the values that moved beyond their tolerance, fails
if there are any, and compares the processor seconds of each class of problems: their
sum, and the geometric mean of the ratios, both in units of a fixed mix of numpy, torch
and Python that runs before and after each problem, so that machines can be compared.
Seconds are only reported; a class that became more than 15 % slower is marked.

An intended change is accepted by storing the problems that it concerns, after a look at
what `check` prints: ``store -k linear/wide`` (a part of "class/name") leaves all others
as they are. The commit says which values moved, and why.

Each value is stored with its kind, its tolerance and perhaps a truth:

- "exact": equal to a relative 1e-6.
- "solved": from an iteration that ends with a gap to the optimum, in nats. At e
  standard deviations from it the bound is lower by e**2 / 2: coefficients may move by
  sqrt(2 gap) of their deviations, deviations by as much of themselves.
- "draws": 4 standard errors of the difference of two estimates. Where the fit itself is
  random (networks), the value is the mean of 6 seeds, the error their deviation, and a
  value outside gets a second seed.
- "lower", "upper": bounds. They may become tighter by any amount up to the truth: the
  far end of an interval of 4 errors for the log evidence, if it was reliable.
- "equal": verdicts, counts and names.

Not covered, but tested: GPUs, plots, pickles, messages, interrupts, checkpoints, warm
starts, a posterior as a prior, pruning, hazards and models that users write, metrics.
"""

import argparse
import json
import multiprocessing
import platform
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from datetime import date
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import skvi
from benchmarks.reference_problems import N_SEEDS, problems
from benchmarks.reference_values import Value, equal, pooled

RESULT = Path(__file__).parent / "results" / "reference.json"
MAX_RATIO = 1.15
# Short problems are repeated for this many processor seconds: the fastest run counts.
REPEAT_FOR = 0.3


@threadpool_limits.wrap(limits=1)
def calibrate() -> float:
    """Processor seconds of a fixed mix of numpy, torch and Python."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    A, v = rng.standard_normal((200, 200)), rng.standard_normal(50_000)
    w = torch.tensor(rng.standard_normal((50, 50)), requires_grad=True)
    start = time.process_time()
    for _ in range(8):
        np.linalg.cholesky(A @ A.T + np.eye(200))
        np.log1p(np.exp(-np.abs(v))).sum()
        sum(i * i for i in range(10_000))
        for _ in range(30):
            torch.tanh(w @ w.T).sum().backward()
    return time.process_time() - start


@threadpool_limits.wrap(limits=1)
def values_of(name: str, seed: int, wants_truth: bool = False) -> dict[str, Value]:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return problems()[name].run(seed, wants_truth)


def measure(name: str) -> tuple[dict[str, Value], float]:
    """Values of a problem or its error, and its seconds in units of the calibration."""
    seconds, units = [], [calibrate()]
    while sum(seconds) < REPEAT_FOR:
        start = time.process_time()
        try:
            values = values_of(name, 0)
        except Exception as error:
            return {"error": equal(f"{type(error).__name__}: {error}")}, np.nan
        seconds.append(time.process_time() - start)
    return values, min(seconds) / min(*units, calibrate())


def freeze(name: str) -> dict[str, Any]:
    """What is stored of a problem."""
    found, seconds = measure(name)
    if "error" in found:
        raise RuntimeError(f"{name}: {found['error'].value}")
    if (n_seeds := problems()[name].n_seeds) > 1:
        found = pooled([found, *(values_of(name, s) for s in range(1, n_seeds))])
    else:
        found = values_of(name, 0, wants_truth=True)
    values = {key: astuple(value) for key, value in found.items()}
    text = json.dumps(values, default=np.ndarray.tolist)
    values = json.loads(text, parse_float=lambda x: float(f"{float(x):.9g}"))
    return {"date": str(date.today()), "seconds": round(seconds, 3), "values": values}


def in_parallel(function: Callable, names: list[str], jobs: int) -> Iterator:
    if jobs == 1:
        yield from map(function, names)
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            yield from pool.map(function, names)


def store(names: list[str], jobs: int) -> None:
    """Store these problems, and keep the others; one line for each value."""
    kept = json.loads(RESULT.read_text())["problems"] if RESULT.exists() else {}
    kept |= zip(names, in_parallel(freeze, names, jobs), strict=True)
    record = {
        "machine": f"{platform.machine()} {platform.system()}, {date.today()}",
        "versions": {
            name: version(name) for name in ("numpy", "scikit-learn", "torch")
        },
        "calibration": round(min(calibrate() for _ in range(9)), 4),
        "problems": {name: kept[name] for name in problems() if name in kept},
    }
    text = json.dumps(record, indent=1)
    RESULT.write_text(re.sub(r"\n {5,}|\n {4}(?=\])", "", text) + "\n")


def misses(stored: dict[str, Value], new: dict[str, Value]) -> dict[str, str]:
    """What moved, and how."""
    gone = new.get("error", equal("is missing")).value
    found = {k: v.misses(new[k].value) if k in new else gone for k, v in stored.items()}
    return {key: text for key, text in found.items() if text}


def check(names: list[str], jobs: int) -> int:
    """Print what moved, and how seconds changed; return the number of moved values."""
    record = json.loads(RESULT.read_text())
    units = record["calibration"], min(calibrate() for _ in range(9))
    print(f"{skvi.__file__} against {record['machine']}")
    print("calibration {:.3f} s there, {:.3f} s here".format(*units))
    rows = []
    for name, (new, now) in zip(names, in_parallel(measure, names, jobs), strict=True):
        old = record["problems"].get(name, {"seconds": np.nan, "values": {}})
        if now > MAX_RATIO * old["seconds"]:  # by chance, perhaps
            now = min(now, measure(name)[1])
        stored = {k: Value(*v) for k, v in old["values"].items()}
        stored = stored or {"stored": equal("yes")}
        moved = misses(stored, new)
        if moved and "error" not in new and problems()[name].n_seeds > 1:
            again = misses(stored, values_of(name, N_SEEDS))
            moved = {key: text for key, text in moved.items() if key in again}
        for key, text in moved.items():
            print(f"{name}  {key}  {text}", flush=True)
        rows.append((name.split("/")[0], len(stored), len(moved), old["seconds"], now))
    print("class         problems  values  moved  seconds  ratio of sums  mean ratio")
    for kind, group in groupby(rows, key=lambda row: row[0]):
        _, sizes, moves, before, after = zip(*group, strict=True)
        before, after = np.array([before, after])[:, np.isfinite(np.add(before, after))]
        ratios = after.sum() / before.sum(), np.exp(np.mean(np.log(after / before)))
        slower = "  SLOWER" if max(ratios) > MAX_RATIO else ""
        print(
            f"{kind:14s}{len(sizes):8d}{sum(sizes):8d}{sum(moves):7d}"
            f"{after.sum() * units[1]:9.1f}{ratios[0]:15.2f}{ratios[1]:12.2f}{slower}"
        )
    return sum(row[2] for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=["store", "check"])
    parser.add_argument("-k", default="", metavar="TEXT", help='part of "class/name"')
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    names = [name for name in problems() if options.k in name]
    calibrate()  # imports, before it is timed
    act = store if options.command == "store" else check
    return int(bool(act(names, options.jobs)))


if __name__ == "__main__":
    sys.exit(main())
