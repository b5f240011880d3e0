"""False alarms on the well-log data, with and without robustness.

Run as ``SKVI_DATA=/path/to/data python benchmarks/bench_changepoint_well_log.py``. The
series has 4050 rows of nuclear magnetic response from a borehole: the levels are layers
of rock, and single rows or bursts of up to six lie far below them. The orders of the
losses are the defaults, fixed on the five autoregressions
(`bench_changepoint_defaults.py`).

What is true? Five people marked changes on every sixth row of the series (van den Burg
and Williams 2020). A change counts as true where at least three of them marked one, and
as found where a changepoint lies within twelve rows, two of theirs. All other
changepoints are false alarms, but for those where anyone marked a change: these count
neither way.

TODO
"""

import json
import os
import time
from pathlib import Path

import numpy as np

from skvi.changepoint import Autoregression, BayesianChangepointDetector, ConstantMean

DATA = Path(os.environ.get("SKVI_DATA", "data"))
EVERY, MARGIN = 6, 12


def marks():
    """Rows that three people marked, and rows that anyone marked."""
    people = json.loads((DATA / "tcpd" / "annotations.json").read_text())["well_log"]
    anyone = np.array(sorted({EVERY * m for found in people.values() for m in found}))
    true = []
    for m in anyone:
        votes = sum(
            any(abs(EVERY * x - m) <= MARGIN for x in found)
            for found in people.values()
        )
        if votes >= 3 and (not true or m - true[-1] > 2 * MARGIN):
            true.append(int(m))
    return np.array(true), anyone


def count(changepoints, true, anyone):
    """True changes found, and false alarms."""
    hits = sum(np.abs(changepoints - t).min(initial=99) <= MARGIN for t in true)
    false = sum(np.abs(anyone - c).min() > MARGIN for c in changepoints)
    return int(hits), int(false)


def main():
    """Print a line for each detector."""
    X = np.loadtxt(DATA / "well-log" / "well.txt", delimiter=",").reshape(-1, 1)
    true, anyone = marks()
    print(f"{len(true)} true changes: {true.tolist()}")
    for name, models in {
        "constant mean": ConstantMean(),
        "autoregression": Autoregression(),
    }.items():
        for loss in ("log", "beta"):
            begin = time.process_time()
            detector = BayesianChangepointDetector(models, loss=loss).fit(X)
            spent = time.process_time() - begin
            hits, false = count(detector.changepoints_, true, anyone)
            print(
                f"{name}, {loss}: {len(detector.changepoints_)} changepoints, {hits} "
                f"of {len(true)} true ones, {false} false alarms, {spent:.1f} s"
            )
            print("   ", detector.changepoints_.tolist())


if __name__ == "__main__":
    main()
