"""Numbers, classes and counts
===========================

Three questions to linear models. Which measurements go with the progression of
diabetes, and how surely? How does a probability of malignancy depend on the size of a
tumor, after 20 patients and after 569? And how many accidents of a machine are to be
expected in a month, if the months of the record had different numbers of shifts?
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.preprocessing import scale

from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)

figure, (left, middle, right) = plt.subplots(
    1, 3, figsize=(10, 3.2), layout="constrained"
)

# %%
# Numbers: coefficients with intervals
# ------------------------------------

X, y = load_diabetes(return_X_y=True, as_frame=True)
model = BayesianLinearRegression().fit(scale(X), y)
names = list(X.columns)
left.errorbar(model.coef_, names, xerr=1.645 * model.coef_std_, fmt="o", ms=4)
left.axvline(0, color="black", lw=0.5)
left.set(title="Numbers: diabetes", xlabel="effect of one deviation, 90 %")
left.invert_yaxis()

# %%
# Classes: how well a probability is known
# ----------------------------------------

tumors = load_breast_cancer()
size = tumors.data[:, [0]]  # the mean radius, in millimeters
malignant = tumors.target == 0
grid = np.linspace(6, 24, 100)[:, None]
rows = np.random.default_rng(0).choice(len(size), 20, replace=False)
for name, chosen in {"20 patients": rows, "569 patients": slice(None)}.items():
    model = BayesianLogisticRegression().fit(size[chosen], malignant[chosen])
    low, high = model.predict_proba_interval(grid, coverage=0.9)[:, :, 1].T
    middle.fill_between(grid[:, 0], low, high, alpha=0.3)
    middle.plot(grid, model.predict_proba(grid)[:, 1], label=name)
    print(f"{name}: at 15 mm {model.predict_proba([[15.0]])[0, 1]:.2f}")
middle.set(title="Classes: probability of malignancy", xlabel="mean radius, mm")
middle.legend(loc="upper left")

# %%
# Counts: a rate per shift
# ------------------------

rng = np.random.default_rng(0)
months = np.arange(36)
shifts = rng.integers(20, 90, size=36)
accidents = rng.poisson(shifts * np.exp(-2.0 - 0.03 * months))
model = BayesianPoissonRegressor().fit(months[:, None], accidents, exposure=shifts)
later = np.arange(48)[:, None]
planned = np.full(48, 60)
low, high = model.predict_interval(later, coverage=0.9, exposure=planned).T
right.fill_between(later[:, 0], low, high, alpha=0.3, label="90 % of counts")
right.plot(later, model.predict(later, exposure=planned), label="mean")
right.plot(months, accidents * 60 / shifts, "k.", label="record, scaled")
right.set(title="Counts: accidents in 60 shifts", xlabel="month")
right.legend()
print(f"rate per month: {100 * np.expm1(model.coef_[0]):.1f} %")

path = sys.argv[1] if len(sys.argv) > 1 else "linear_models.png"
figure.savefig(path, dpi=120)
print(f"The picture is in {path}")
