"""Data of the reference: see reference.py."""

from functools import cache

import numpy as np
import scipy.sparse as sp
from sklearn import datasets
from sklearn.preprocessing import scale


@cache
def real(name: str, n: int | None = None) -> tuple:
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[:n]
    return scale(X[order]), y[order]


@cache
def made(kind: str, n: int, d: int, density: float = 1.0, dtype: str = "f8") -> tuple:
    """Features, and numbers, heavy-tailed numbers, classes or counts."""
    rng = np.random.default_rng(0)
    if density < 1:
        X = sp.random(n, d, density, "csr", random_state=rng)
    else:
        X = rng.standard_normal((n, d)).astype(dtype)
    coef = rng.standard_normal(d) * (np.arange(d) < 10) / np.sqrt(min(d, 10) * density)
    f = X @ coef
    if kind == "apart":
        return X, (f > 0).astype(int)
    if kind == "classes":
        return X, (rng.uniform(size=n) < 1 / (1 + np.exp(-2 * f))).astype(int)
    if kind == "counts":
        return X, rng.poisson(np.exp(0.5 * f + 0.5) * rng.gamma(3, 1 / 3, n))
    noise = rng.standard_t(2, n) if kind == "heavy" else rng.standard_normal(n)
    return X, (5 + 2 * f + noise).astype(dtype)


@cache
def wave(n: int) -> tuple:
    """One feature; noise that grows with it."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-2, 2, n))
    return x[:, None], np.sin(2 * x) + 0.1 * np.exp(x / 2) * rng.standard_normal(n)


@cache
def series(kind: str, n: int = 200) -> np.ndarray:
    """A series that changes after half of its rows."""
    rng, late = np.random.default_rng(0), np.arange(n) >= n // 2
    if kind == "counts":
        return rng.poisson(np.where(late, 9.0, 4.0))[:, None]
    if kind == "trials":
        return (rng.uniform(size=n) < np.where(late, 0.8, 0.3)).astype(float)[:, None]
    X = rng.standard_normal((n, 2))
    if kind == "features":
        X[:, 0] = 0.5 * X[:, 0] + np.where(late, -1.0, 1.0) * X[:, 1]
    elif kind == "memory":
        for i in range(1, n):
            X[i] += np.where(late[i], 0.8, -0.3) * X[i - 1]
    elif kind == "trend":
        X[:, 0] += np.where(late, n - np.arange(n), np.arange(n)) / 10
    else:
        X[late] += [3.0, -2.0]
        X[n // 4] += 12 * (kind == "outlier")
        X[n // 3 : n // 3 + 5] += np.nan if kind == "missing" else 0
    return X
