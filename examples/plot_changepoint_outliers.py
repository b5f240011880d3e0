"""Changepoints that are none: well-log and Nile, with and without robustness
==========================================================================

A drill passes through layers of rock, and the level of the signal identifies the layer;
now and then the instrument fails for a few rows. A detector that treats every surprise
as a change reports the failures as well. Under the beta loss a row that nothing
explains has almost no weight, however far away it is.

*What to read off*: the list of changepoints, each with the number of changes that are
expected within five rows of it: near 1 is certain, below 0.5 is not reported. Bands are
one-step predictions; where they swing after a spike, the detector has learned from it.
On the Nile, whose only change (around the first dam at Aswan) no outlier disturbs, both
detectors agree: robustness costs little where it is not needed.

Run as::

    python examples/plot_changepoint_outliers.py picture.png

with the environment variable ``SKVI_DATA`` naming a folder that holds
``well-log/well.txt``; without it, layers with failures are simulated.
"""

import os
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
import pandas as pd

from skvi.changepoint import BayesianChangepointDetector, ChangepointDisplay

# Annual flow of the Nile at Aswan, 1871 to 1970, in 10^8 cubic meters.
NILE = """
1120 1160 963 1210 1160 1160 813 1230 1370 1140 995 935 1110 994 1020 960 1180
799 958 1140 1100 1210 1150 1250 1260 1220 1030 1100 774 840 874 694 940 833 701
916 692 1020 1050 969 831 726 456 824 702 1120 1100 832 764 821 768 845 864 862
698 845 744 796 1040 759 781 865 845 944 984 897 822 1010 771 676 649 846 812
742 801 1040 860 874 848 890 744 749 838 1050 918 986 797 923 975 815 1020 906
901 1170 912 746 919 718 714 740
"""


def well_log():
    """The series, or one like it."""
    path = Path(os.environ.get("SKVI_DATA", "")) / "well-log" / "well.txt"
    if path.exists():
        return np.loadtxt(path, delimiter=",").reshape(-1, 1)[1500:2900]
    rng = np.random.default_rng(0)
    levels = np.repeat([130.0, 115.0, 131.0, 120.0, 137.0], 200)
    X = levels + 2.5 * rng.standard_normal(1000)
    for row in (60, 310, 311, 312, 550, 551, 860):
        X[row] -= 50
    return X[:, None]


# %%
# Layers of rock
# --------------

X = well_log()
detectors = {
    loss: BayesianChangepointDetector(loss=loss).fit(X) for loss in ("log", "beta")
}
for loss, detector in detectors.items():
    print(f"{loss} loss: {len(detector.changepoints_)} changepoints")
    p = detector.change_probability_
    for row in detector.changepoints_:
        expected = p[max(row - 5, 0) : row + 6].sum()
        print(f"    row {row:4d}: {expected:.2f} changes expected around it")

display = ChangepointDisplay.from_estimator(
    detectors["beta"], X, name="layers of rock: the robust detector"
)
for row in set(detectors["log"].changepoints_) - set(detectors["beta"].changepoints_):
    display.axes_[0].axvline(row, color="0.6", lw=0.8, ls=":", zorder=1)
display.axes_[0].set_title(
    "layers of rock: robust changepoints (dashed), others of the log loss (dotted)"
)
display.figure_.savefig(sys.argv[1] if len(sys.argv) > 1 else "outliers.png", dpi=120)

# %%
# The Nile
# --------
# The index of the DataFrame comes back as the labels of changepoints.

flow = pd.DataFrame(
    {"flow": np.array(NILE.split(), float)},
    index=pd.RangeIndex(1871, 1971, name="year"),
)
for loss in ("log", "beta"):
    detector = BayesianChangepointDetector(loss=loss).fit(flow)
    found = detector.changepoint_labels_.tolist()
    mean, std = detector.predict_next(return_std=True)
    print(f"Nile, {loss} loss: {found}; 1971 would be {mean[0]:.0f} +- {std[0]:.0f}")
