"""How many networks should a prediction average over?
======================================================

A prediction of a Bayesian network is an average over draws of its weights. One draw is
a single network, and its log probabilities are poor: it is as sure as if its weights
were known. Every further draw adds another opinion, and the negative log density (nll)
of new rows falls on average, since by Jensen's inequality the log of an average of
probabilities is at least the average of their logs.

The script draws this curve for digits and for diabetes data. `n_predict_draws` is 100
by default, and the curves are level there.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import logsumexp
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.solvers import Stochastic

SIZES = np.array([1, 2, 3, 5, 10, 20, 50, 100, 200])
N_NETWORKS, N_SUBSETS = 400, 50


def nll_curve(log_densities):
    """Mean nll of new rows for each number of networks, over random subsets.

    `log_densities` holds those of the rows (columns) given every network (rows).
    """
    rng = np.random.default_rng(0)
    curve = []
    for size in SIZES:
        subsets = [
            rng.choice(N_NETWORKS, size, replace=False) for _ in range(N_SUBSETS)
        ]
        values = [logsumexp(log_densities[s], 0) - np.log(size) for s in subsets]
        curve.append(-np.mean(values))
    return np.array(curve)


# %%
# Digits: 64 pixels, ten classes
# ------------------------------
# `sample_function` draws one network, which returns the probabilities that
# `predict_proba` would return if it were the only one.

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X / 16, y, test_size=0.5, stratify=y, random_state=0
)
classifier = BayesianMLPClassifier(
    divergence="kl",
    posterior="mean_field",
    hidden_layer_sizes=50,
    solver=Stochastic(learning_rate=0.02, n_draws=2),
    random_state=0,
).fit(X_train, y_train)
rows = np.arange(len(y_test))
networks = [classifier.sample_function(random_state=k) for k in range(N_NETWORKS)]
log_p = np.log([np.maximum(f(X_test)[rows, y_test], 1e-30) for f in networks])
digits = nll_curve(log_p)

# %%
# Diabetes: ten features and a noisy target
# -----------------------------------------
# The noise is far larger than what the networks disagree about: fewer draws suffice.

X, y = load_diabetes(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
scaler = StandardScaler().fit(X_train)
regressor = BayesianMLPRegressor(
    divergence="kl", posterior="mean_field", random_state=0
).fit(scaler.transform(X_train), y_train)
networks = [regressor.sample_function(random_state=k) for k in range(N_NETWORKS)]
means = np.array([f(scaler.transform(X_test)) for f in networks])
z = (y_test - means) / regressor.noise_scale_
log_p = -0.5 * z**2 - np.log(regressor.noise_scale_ * np.sqrt(2 * np.pi))
diabetes = nll_curve(log_p)

figure, axes = plt.subplots(1, 2, figsize=(8, 3.2))
for ax, name, curve in zip(
    axes, ("digits", "diabetes"), (digits, diabetes), strict=True
):
    pairs = zip(SIZES, curve, strict=True)
    print(f"{name}: " + ", ".join(f"{size}: {value:.4f}" for size, value in pairs))
    ax.semilogx(SIZES, curve, "o-")
    label = "negative log density [nats per row]"
    ax.set(title=name, xlabel="networks in the average", ylabel=label)
figure.tight_layout()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "predict_draws.png", dpi=150)
