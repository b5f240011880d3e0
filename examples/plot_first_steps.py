"""From a data set to a decision
=============================

Ten measurements of 442 patients, and how far their diabetes advanced in a year. Whom
should the clinic call back early? And are all ten measurements needed to know? The left
panel shows the forecasts for patients that the fit has not seen, the right one the
evidence of four groups of measurements.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from skvi.linear_model import BayesianLinearRegression

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
train, test, y_train, y_test = train_test_split(X, y, random_state=0)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")

# %%
# Forecasts
# ---------
# The clinic calls a patient if the progression exceeds 250 with a probability of at
# least a fifth.

model = BayesianLinearRegression().fit(train, y_train)
mean = model.predict(test)
low, high = model.predict_interval(test, coverage=0.9).T
called = (model.sample_y(test, 4000, random_state=0) > 250).mean(axis=1) >= 0.2
inside = np.mean((low <= y_test) & (y_test <= high))
print(f"{called.sum()} of {len(test)} are called; {inside:.0%} lie in their intervals")
for group, color, label in [(~called, "C0", "wait"), (called, "C1", "call")]:
    rank = mean.argsort().argsort()[group]
    left.vlines(rank, low[group], high[group], color=color, alpha=0.3)
    left.plot(rank, y_test[group], ".", color=color, label=label)
left.axhline(250, color="black", lw=0.5)
left.set(
    title="90 % intervals, and what happened",
    xlabel="new patients, by forecast",
    ylabel="progression",
)
left.legend(loc="upper left")

# %%
# Which measurements?
# -------------------

groups = [["bmi"], ["bmi", "bp"], ["bmi", "bp", "s5"], [*X.columns]]
for place, columns in enumerate(groups):
    fit = BayesianLinearRegression().fit(X[columns], y)
    evidence = fit.evidence_bounds(X[columns], y).estimate
    print(f"{', '.join(columns)}: log evidence {evidence:.1f}")
    right.plot(evidence, place, "o", color="C0")
    right.annotate(
        f"{evidence:.1f}", (evidence, place), (8, -4), textcoords="offset points"
    )
names = [", ".join(columns) if len(columns) < 10 else "all ten" for columns in groups]
right.set(
    yticks=range(len(groups)),
    yticklabels=names,
    xlabel="log evidence, nats",
    title="Which measurements?",
    xlim=(-2475, -2400),
    xticks=[-2460, -2440, -2420, -2400],
    ylim=(-0.5, 3.5),
)

path = sys.argv[1] if len(sys.argv) > 1 else "first_steps.png"
figure.savefig(path, dpi=120)
print(f"The picture is in {path}")
