"""Which model do the data support?
================================

Which features, and how strongly should the prior shrink the coefficients to zero?
Usually a validation set or cross-validation answers. A Bayesian model can also be
judged on its training data alone, by its *evidence* p(D): the probability that it gave
to the labels before it saw them. A model with too many features, or too wide a prior,
wasted probability on labels that did not occur, and pays for it.

The script compares nine logistic regressions on the breast-cancer data: three sets of
features times three prior scales.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skvi
from skvi.linear_model import BayesianLogisticRegression
from skvi.plotting import EvidenceBoundsDisplay, LossCurveDisplay
from skvi.priors import Normal

data = load_breast_cancer()
X, y = data.data, data.target

# %%
# Nine models
# -----------
# Every image of a tumour is described by ten quantities of its cell nuclei. The data
# hold their means, the standard errors of these, and the "worst" values (means of the
# three largest).

groups = np.array([name.split()[0] for name in data.feature_names])
columns = {
    "10 means": groups == "mean",
    "10 worst": groups == "worst",
    "all 30": np.ones(len(groups), dtype=bool),
}


def make_model(scale, **params):
    """A pipeline: standardize the features, then fit."""
    regression = BayesianLogisticRegression(
        prior=Normal(scale=scale), random_state=0, **params
    )
    return make_pipeline(StandardScaler(), regression)


bounds, held_out = {}, {}
for features, chosen in columns.items():
    for scale in (0.3, 1.0, 3.0):
        name = f"{features}, scale {scale:g}"
        model = make_model(scale).fit(X[:, chosen], y)
        bounds[name] = skvi.evidence_bounds(
            model, X[:, chosen], y, precision=0.1, random_state=0
        )
        scores = cross_val_score(
            make_model(scale), X[:, chosen], y, cv=5, scoring="neg_log_loss"
        )
        held_out[name] = scores.mean()

# %%
# The table
# ---------
# Each evidence lies in its interval, to within two standard errors. The intervals are
# far narrower than the differences between the models, so the order is not in doubt.
# Beside them stands what cross-validation says, from five more fits for each model: the
# mean log probability of a held-out label.

order = sorted(bounds, key=lambda name: -bounds[name].estimate)
print("{:<22}{:>20}{:>10}{:>12}".format("model", "log p(D)", "reliable", "5 folds"))
for name in order:
    low, high = bounds[name].interval()
    print(
        f"{name:<22}{f'{low:.2f} to {high:.2f}':>20}"
        f"{bounds[name].reliable!s:>10}{held_out[name]:12.4f}"
    )

by_folds = sorted(held_out, key=lambda name: -held_out[name])
print(f"\nBest by evidence: {order[0]}; by cross-validation: {by_folds[0]}")

# %%
# How sure?
# ---------
# If the nine models were equally plausible beforehand, the evidences are, up to a
# common factor, their probabilities afterwards. The lower end of the best one's
# interval and the upper ends of the others bound its probability from below (as far as
# the intervals hold); ELBOs alone could not, since they give no upper ends.

best = bounds[order[0]].interval()[0]
others = [bounds[name].interval()[1] for name in order[1:]]
share = 1 / (1 + np.exp(np.array(others) - best).sum())
print(f"Probability of the best of the nine models: at least {share:.2f}")

# %%
# The pictures
# ------------
# On the left the nine sandwiches, in nats below the best one; on this axis they are too
# thin to be seen. At the top right the best three alone: arrow heads show ELBO and EUBO
# of the fitted normal posterior, which enclose the evidence less tightly. Below, the
# best model is fitted twice. The natural gradient needs few iterations; the stochastic
# solver takes 100 small gradient steps in each of its own. Both end at the same value.

figure, axes = plt.subplot_mosaic(
    [["nine", "best"], ["nine", "loss"]],
    figsize=(15, 7),
    layout="constrained",
    width_ratios=(5, 4),
    height_ratios=(1, 1),
)
ranked = {name: bounds[name] for name in order}
EvidenceBoundsDisplay.from_bounds(ranked, ax=axes["nine"], reference=order[0])
axes["nine"].set_title("Evidence of nine models")
best_three = {name: bounds[name] for name in order[:3]}
EvidenceBoundsDisplay.from_bounds(best_three, ax=axes["best"], reference=order[0])
axes["best"].get_legend().remove()
axes["best"].set_title("The best three")

ends = {}
for solver in ("natural_gradient", "stochastic"):
    model = make_model(1.0, solver=solver).fit(X, y)
    LossCurveDisplay.from_estimator(model, name=solver, ax=axes["loss"])
    ends[solver] = model[-1].loss_curve_[-1]
axes["loss"].legend(loc="upper right", fontsize="small")
axes["loss"].set(title="Its fit, by two solvers", xlabel="iteration")
print("\nNegative ELBO at the end: ", end="")
print(", ".join(f"{name} {value:.3f}" for name, value in ends.items()))

path = sys.argv[1] if len(sys.argv) > 1 else "model_comparison.png"
figure.savefig(path, dpi=120)
print(f"The picture is in {path}")
