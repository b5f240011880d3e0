"""False alarms on the well-log data, with and without robustness.

Run as ``SKVI_DATA=/path/to/data python benchmarks/bench_changepoint_well_log.py``. The
series has 4050 rows of nuclear magnetic response from a borehole: the levels are layers
of rock, and single rows or bursts of up to six lie far below them. The orders of the
losses are the defaults, fixed on the five autoregressions
(`bench_changepoint_defaults.py`). Two rules of the detector were made after a look at
these data, so that they are no blind test of it: that the beta loss is that of
densities in units of the noise, and that changes are reported only where they are more
probable than not.

What is true? Five people marked changes on every sixth row of the series (van den Burg
and Williams 2020). A change counts as true where at least three of them marked one, and
as found where a changepoint lies within twelve rows, two of theirs. All other
changepoints are false alarms, but for those where anyone marked a change: these count
neither way.

25 November 2026, constant mean, defaults but for the threshold; changepoints, true ones
found of 9, and false alarms:

    threshold   log loss    beta loss
         0      54, 9, 32   20, 9, 8     the most probable segmentation
         0.1    55, 9, 33   20, 9, 8
         0.25   55, 9, 33   20, 9, 8
         0.5    55, 9, 33   15, 9, 3     the default
         0.75   48, 9, 28   10, 9, 1
         0.9    42, 9, 24    0, 0, 0
         0.99    9, 5, 4     0, 0, 0

So "a tenth of the false alarms, and all true changes" holds for thresholds from 0.5 to
0.75, and not below: the orders of the losses alone leave a quarter of them, weak steps
of a level that drifts, which the robust detector itself believes with a probability of
less than one half. Nor does it hold at 0.9: no row weighs more than a little under the
beta loss, so that the robust detector is never that sure. Most false alarms of the log
loss are there up to 0.9: of these it is sure. The one that is left at 0.75 is row 1034,
where a thin layer seems to begin.
"""

import json
import os
import time
from pathlib import Path

import numpy as np

from skvi.changepoint import BayesianChangepointDetector

DATA = Path(os.environ.get("SKVI_DATA", "data"))
EVERY, MARGIN = 6, 12
THRESHOLDS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


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
    for loss in ("log", "beta"):
        begin = time.process_time()
        detector = BayesianChangepointDetector(loss=loss).fit(X)
        spent = time.process_time() - begin
        print(f"{loss} loss, {spent:.1f} s")
        for threshold in THRESHOLDS:
            found = detector.set_params(threshold=threshold).changepoints_
            hits, false = count(found, true, anyone)
            print(
                f"    threshold {threshold:.2f}: {len(found)} changepoints, {hits} of "
                f"{len(true)} true ones, {false} false alarms"
            )
        print("   ", detector.set_params(threshold=0.5).changepoints_.tolist())


if __name__ == "__main__":
    main()
