"""Which columns matter, and predictions that do not choose
========================================================

Ten measurements of 442 patients, and how their diabetes progressed in a year. Any of
them may matter: `SubsetSearch` weighs all 1,024 subsets, each of which is a Bayesian
regression with an evidence of its own. The script shows the probability of every
column, and compares predictions that average over all subsets with those of the most
probable one, on patients that the fits have not seen.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import ShuffleSplit

from skvi.linear_model import BayesianLinearRegression
from skvi.model_selection import SubsetSearch

# %%
# The probability of every column
# -------------------------------
# Every *number* of columns is equally likely before the data, or every *subset*.

X, y = load_diabetes(return_X_y=True, as_frame=True)
priors = {"each number of columns": "beta_binomial", "each subset": 0.5}
searches = {
    name: SubsetSearch(
        BayesianLinearRegression(), model_prior=prior, random_state=0
    ).fit(X, y)
    for name, prior in priors.items()
}
for name, search in searches.items():
    best = search.results_["columns"][0]
    print(f"Equal prior probability of {name}:")
    print(f"  best subset: {', '.join(X.columns[best])}", end=", ")
    print(f"probability {search.results_['probability'][0]:.2f}")

# %%
# Averages and the best subset
# ----------------------------
# From few patients the best subset is a gamble. The score is the mean log density of
# the others: the larger, the better.

splits = ShuffleSplit(20, train_size=50, random_state=0)
model = BayesianLinearRegression()
scores = []
for train, test in splits.split(X):
    rows = X.iloc[train], y.iloc[train]
    search = SubsetSearch(model, model_prior=0.5, random_state=0).fit(*rows)
    best = X.columns[search.results_["columns"][0]]
    model.fit(rows[0][best], rows[1])
    averaged = search.predict_log_density(X.iloc[test], y.iloc[test])
    single = model.predict_log_density(X[best].iloc[test], y.iloc[test])
    scores.append((single.mean(), averaged.mean()))
gain = np.diff(scores)[:, 0]
print(f"Averages are better by {gain.mean():.3f} nats a patient", end=", ")
print(f"in {np.sum(gain > 0)} of {len(gain)} splits")

# %%
# The picture
# -----------

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
places = np.arange(X.shape[1])
for shift, (name, search) in zip((-0.2, 0.2), searches.items(), strict=True):
    left.barh(places + shift, search.inclusion_, height=0.4, label=name)
left.axvline(0.5, color="0.5", linestyle=":")
left.set_yticks(places, X.columns)
left.invert_yaxis()
left.set(xlabel="posterior probability of the column", xlim=(0, 1))
figure.legend(title="equally likely before", loc="outside lower left", ncols=2)
single, averaged = np.transpose(scores)
right.plot(single, averaged, "o")
ends = np.min(scores) - 0.01, np.max(scores) + 0.01
right.plot(ends, ends, color="0.5", linestyle=":")
right.set(xlim=ends, ylim=ends, aspect="equal")
right.set(xlabel="log score of the best subset", ylabel="log score of the average")
right.set_title("50 patients to learn from, 20 times")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "subset_search.png", dpi=100)
