"""Networks with settings drawn at random: does any training end badly?

    SKVI_DATA=folder python benchmarks/fuzz.py 100 networks

Depth 1 to 4 of 5 to 300 units, activation, noise, likelihood, family, solver, weight of
the divergence and data are drawn; a seventh of the fits are modules with convolutions,
normalization or residual connections. A third of the data has features with sizes from
1 / 100 to 100. Every fit ends after a number of steps that its work allows, 150 at
least, so that many are far from converged: they, too, must not end badly.

Of each fit the fuzzer writes the log predictive density of a training row, minus that
of the best constant under the same likelihood (class frequencies of classifiers), and
how many nats the objective of the result is above the lowest window of the training,
beyond four standard errors. What loses more than 0.05 nats a row is bad, or 1 % of the
objective's fall and 5 nats.

2026-11-26, x86_64, 2 busy cores, torch 2.13.0. Without a constant in place of fits that
are worse than one, and with returns to the start where the divergence fell fast, 16 of
the fits 120 to 299 were bad, by up to 2.5 nats a row or 900 nats of the objective. With
both mended 3 of 0 to 299 are: 161 (-.30), 174 (-.53) and 218 (-.057). The first two are
wide networks with N(0, 1), KLDivergence() and 56 and 101 rows, whose objective is 100
and 160 nats below that of a constant. With four or sixteen times the iterations they
are bad, too: what is minimized asks for it. The guard takes 0.1 to 1.5 % of a fit.

    python benchmarks/random_networks.py 40

compares five seeds of one factorized network on small data of one feature, waves and
x sin 2x with noise of 0.1. A line is a data set: rows, the five bounds, processor
seconds of a fit. On the first ten sets 17 of 50 draws are more than 3 nats behind the
best of their set, 2.0 in the median and 12.6 at most (2.9 s a fit). On the first two
sets all say that they converged, after 546 to 2,674 iterations, and what is reached
after 300 does not tell which seed ends best; on the first three twice the warm-up
changes nothing (6 of 15 for 5).
"""

import math
import sys
import time
import warnings

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import xlogy
from scipy.stats import t
from sklearn.datasets import make_friedman1, make_friedman2, make_moons
from sklearn.preprocessing import scale
from torch import nn

from benchmarks.reference_data import real
from skvi import neural_network as networks
from skvi.divergences import KLDivergence
from skvi.likelihoods import (
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    StudentTLikelihood,
)
from skvi.posteriors import Ensemble, LowRankNormal

# Rows times parameters times draws times steps of a fit, and its fewest steps.
WORK, FEWEST, MOST = 4e9, 150, 3000
ACTIVATIONS = ("relu", "tanh", "softplus", "logistic", "identity")
FAMILIES = ("mean_field",) * 5 + ("ensemble", "low_rank")


class Residual(nn.Module):
    """Blocks around which the input passes, with normalization."""

    def __init__(self, n_features, n_outputs, width, depth):
        super().__init__()
        self.into, self.out = nn.Linear(n_features, width), nn.Linear(width, n_outputs)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())
            for _ in range(depth)
        )

    def forward(self, x):
        h = self.into(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)


class Convolution(nn.Module):
    """Convolutions of images of 8 x 8, with normalization or without."""

    def __init__(self, n_outputs, width, depth, normalizes):
        super().__init__()
        layers, channels = [], 1
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1)]
            layers += [nn.GroupNorm(1, width)] if normalizes else []
            layers += [nn.ReLU()]
            channels = width
        self.layers = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten())
        self.out = nn.Linear(16 * width, n_outputs)

    def forward(self, x):
        return self.out(self.layers(x))


def numbers(rng, n_rows):
    """A regression problem: name, features and target."""
    kind = rng.choice(["wave", "bumps", "friedman1", "friedman2", "diabetes", "noise"])
    seed = int(rng.integers(1000))
    if kind in ("wave", "bumps"):
        x = rng.uniform(-2, 2, (n_rows, 1))
        f = np.sin(2 * x[:, 0]) * (x[:, 0] if kind == "bumps" else 1)
        return kind, x, f + 0.1 * rng.standard_normal(n_rows)
    if kind == "friedman1":
        X, y = make_friedman1(n_rows, noise=1.0, random_state=seed)
    elif kind == "friedman2":
        X, y = make_friedman2(n_rows, noise=100.0, random_state=seed)
    elif kind == "diabetes":
        X, y = (array[:n_rows] for array in real("diabetes"))
    else:
        X = rng.standard_normal((n_rows, int(rng.integers(1, 20))))
        y = rng.standard_t(3, n_rows)
    return kind, scale(X), y


def classes(rng, n_rows):
    """A classification problem: name, features and labels."""
    kind = rng.choice(["moons", "wine", "breast_cancer", "digits"])
    if kind == "moons":
        return kind, *make_moons(n_rows, noise=0.2, random_state=int(rng.integers(99)))
    return kind, *(array[:n_rows] for array in real(kind))


