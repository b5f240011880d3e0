"""
Samples that are refined, one scale after the other
====================================================

The posterior of one weight has four modes, and the closest normal covers all of them.
:class:`~skvi.posteriors.Refined` draws a coarse part of the weight from that normal,
fits a normal to what is left, draws the next part from that, and so on. The samples
find the modes.

The right panel shows the bound at every gradient step of a logistic regression under
a factorized normal: it rises where a fit begins, after each part that is drawn, as the
stairs in Havasi et al. (2021), figure 4.
"""

# %%
# Four modes
# ----------
# With ``ratio=0.8`` and two parts the first has the prior variance .8, the second .2.

import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from skvi.inference import VariationalInference
from skvi.linear_model import BayesianLogisticRegression
from skvi.posteriors import Refined

modes = torch.tensor([-1.5, -0.5, 0.5, 1.5], dtype=torch.float64)


def log_density(parameters):
    w = parameters["w"]
    near = -((w[:, None] - modes) ** 2) / (2 * 0.2**2)
    prior = torch.distributions.Normal(0.0, 1.0).log_prob(w)
    return torch.logsumexp(near, 1) + prior


line = np.linspace(-3, 3, 601)
exact = log_density({"w": torch.from_numpy(line)}).exp().numpy()
families = {"a normal": "full_rank", "refined samples": Refined(n_samples=2000)}
figure, axes = plt.subplots(1, 3, figsize=(14, 3.5), layout="constrained")
for axis, (name, family) in zip(axes[:2], families.items(), strict=True):
    model = VariationalInference(
        log_density, {"w": ()}, posterior=family, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a normal is far off, and says so
        draws = model.fit().sample_posterior(2000, random_state=0)["w"]
    axis.hist(draws, 60, density=True, alpha=0.5)
    axis.plot(line, exact / np.trapezoid(exact, line))
    axis.set_title(f"{name}: ELBO {model.lower_bound_:.2f} (log Z -0.73)")
    axis.set_xlabel("w")

# %%
# Stairs
# ------

X, y = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X)
parts = {"prior": "normal", "intercept_prior": "normal", "random_state": 0}
start = BayesianLogisticRegression(posterior="mean_field", **parts).fit(X, y)
refined = BayesianLogisticRegression(posterior="refined", **parts).fit(X, y)
curve = refined.posterior_.curve.numpy()
axis = axes[2]
axis.plot(curve, linewidth=0.5)
axis.axhline(start.lower_bound_, color="k", linestyle=":", label="factorized normal")
axis.axhline(refined.lower_bound_, color="C1", label="refined")
axis.set(xlabel="gradient step", ylabel="bound, nats")
axis.set_ylim(start.lower_bound_ - 5, refined.lower_bound_ + 5)
axis.legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "refined_posterior.png", dpi=120)
