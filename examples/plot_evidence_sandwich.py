"""The evidence sandwich
=====================

How good is a Bayesian model, without a validation set? Its *evidence* log p(D) measures
this, but it cannot be computed. A variational fit yields a lower bound; skvi adds an
upper bound, so that the evidence is known to lie between the two.

The script fits a logistic regression to the breast-cancer data in four ways, looks
for the best divergence by cross-validation, and draws the sandwich.
"""

import sys
import time
import warnings

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skvi
from skvi.linear_model import BayesianLogisticRegression

X, y = load_breast_cancer(return_X_y=True)

# %%
# A fit for each objective and family
# -----------------------------------
# The ELBO fits are deterministic. The EUBO fits have the means and standard deviations
# of the exact posterior, which are computed by importance sampling.


def make_model(**params):
    """A pipeline: standardize the features, then fit."""
    return make_pipeline(
        StandardScaler(),
        BayesianLogisticRegression(prior="normal", random_state=0, **params),
    )


fits = {}
for objective in ("elbo", "eubo"):
    for posterior in ("mean_field", "full_rank"):
        start = time.perf_counter()
        model = make_model(objective=objective, posterior=posterior).fit(X, y)
        seconds = time.perf_counter() - start
        bounds = skvi.evidence_bounds(model, X, y, random_state=0)
        fits[f"{objective}, {posterior}"] = (model[-1], bounds, seconds)

# %%
# The table
# ---------
# ELBO and EUBO belong to the fitted approximation: the wider apart they are, the
# less it resembles the posterior. `lower` and `upper` belong to the model: they do
# not depend on the fit, and their distance is sampling error.

header = ("fit", "ELBO", "lower", "log p(D)", "upper", "EUBO", "reliable", "fit ms")
print("{:<17}{:>9}{:>10}{:>10}{:>10}{:>9}{:>10}{:>8}".format(*header))
for name, (fitted, bounds, seconds) in fits.items():
    print(
        f"{name:<17}{fitted.lower_bound_:9.2f}{bounds.lower:10.3f}"
        f"{bounds.estimate:10.3f}{bounds.upper:10.3f}"
        f"{bounds.table['EUBO of q'].value:9.2f}{bounds.reliable!s:>10}"
        f"{1e3 * seconds:8.1f}"
    )
print()
print(bounds)
print(bounds.table)

# %%
# Which divergence predicts best?
# -------------------------------
# Divergence and order are hyperparameters like any other. The evidence cannot
# choose between them, since it does not depend on them; held-out data can.

grid = [
    {"bayesianlogisticregression__divergence": ["kl"]},
    {
        "bayesianlogisticregression__divergence": ["renyi"],
        "bayesianlogisticregression__divergence__alpha": [0.25, 0.5, 0.75, 1.5, 3.0],
    },
]
search = GridSearchCV(
    make_model(posterior="mean_field"), grid, scoring="neg_log_loss", cv=5
)
with warnings.catch_warnings():
    # Orders far below 1 leave posteriors that are wider than the prior.
    warnings.simplefilter("ignore", ConvergenceWarning)
    search.fit(X, y)

print("\nMean held-out log density, 5 folds (mean-field posterior)")
results = search.cv_results_
for params, mean, std in zip(
    results["params"],
    results["mean_test_score"],
    results["std_test_score"],
    strict=True,
):
    values = ", ".join(f"{k.split('__', 1)[1]}={v}" for k, v in params.items())
    mark = "  <- best" if params == search.best_params_ else ""
    print(f"  {values:<40} {mean:8.4f} +- {std:.4f}{mark}")

# %%
# The picture
# -----------

low, high = bounds.interval()
figure, axes = plt.subplots(
    1, 2, figsize=(10, 3.6), sharey=True, layout="constrained", width_ratios=(3, 2)
)
for axis in axes:
    axis.axvspan(low, high, color="tab:green", alpha=0.4, label="evidence_bounds")
    for row, (fitted, fit_bounds, _) in enumerate(fits.values()):
        elbo, eubo = fitted.lower_bound_, fit_bounds.table["EUBO of q"].value
        axis.plot((elbo, eubo), (row, row), color="0.75", lw=2, zorder=1)
        first = row == 0  # one entry in the legend
        for x, marker, color, label in (
            (elbo, ">", "tab:blue", "ELBO of the fit"),
            (eubo, "<", "tab:orange", "EUBO of the fit"),
        ):
            axis.scatter(
                x, row, s=60, marker=marker, color=color, label=label if first else None
            )
    axis.set_xlabel("nats")
axes[0].set_yticks(range(len(fits)), fits)
axes[0].invert_yaxis()
axes[0].legend(loc="center right", fontsize="small")
axes[0].set_title("Four fits of one model")
axes[1].set_xlim(bounds.estimate - 0.5, bounds.estimate + 0.5)
axes[1].set_title(f"log p(D) in [{low:.2f}, {high:.2f}]")
path = sys.argv[1] if len(sys.argv) > 1 else "evidence_sandwich.png"
figure.savefig(path, dpi=120)
print(f"\nThe picture is in {path}")