def drawn(k):
    """Fit number k: estimator, features, target, and words about it."""
    rng = np.random.default_rng([k, 33])
    n_rows = int(np.exp(rng.uniform(math.log(30), math.log(2000))))
    if rng.uniform() < 0.03:
        n_rows = 10_000
    is_module, is_classifier = rng.uniform() < 0.15, rng.uniform() < 0.4
    kind, X, y = (classes if is_classifier else numbers)(rng, n_rows)
    settings = {
        "random_state": k,
        "divergence": KLDivergence(float(rng.choice([1, 1, 0.3]))),
    }
    depth = int(rng.integers(1, 5))
    if is_module:
        depth, width = int(rng.integers(1, 4)), int(rng.choice([8, 16, 32]))
        n_outputs = len(np.unique(y)) if is_classifier else 1
        n_outputs = 1 if n_outputs == 2 else n_outputs
        if kind == "digits":
            X = (X / X.std()).reshape(-1, 1, 8, 8).astype(np.float32)
            normalizes = bool(rng.integers(2))
            settings["module"] = lambda: Convolution(
                n_outputs, width, depth, normalizes
            )
        else:
            settings["module"] = lambda: Residual(X.shape[1], n_outputs, width, depth)
        make = networks.BayesianModuleClassifier
        make = make if is_classifier else networks.BayesianModuleRegressor
        size = depth * width**2 * (9 * 64 if kind == "digits" else 1)
        name = f"module {depth} x {width}"
        family = "mean_field"
    else:
        sizes = np.exp(rng.uniform(math.log(5), math.log(300), depth)).astype(int)
        settings["hidden_layer_sizes"] = tuple(map(int, sizes))
        settings["activation"] = str(rng.choice(ACTIVATIONS))
        make = networks.BayesianMLPClassifier
        make = make if is_classifier else networks.BayesianMLPRegressor
        ends = [X[0].size, *sizes, 10 if kind == "digits" else 1]
        size = int(np.dot(ends[1:], ends[:-1]))
        name = f"{settings['activation']} {settings['hidden_layer_sizes']}"
        family = str(rng.choice(FAMILIES))
    settings["posterior"] = {
        "ensemble": Ensemble(n_members=2),
        "low_rank": LowRankNormal(rank=2),
    }.get(family, family)
    if rng.uniform() < 0.2:
        settings["prior"] = "normal"
    if not is_classifier:
        kinds = [GaussianLikelihood, GaussianLikelihood, StudentTLikelihood]
        noise = kinds[rng.choice(len(kinds))]()
        varies = rng.choice([False, True]) and not is_module
        settings["likelihood"] = HeteroscedasticLikelihood(noise) if varies else noise
    if rng.uniform() < 1 / 3:
        X = X * 10 ** rng.uniform(-2, 2, X.shape[1:]).astype(X.dtype)
        name += " unscaled"
    n_draws = 10 if n_rows <= 2000 else 4
    per_step = min(len(y), 200 if len(y) <= 200 else max(len(y) // 16, 64)) * n_draws
    n_steps = int(np.clip(WORK / (per_step * (size + 500)), FEWEST, MOST))
    settings["max_iter"] = max(n_steps // 16, 2)
    words = [kind, len(y), name, family, settings["divergence"].weight]
    words += [settings.get(key, "") for key in ("solver", "prior", "likelihood")]
    words += [settings["max_iter"]]
    return make(**settings), X, y, " ".join(map(str, words))


def constant(model, y, weight=None):
    """Mean log density of the best constant of the model's likelihood."""
    weight = np.ones(len(y)) if weight is None else weight
    weight = weight / weight.sum()
    if hasattr(model, "classes_"):
        frequency = np.bincount(np.unique(y, return_inverse=True)[1], weight)
        return float(xlogy(frequency, frequency).sum())
    noise = getattr(model.likelihood, "noise", model.likelihood)
    if not isinstance(noise, StudentTLikelihood):
        variance = weight @ (y - weight @ y) ** 2
        return -0.5 * math.log(2 * math.pi * variance) - 0.5

    def loss(z):
        return -float(weight @ t.logpdf(y, noise.df, z[0], math.exp(z[1])))

    start = [np.median(y), math.log(y.std())]
    return -float(minimize(loss, start, method="Nelder-Mead").fun)


def rise(model):
    """Nats of the result above the lowest window of the training, beyond noise."""
    curve = np.asarray(model.loss_curve_)
    width = max(2, min(len(curve) // 4, 7))
    if len(curve) < width:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(curve, width)
    best = windows[windows.mean(1).argmin()]
    noise = 4 * math.hypot(model.objective_value_se_, best.std() / width**0.5)
    sign = 1 if model.objective_.direction == "upper" else -1
    above = sign * model.objective_value_ - best.mean() - noise
    small = max(5.0, 0.01 * (curve[0] - best.mean()))
    return float(max(above - small, 0.0))


def restarts(n_sets):
    """Bounds of five seeds on small data of one feature, minus the best of each set."""
    behind = []
    for k in range(n_sets):
        rng = np.random.default_rng([k, 34])
        n_rows = int(rng.integers(80, 201))
        X = rng.uniform(-2, 2, (n_rows, 1))
        f = np.sin(2 * X[:, 0]) * (X[:, 0] if k % 2 else 1)
        y = f + 0.1 * rng.standard_normal(n_rows)
        bounds, start = [], time.process_time()
        for seed in range(5):
            one = networks.BayesianMLPRegressor(
                divergence="kl", posterior="mean_field", random_state=seed
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                bounds.append(one.fit(X, y).lower_bound_)
        seconds = (time.process_time() - start) / 5
        behind += [max(bounds) - bound for bound in bounds]
        words = " ".join(f"{bound:7.1f}" for bound in bounds)
        print(f"{k:3} {n_rows:4} {words} {seconds:6.1f}", flush=True)
    n_bad = int(np.sum(np.array(behind) > 3))
    print(f"{n_bad} of {len(behind)} more than 3 nats behind, worst {max(behind):.1f}")
    return n_bad > 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(restarts(int(sys.argv[1])))
