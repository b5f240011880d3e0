"""Twenty sets of bench_default_networks.py, on which no setting of networks was chosen.

Fourteen have a known distribution; of six real ones the draws are random splits.
"""

import csv
import os
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from bench_default_classifier import load
from scipy import stats
from sklearn.datasets import load_diabetes, make_friedman2
from sklearn.preprocessing import StandardScaler

N_TEST = 1000


class Mixture:
    """Two distributions of rows, the second with probability p."""

    def __init__(self, first, second, p):
        self.parts, self.p = (first, second), p

    def _mix(self, a, b):
        return (1 - self.p) * a + self.p * b

    def rvs(self, random_state):
        first, second = (part.rvs(random_state=random_state) for part in self.parts)
        return np.where(random_state.random(len(first)) < self.p, second, first)

    def cdf(self, y):
        return self._mix(*(part.cdf(y) for part in self.parts))

    def logpdf(self, y):
        return np.log(self._mix(*(part.pdf(y) for part in self.parts)))


class Rating:
    """Numbers 1 to 5 next to a normal one."""

    def __init__(self, mean, std):
        self.latent = stats.norm(mean, std)

    def rvs(self, random_state):
        return self.latent.rvs(random_state=random_state).round().clip(1, 5)

    def cdf(self, y):
        return np.where(y > 5, 1.0, np.where(y < 1, 0.0, self.latent.cdf(y)))


def flipped(p, share):
    """Probabilities of labels of which a share is that of another class."""
    return (1 - share) * p + share * (1 - p) / (p.shape[1] - 1)


def along(r, n, curves, std, share):
    """Classes spread around curves, (m, 2) points each; labels flipped."""
    own = r.integers(len(curves), size=n)
    points = np.stack(curves)[own, r.integers(len(curves[0]), size=n)]
    X = points + std * r.normal(size=(n, 2))
    distances = [((X[:, None] - c) ** 2).sum(2) / (2 * std**2) for c in curves]
    p = np.exp(-np.stack(distances, 1)).mean(2)
    return X, flipped(p / p.sum(1, keepdims=True), share)


def turn(angle, radius=1.0):
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)


T = np.linspace(0, 1, 400)
MOONS = (turn(np.pi * T), np.array([1, 0.5]) - turn(np.pi * T))
RINGS = [turn(2 * np.pi * T, radius) for radius in (1, 2, 3)]
SPIRALS = [turn(2.6 * np.pi * T + a, 0.4 + 2.6 * T) for a in (0, np.pi)]


def checkerboard(r, n):
    X = r.uniform(-2, 2, (n, 2))
    odd = np.floor(X).sum(1) % 2
    return X, flipped(np.stack([1 - odd, odd], 1), 0.1)


def coin(r, n, d, p):
    return r.normal(size=(n, d)), np.tile([1 - p, p], (n, 1))


def gamma(r, n):
    X = r.normal(size=(n, 4))
    mean = np.exp(1 + 0.5 * X[:, 0] - 0.4 * np.abs(X[:, 1]))
    return X, stats.gamma(1.5, scale=mean / 1.5)


def hurdle(r, n):
    X = r.normal(size=(n, 4))
    paid = 1 / (1 + np.exp(X[:, 0] * X[:, 2] - 0.8))
    amount = stats.lognorm(0.5, scale=np.exp(1 + 0.4 * X[:, 1]))
    return X, Mixture(stats.norm(np.zeros(n), 1e-12), amount, paid)


def outliers(r, n):
    X = r.normal(size=(n, 25))
    f = 1.5 * X[:, 0] - X[:, 3] + 0.8 * X[:, 7]
    return X, Mixture(stats.norm(f, 0.5), stats.norm(f, 8), 0.06)


def ratings(r, n):
    X = r.normal(size=(n, 5))
    return X, Rating(3 + 0.8 * X[:, 0] - 0.5 * X[:, 1] * X[:, 2], 0.7)


def friedman2(r, n):
    X, f = make_friedman2(n, random_state=int(r.integers(2**31)))
    return X, stats.norm(f, 30 + 0.2 * f)


def jumps(r, n):
    X = r.uniform(-1, 1, (n, 3))
    a, b, c = X.T
    f = 2.0 * (a > 0.3) - 1.5 * ((b < -0.4) & (a < 0)) + (c > 0) * (a > 0.3)
    return X, stats.norm(f, 0.3)


