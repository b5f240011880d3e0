"""Polynomial degree and prior scale, without folds
================================================

How many powers of x does a curve need, and how strongly should the prior shrink their
coefficients to zero? `EvidenceSearch` fits every candidate once, to all data, and
bounds the probability that each assigned to the data before it saw them, its
*evidence*. It decides only what the bounds can decide.

The script searches over degrees and scales for outcomes that are yes or no, so that no
evidence has a closed form, and compares with cross-validation.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import PolynomialFeatures

from skvi.linear_model import BayesianLogisticRegression
from skvi.model_selection import EvidenceSearch
from skvi.plotting import EvidenceSearchDisplay

# %%
# The data
# --------
# The log odds of "yes" are a wave. No polynomial is the truth: the question is how many
# powers 300 binary outcomes can support.

rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, (300, 1))
y = (rng.uniform(size=300) < expit(2 * np.sin(4 * x[:, 0]))).astype(int)

model = Pipeline(
    [
        ("powers", PolynomialFeatures(include_bias=False)),
        ("fit", BayesianLogisticRegression(random_state=0, prior="normal")),
    ]
)
grid = {"powers__degree": [1, 2, 3, 4, 5, 6], "fit__prior__scale": [1.0, 3.0, 10.0]}

# %%
# The search
# ----------
# With `verbose=1` it reports its progress: all candidates get a cheap pass, and only
# those that may be the best get tighter bounds.

search = EvidenceSearch(model, grid, random_state=0, verbose=1).fit(x, y)

table = pd.DataFrame(search.results_).sort_values("rank_evidence")
table = table.rename(columns=lambda name: name.rpartition("__")[2])
table["interval"] = [
    f"{low:.2f} to {high:.2f}"
    for low, high in zip(table["interval_lower"], table["interval_upper"], strict=True)
]
table["probability"] = [
    f"{low:.3f} to {high:.3f}"
    for low, high in zip(
        table["probability_lower"], table["probability_upper"], strict=True
    )
]
columns = ["degree", "scale", "interval", "probability", "n_runs", "contender"]
print(table[columns].to_string(index=False))

# %%
# Cross-validation asks another question: how well does a model predict rows that it has
# not seen? It needs five fits for each candidate, and its scores have errors as well,
# which it does not report: the variation over the five folds is a rough guide.

folds = GridSearchCV(model, grid, scoring="neg_log_loss").fit(x, y)
scores, best = folds.cv_results_, folds.best_index_
error = scores["std_test_score"][best] / np.sqrt(5)
near = np.sum(scores["mean_test_score"] > scores["mean_test_score"][best] - error)
print(f"\nBest by cross-validation: {folds.best_params_}")
print(f"Candidates within one standard error of it: {near} of {len(table)}")

# %%
# The pictures
# ------------
# On the left all candidates: what lies left of the dashed line is excluded. At the top
# right the best of them from close by, with their bounds. Below, the data and the
# probability of "yes" under the model with the highest estimate.

figure, axes = plt.subplot_mosaic(
    [["all", "best"], ["all", "curve"]], figsize=(15, 9), layout="constrained"
)
EvidenceSearchDisplay.from_search(search, ax=axes["all"])
axes["all"].set_title("Log evidence of 18 models")
EvidenceSearchDisplay.from_search(search, ax=axes["best"], max_models=6, reach=0.3)
axes["best"].get_legend().remove()
axes["best"].set_title("The best six")

curve = axes["curve"]
line = np.linspace(-1, 1, 200)[:, None]
curve.plot(x[:, 0], y + 0.03 * rng.normal(size=300), ".", color="0.7", label="data")
truth = expit(2 * np.sin(4 * line[:, 0]))
curve.plot(line[:, 0], truth, "k--", label="truth")
name = "degree {powers__degree}, scale {fit__prior__scale:g}".format(
    **search.best_params_
)
curve.plot(line[:, 0], search.predict_proba(line)[:, 1], label=name)
curve.set(xlabel="x", ylabel="probability of yes", xticks=[-1, -0.5, 0, 0.5, 1])
curve.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, frameon=False)

path = sys.argv[1] if len(sys.argv) > 1 else "evidence_search.png"
figure.savefig(path, dpi=120)
print(f"The picture is in {path}")
