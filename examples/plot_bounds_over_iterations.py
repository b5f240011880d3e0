"""Bounds on the evidence over the iterations of a fit
======================================================

While a fit proceeds, its ELBO rises and its EUBO falls; the evidence lies between them.
The distance that remains is due to the family: independent coefficients cannot be the
posterior. ``warm_start`` continues a fit, so that one can look at it on the way.
"""

import sys
import warnings

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from skvi.linear_model import BayesianLogisticRegression

X, y = load_breast_cancer(return_X_y=True)
X = scale(X[:, :10])
warnings.simplefilter("ignore", ConvergenceWarning)  # every fit but the last ends early

# %%
# One iteration at a time
# -----------------------

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for axis, posterior in zip(axes, ("mean_field", "full_rank"), strict=True):
    model = BayesianLogisticRegression(
        prior="normal", posterior=posterior, max_iter=1, warm_start=True, random_state=0
    )
    elbo, eubo = [], []
    for _ in range(6):
        bounds = model.fit(X, y).evidence_bounds(X, y, random_state=0)
        elbo.append(model.lower_bound_)
        eubo.append(bounds.table["EUBO of q"].value)
    steps = range(1, len(elbo) + 1)
    axis.plot(steps, eubo, "s-", color="tab:orange", label="EUBO of q")
    axis.axhspan(*bounds.interval(), color="tab:green", label="log evidence")
    axis.plot(steps, elbo, "o-", color="tab:blue", label="ELBO of q")
    axis.set(xlabel="iteration", title=posterior)
    low, high = bounds.interval()
    print(
        f"{posterior:<11} ELBO {elbo[-1]:.2f}, EUBO {eubo[-1]:.2f}; "
        f"the evidence is in [{low:.2f}, {high:.2f}]"
    )

axes[0].set_ylabel("nats")
axes[0].legend(fontsize="small")
path = sys.argv[1] if len(sys.argv) > 1 else "bounds_over_iterations.png"
figure.savefig(path, dpi=120)
print(f"The picture is in {path}")
