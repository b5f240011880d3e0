"""Uncertainty of a network between two clouds of data
======================================================

A factorized posterior sits at one of the many modes of a network's posterior. Where
there are no data it is far too certain, because it only knows a single network. An
`Ensemble` trains several such posteriors in parallel, each from its own start, and uses
their mixture as the posterior: between and outside the data the members disagree, and
the intervals widen.

The script draws both fits, and compares their bounds on the evidence.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from skvi.divergences import KLDivergence
from skvi.neural_network import BayesianMLPRegressor
from skvi.posteriors import Ensemble
from skvi.solvers import Stochastic

# %%
# Two clouds
# ----------
# A wave with little noise, and no data in its middle.

rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-3, -1, 100), rng.uniform(1, 3, 100)])[:, None]
y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=200)

# %%
# One posterior, and a mixture of eight
# -------------------------------------
# The eight are trained at once, in stacks of matrix products, and learn a common scale
# of the noise. With a weight of the divergence below 1 the data have more influence
# than the prior.

parts = {
    "hidden_layer_sizes": (10, 10),
    "activation": "relu",  # trains in half the time of the smooth default
    "divergence": KLDivergence(weight=0.1),
    "likelihood": "gaussian",
    "batch_size": len(y),
    "solver": Stochastic(learning_rate=0.01, tol=10.0),
    "max_iter": 400,
    "random_state": 0,
}
fits = {
    "one posterior": BayesianMLPRegressor(posterior="mean_field", **parts).fit(x, y),
    "ensemble of 8": BayesianMLPRegressor(posterior=Ensemble(n_members=8), **parts).fit(
        x, y
    ),
}

# %%
# Where they are certain
# ----------------------
# In the clouds both have the standard deviation of the noise. In the gap, and outside,
# the single posterior remains nearly as certain.

places = {"in a cloud": -2.0, "in the gap": 0.0, "outside": 5.0}
for name, fit in fits.items():
    _, std = fit.predict(np.array([*places.values()])[:, None], return_std=True)
    texts = [f"{where} {s:.2f}" for where, s in zip(places, std, strict=True)]
    print(f"{name}: standard deviation {', '.join(texts)}")

# %%
# The ELBO of the mixture is up to log 8 = 2.1 nats above the mean of its members',
# which was optimized.

ensemble = fits["ensemble of 8"]
print(
    f"{len(ensemble.posterior_.components)} members, noise {ensemble.noise_scale_:.3f}"
)

# %%
# A picture
# ---------

grid = np.linspace(-5, 5, 300)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
for ax, (name, fit) in zip(axes, fits.items(), strict=True):
    low, high = fit.predict_interval(grid, coverage=0.9).T
    ax.fill_between(grid[:, 0], low, high, alpha=0.3, label="90 % interval")
    ax.plot(grid, fit.predict(grid), label="mean")
    ax.plot(grid, np.sin(2 * grid), "k:", lw=1, label="truth")
    ax.plot(x, y, "k.", ms=2, label="rows")
    ax.set(title=name, xlabel="x", ylim=(-4, 4))
axes[0].set_ylabel("y")
axes[0].legend(loc="upper left")
figure.tight_layout()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "ensemble.png", dpi=150)
