"""Five autoregressions, two changes, and outliers on one of them
===============================================================

*The claim* (Knoblauch, Jewson and Damoulas, *Generalized Variational Inference*, slides
IX and X of section 5.2): outliers on a single series make the standard detector report
spurious changes, since the joint densities of many series become very small; the robust
detector finds the two true ones, at rows 200 and 400.

*What to read off*: the panel of run lengths. A dark diagonal is a segment that the
detector is certain to be in; it falls to 0 at a change. After an outlier the standard
detector starts anew (upper half), the robust one continues (lower half). The lowest
panels show which of three models explains the current segment. *The claim holds.*
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from skvi.changepoint import (
    BayesianChangepointDetector,
    ChangepointDisplay,
    Regression,
)

rng = np.random.default_rng(1)
X = np.zeros((700, 5))
for t in range(1, 700):
    segment = np.searchsorted([300, 500], t, side="right")
    coef, level = [(-0.5, 0.3), (0.75, -0.25), (-0.7, 0.3)][segment]
    X[t] = coef * X[t - 1] + level + rng.standard_normal(5)
X = X[100:]
outliers = np.sqrt(5) * rng.standard_t(4, 600)
X[:, 0] += np.where(outliers > 3, outliers, 0.0)

models = [Regression(), Regression(1), Regression(3)]
figure, axes = plt.subplots(
    8,
    sharex=True,
    figsize=(9, 12),
    height_ratios=[3, 1, 2, 1] * 2,
    layout="constrained",
)
for half, loss in zip(np.split(axes, 2), ("log", "beta"), strict=True):
    detector = BayesianChangepointDetector(models, loss=loss).fit(X)
    rows = detector.changepoints_.tolist()
    print(f"{loss} loss: changepoints at rows {rows}")
    for first, model in zip([0, *rows], detector.segment_models_, strict=True):
        print(f"    from row {first:3d} on: {models[model]}")
    ChangepointDisplay.from_estimator(detector, X, axes=half, name=f"{loss} loss")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "autoregressions.png", dpi=100)
