"""When did the air of London change? 29 stations at once
======================================================

Daily means of a pollutant at 29 stations, August 2002 to August 2003; on 17 February
2003 the congestion charge began. As Knoblauch and Damoulas (2018) did, weekday means
are taken off and series standardized. Two kinds of models compete in every segment: all
stations keep to their own past, or a vector autoregression couples them.

*What to read off*: dates of changes come with their probability, and the panel of
models says whether stations move together. A date near the charge is not yet its
effect: weather changes air, too. Dates that only the standard detector reports rest on
a few extreme days.

Run as::

    python examples/plot_changepoint_london.py picture.png

with ``SKVI_DATA`` naming a folder that holds
``london-air-pollution/london_2h_29stations.csv.gz``; without it, a year is simulated.
"""

import os
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
import pandas as pd

from skvi.changepoint import (
    BayesianChangepointDetector,
    ChangepointDisplay,
    Regression,
)

N_STATIONS = 8  # of 29, evenly spaced, so that the script takes seconds


PATH = Path(os.environ.get("SKVI_DATA", "")) / "london-air-pollution"
PATH = PATH / "london_2h_29stations.csv.gz"


def air():
    """Daily means of the stations, by date."""
    days = pd.date_range("2002-08-17", periods=366, freq="D", name="day")
    if PATH.exists():
        hours = pd.read_csv(PATH).drop(columns="t")
        daily = hours.to_numpy().reshape(366, 12, -1).mean(1)
        return pd.DataFrame(daily, index=days, columns=hours.columns)
    rng = np.random.default_rng(0)
    daily = np.full((366, 29), 50.0)
    for t in range(1, 366):
        # What is left from yesterday, at the station and elsewhere.
        level = 50 if t < 184 else 65
        rest = 0.3 * daily[t - 1] + 0.3 * daily[t - 1].mean() - 0.6 * level
        daily[t] = level + rest + 10 * rng.standard_normal(29)
    return pd.DataFrame(daily, index=days).add_prefix("station ")


daily = air().iloc[:, :: 29 // N_STATIONS].iloc[:, :N_STATIONS]
weekday = daily.groupby(daily.index.strftime("%a")).transform("mean")
X = (daily - weekday) / (daily - weekday).std()

models = [Regression(1), Regression(1, across=True)]
found = {}
for loss in ("log", "beta"):
    found[loss] = detector = BayesianChangepointDetector(
        models, loss=loss, max_hypotheses=60
    ).fit(X)
    print(f"{loss} loss:")
    p = detector.change_probability_
    for row, label in zip(
        detector.changepoints_, detector.changepoint_labels_, strict=True
    ):
        expected = p[max(row - 5, 0) : row + 6].sum()
        print(f"    {pd.Timestamp(label):%d %B %Y}: {expected:.2f} changes around it")
    print("    present model:", models[int(detector.model_posterior_.argmax())])

display = ChangepointDisplay.from_estimator(
    found["beta"],
    X,
    name=("" if PATH.exists() else "simulated ") + "air of London, robust detector",
)
charge = pd.Timestamp("2003-02-17")
display.axes_[0].axvline(charge, color="0.4", lw=1.5, ls=":")
display.axes_[0].text(charge, display.axes_[0].get_ylim()[1], " charge", va="top")
picture = sys.argv[1] if len(sys.argv) > 1 else "london.png"
display.figure_.savefig(picture, dpi=120)
