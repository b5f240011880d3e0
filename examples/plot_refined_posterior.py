"""
Samples that are refined, one scale after the other
====================================================

The posterior of one weight has four modes, and the closest normal covers all of them.
:class:`~skvi.posteriors.RefinedNormal` draws a coarse part of the weight from that
normal, fits a normal to what is left, draws the next part from that, and so on. The
samples find the modes.

The effects of the eight schools depend on their scale τ: where τ is small, they are
near one another. A factorized normal cannot have that. Refined samples do, as in Havasi
et al. (2021), figure 3; how far they are from the posterior depends on the coordinates.

The next panel shows the bound at every gradient step of a logistic regression under a
factorized normal: it rises where a fit begins, after each part that is drawn, as the
stairs in figure 4. The last one is about a small convolutional network: ten refined
samples predict new digits better than ten draws of their start.
"""

# %%
# Four modes
# ----------
# With ``ratio=0.8`` and two parts the first has the prior variance .8, the second .2.

import sys
import warnings
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.ndimage import rotate
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.distributions import HalfCauchy, MultivariateNormal, Normal

from skvi.inference import VariationalInference
from skvi.linear_model import BayesianLogisticRegression
from skvi.neural_network import BayesianModuleClassifier
from skvi.posteriors import RefinedNormal
from skvi.solvers import Stochastic

modes = torch.tensor([-1.5, -0.5, 0.5, 1.5], dtype=torch.float64)


def log_density(parameters):
    w = parameters["w"]
    near = -((w[:, None] - modes) ** 2) / (2 * 0.2**2)
    prior = Normal(0.0, 1.0).log_prob(w)
    return torch.logsumexp(near, 1) + prior


line = np.linspace(-3, 3, 601)
exact = log_density({"w": torch.from_numpy(line)}).exp().numpy()
families = {"a normal": "full_rank", "refined samples": RefinedNormal(n_draws=1000)}
figure, axes = plt.subplots(3, 2, figsize=(10, 10), layout="constrained")
axes = axes.ravel()
for axis, (name, family) in zip(axes[:2], families.items(), strict=True):
    model = VariationalInference(
        log_density, {"w": ()}, posterior=family, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a normal is far off, and says so
        draws = model.fit().sample_posterior(1000, random_state=0)["w"]
    axis.hist(draws, 60, density=True, alpha=0.5)
    axis.plot(line, exact / np.trapezoid(exact, line))
    axis.set_title(f"{name}: ELBO {model.lower_bound_:.2f} (log Z -0.73)")
    axis.set_xlabel("w")

# %%
# Eight schools
# -------------
# Lines are the exact density of log τ and of the effect of the first school. With
# ``standardized=True`` parameters are (θ - μ) / τ.

y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]).double()
error = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]).double()


def schools(p, standardized=False):
    mu, tau = p["mu"][:, None], p["tau"][:, None]
    theta = mu + tau * p["theta"] if standardized else p["theta"]
    prior = Normal(0.0, 5.0).log_prob(p["mu"]) + HalfCauchy(5.0).log_prob(p["tau"])
    center, scale = (0 * mu, 1.0) if standardized else (mu, tau)
    prior = prior + Normal(center, scale).log_prob(p["theta"]).sum(1)
    return prior + Normal(theta, error).log_prob(y).sum(1)


# y and θ are normal given τ: the first school's effect has a mean and a deviation.
log_tau = torch.linspace(-10, 8, 721).double()
cov = 25.0 + torch.diag_embed(log_tau.mul(2).exp()[:, None].expand(-1, 8))
of_y = MultivariateNormal(torch.zeros(8).double(), cov + torch.diag(error**2))
gain = torch.linalg.solve(of_y.covariance_matrix, cov[:, :, 0])
std = (cov[:, 0, 0] - (gain * cov[:, :, 0]).sum(1)).sqrt()
log_p = of_y.log_prob(y) + HalfCauchy(5.0).log_prob(log_tau.exp()) + log_tau
log_z = torch.logsumexp(log_p, 0) + (log_tau[1] - log_tau[0]).log()
effect = torch.linspace(-20, 40, 241).double()
exact = Normal(gain @ y, std).log_prob(effect[:, None]) + log_p - log_z

shapes = {"mu": (), "tau": (), "theta": (8,)}
for standardized in (False, True):
    axis = axes[2 + standardized]
    axis.contour(effect, log_tau, exact.exp().T, colors="k", linewidths=0.7)
    model = VariationalInference(
        partial(schools, standardized=standardized),
        shapes,
        {"tau": "positive"},
        random_state=0,
        warm_start=True,  # the factorized fit is where the refinement starts
    )
    for family in ("mean_field", RefinedNormal(n_draws=200)):
        model.set_params(posterior=family)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the factorized normal is far off
            draws = model.fit().sample_posterior(200, random_state=0)
        theta = draws["theta"][:, 0]
        if standardized:
            theta = draws["mu"] + draws["tau"] * theta
        name = "factorized" if family == "mean_field" else "refined"
        label = f"{name}: ELBO {model.lower_bound_:.2f}"
        axis.plot(theta, np.log(draws["tau"]), ".", alpha=0.4, label=label)
    where = "standardized effects" if standardized else "effects"
    axis.set_title(f"eight schools, {where} (log Z {float(log_z):.2f})")
    axis.set(xlabel="effect of the first school", ylabel="log τ", ylim=(-4, 4))
    axis.legend(loc="lower right")

# %%
# Stairs
# ------

X, y = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X)
parts = {"prior": "normal", "intercept_prior": "normal", "random_state": 0}
start = BayesianLogisticRegression(posterior="mean_field", **parts).fit(X, y)
refined = BayesianLogisticRegression(posterior="refined", **parts).fit(X, y)
curve = refined.posterior_.curve.numpy()
axis = axes[4]
axis.plot(curve, linewidth=0.5)
axis.axhline(start.lower_bound_, color="k", linestyle=":", label="factorized normal")
axis.axhline(refined.lower_bound_, color="C1", label="refined")
axis.set(xlabel="gradient step", ylabel="bound, nats")
axis.set_ylim(start.lower_bound_ - 5, refined.lower_bound_ + 5)
axis.legend()

# %%
# A convolutional network
# -----------------------
# ``n_predict_draws=10`` gives the start ten draws, too.


def convolution(n_outputs):
    """Six filters of 3 x 3 pixels, and a linear layer: 610 weights."""
    layers = nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(54, n_outputs))


X, y = load_digits(return_X_y=True)
images = X.astype(np.float32).reshape(-1, 1, 8, 8) / 16
images, X_test, y, y_test = train_test_split(
    images, y, train_size=400, stratify=y, random_state=0
)
axis, angles = axes[5], np.arange(0, 31, 5)
for name, family in {"start": "mean_field", "refined": "refined"}.items():
    model = BayesianModuleClassifier(
        module=convolution,
        posterior=family,
        solver=Stochastic(n_draws=2),
        n_predict_draws=10,
        max_iter=100,
        random_state=0,
    ).fit(images, y)
    losses = [
        log_loss(y_test, model.predict_proba(rotate(X_test, angle, (2, 3), False)))
        for angle in angles
    ]
    print(f"{name}: log loss {losses[0]:.3f}, of turned digits {losses[-1]:.3f}")
    axis.plot(angles, losses, "o-", label=f"{name}: {losses[0]:.3f} at 0")
axis.set(xlabel="rotation of test digits [degrees]", ylabel="log loss [nats]")
axis.set_title("a convolutional network")
axis.legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "refined_posterior.png", dpi=120)