def waves(r, n):
    X = r.uniform(-3, 3, (n, 1))
    return X, stats.norm(np.sin(1.5 * X[:, 0]) + 0.5 * np.cos(3 * X[:, 0]), 0.15)


def table(name, target, columns):
    """Numbers of a file of the grouped data, rows without gaps."""
    path = Path(os.environ["SKVI_DATA"]) / "grouped" / name
    with path.open() as file:
        rows = [[row[k] for k in (*columns, target)] for row in csv.DictReader(file)]
    codes = {"No": 0, "Yes": 1, "Female": 0, "Male": 1, "Public": 0, "Catholic": 1}
    found = np.array([[codes.get(x, x) for x in row] for row in rows if "" not in row])
    return found[:, :-1].astype(float), found[:, -1].astype(float)


AUTO = ("ATTORNEY", "CLMSEX", "MARITAL", "CLMINSUR", "SEATBELT", "CLMAGE")
SCHOOL = ("minrty", "sx", "ses", "meanses", "sector")
SETS = {  # training rows, step of the scored intervals or None, what draws or loads
    "spirals": (500, None, lambda r, n: along(r, n, SPIRALS, 0.12, 0.0)),
    "moons, flips .3": (200, None, lambda r, n: along(r, n, MOONS, 0.15, 0.3)),
    "rings, flips .4": (1500, None, lambda r, n: along(r, n, RINGS, 0.15, 0.4)),
    "checkerboard, flips .1": (1000, None, checkerboard),
    "coin .5": (150, None, lambda r, n: coin(r, n, 8, 0.5)),
    "coin .2": (600, None, lambda r, n: coin(r, n, 3, 0.2)),
    "gamma": (400, None, gamma),
    "hurdle": (1000, 0.25, hurdle),
    "outliers": (250, None, outliers),
    "ratings": (350, 1.0, ratings),
    "friedman2, noise varies": (5000, None, friedman2),
    "jumps": (500, None, jumps),
    "waves": (30, None, waves),
    "noise": (20, None, lambda r, n: (r.normal(size=(n, 3)), stats.norm([5.0] * n, 2))),
    "iris": (90, None, lambda: load("iris")),
    "ripley": (150, None, lambda: load("ripley")),
    "a9a": (3000, None, lambda: load("a9a")),
    "diabetes": (300, None, lambda: load_diabetes(return_X_y=True)),
    "AutoBi": (700, None, lambda: table("AutoBi.csv", "LOSS", AUTO)),
    "Hsb82": (2500, 1.0, lambda: table("Hsb82.csv", "mAch", SCHOOL)),
}
GENERATED = list(SETS)[:14]
CLASSES = {*GENERATED[:6], "iris", "ripley", "a9a"}


def rows_of(name, draw):
    """Training and test rows: X, y, their cells, and the truth about the latter.

    `cells` are the middles of scored intervals; `p` are probabilities of classes, and
    `loss` is the negative log density or probability of y; both None if not known.
    """
    n, step, make = SETS[name]
    r = np.random.default_rng([zlib.crc32(name.encode()), draw])
    truth = p = loss = None
    if name in GENERATED:
        X, truth = make(r, n + N_TEST)
        if name in CLASSES:
            p = truth[n:]
            y = (truth.cumsum(1) < r.random(len(X))[:, None]).sum(1)
        else:
            y = truth.rvs(random_state=r)
    else:
        X, y = make()
        rows = r.permutation(len(y))[: n + N_TEST]
        X, y = X[rows], y[rows]
        if name in CLASSES:
            y = np.unique(y, return_inverse=True)[1]
    if name == "hurdle":
        y = np.where(y < 1e-9, 0.0, y)
    cells = y if step is None else step * np.round(y / step)
    if truth is not None and name not in CLASSES:
        if step is None:
            loss = -truth.logpdf(y)[n:]
        else:
            loss = -np.log(truth.cdf(cells + step / 2) - truth.cdf(cells - step / 2))
            loss = loss[n:]
    X = StandardScaler().fit(X[:n]).transform(X)
    train, test = (X[:n], y[:n]), {"X": X[n:], "y": y[n:], "cells": cells[n:]}
    return SimpleNamespace(train=train, step=step, p=p, loss=loss, **test)
