"""Evidence bounds of small linear models against quadrature.

    python -m benchmarks.evidence_quadrature            # 400 runs
    python -m benchmarks.evidence_quadrature 100 7      # so many, from this index on

One to three coefficients without an intercept; classes, counts, negative binomial and
Student-t noise; N(0, 1) and the half-Cauchy scale; ordinary, separable, wide, collinear
and constant columns, and weights that repeat rows. At each log scale of the prior, and
log dispersion, the coefficients are integrated by the trapezoidal rule in coordinates
in which their posterior is about N(0, I), and what is shared by the same rule. Steps
are fine, since at large scales the posterior of separable rows has edges.

A reliable interval with two errors on each side is wrong if the truth is outside by
more than the error of the quadrature, the difference of two steps.
"""

import itertools
import sys
import time
import warnings

import numpy as np
import torch
from scipy import stats
from scipy.optimize import minimize
from scipy.special import log_expit, logsumexp

from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.priors import HalfCauchy, Normal

KINDS = ("classes", "counts", "negative_binomial", "student_t")
SHAPES = ("ordinary", "separable", "wide", "collinear", "constant", "weights")
PRIORS = {"fixed": Normal(), "default": Normal(HalfCauchy())}
CELLS = list(itertools.product(KINDS, SHAPES, PRIORS))
STEPS = {1: (0.01, 0.03), 2: (0.06, 0.1), 3: (0.35, 0.5)}
REACH, N_MOVES, DF = 8.0, 3, 4.0


def draw(index):
    """Kind, prior, X, y and weights of a run."""
    kind, shape, prior = CELLS[index % len(CELLS)]
    rng = np.random.default_rng(index)
    d = int(rng.integers(1, 4))
    if kind == "negative_binomial":  # so that the quadrature takes seconds
        d = 1 if prior == "default" else min(d, 2)
    n = int(rng.integers(max(d, 4), 41)) if shape != "wide" else max(d - 1, 2)
    X = rng.normal(size=(n, d))
    if shape == "collinear":
        X[:, -1] = X[:, 0] + 1e-3 * X[:, -1]
    if shape == "constant":
        X[:, -1] = 1.0
    f = X @ rng.normal(size=d) * rng.choice([0.0, 0.5, 1.5])
    if kind == "classes":
        y = (f + (0 if shape == "separable" else rng.logistic(size=n)) > 0).astype(int)
        if len(np.unique(y)) < 2:
            y[:2] = 0, 1
    elif kind == "student_t":
        y = f + (0 if shape == "separable" else rng.standard_t(DF, size=n))
    else:
        y = rng.poisson(np.exp(np.clip(f, -5, 4)) * (shape != "separable"))
    weight = rng.integers(1, 4, size=n) if shape == "weights" else None
    return kind, shape, prior, X, y, weight


def model_of(kind, prior):
    options = {"prior": PRIORS[prior], "fit_intercept": False}
    if kind == "classes":
        return BayesianLogisticRegression(**options)
    if kind == "student_t":
        options |= {"noise_scale": 1.0, "normalize_y": False}
        return BayesianLinearRegression(likelihood="student_t", **options)
    likelihood = "poisson" if kind == "counts" else kind
    return BayesianPoissonRegressor(likelihood=likelihood, **options)


def log_likelihood(kind, f, y, t):
    """Of rows, for f of shape (..., n)."""
    if kind == "classes":
        return log_expit(np.where(y == 1, f, -f))
    if kind == "student_t":
        return stats.t.logpdf(y, DF, f, 1.0)
    f = np.clip(f, -700, 700)
    if kind == "counts":
        return stats.poisson.logpmf(y, np.exp(f))
    r = np.exp(-t)
    return stats.nbinom.logpmf(y, r, r / (r + np.exp(f)))


def given(kind, X, y, weight, scale, t, step):
    """Log evidence at a scale and a dispersion."""
    d = X.shape[1]

    def log_joint(theta):
        rows = log_likelihood(kind, theta @ X.T, y, t) * weight
        return rows.sum(-1) + stats.norm.logpdf(theta, scale=scale).sum(-1)

    unit = min(scale, 1.0)
    best = minimize(lambda e: -log_joint(unit * e), np.zeros(d), method="BFGS")
    mode = unit * best.x
    root = np.linalg.cholesky(best.hess_inv + 1e-12 * np.eye(d)) * unit
    # The inverse Hessian of the search is rough: that of differences.
    h = 1e-3 * root.T
    hess = np.empty((d, d))
    for i, j in itertools.product(range(d), repeat=2):
        signs = [(a, b) for a in (1, -1) for b in (1, -1)]
        terms = [a * b * log_joint(mode + a * h[i] + b * h[j]) for a, b in signs]
        hess[i, j] = -sum(terms) / 4e-6
    values, vectors = np.linalg.eigh(0.5 * (hess + hess.T))
    root = root @ (vectors / np.sqrt(np.clip(values, 0.05, None)))
    for width in (*[0.5] * N_MOVES, step):  # to the moments, where it is not normal
        line = np.arange(-REACH, REACH + width / 2, width)
        grid = np.stack(np.meshgrid(*[line] * d, indexing="ij"), -1).reshape(-1, d)
        theta = mode + grid @ root.T
        values = np.concatenate([log_joint(p) for p in np.array_split(theta, 20)])
        total = logsumexp(values)
        volume = d * np.log(width) + np.linalg.slogdet(root)[1]
        share = np.exp(values - total)
        mode = share @ theta
        away = (theta - mode) * np.sqrt(share)[:, None]
        root = np.linalg.cholesky(away.T @ away + 1e-14 * scale**2 * np.eye(d))
    return total + volume


def truth(kind, prior, X, y, weight, fine):
    """Log evidence, with a step that is fine or coarse."""
    step = STEPS[X.shape[1]][0 if fine else 1]
    scales, log_scale_p, h = [0.0], [0.0], 1.0
    if prior == "default":
        h = 0.7 if fine else 1.0
        scales = np.arange(-14, 12, h)
        log_scale_p = -np.log(np.pi * np.cosh(scales))
    numbers, log_number_p, k = [0.0], [0.0], 1.0
    if kind == "negative_binomial":
        k = 0.7 if fine else 1.0
        numbers = np.arange(-12, 4, k)
        log_number_p = numbers - np.exp(numbers)
    found = [
        given(kind, X, y, weight, np.exp(z), t, step) + p + q
        for z, p in zip(scales, log_scale_p, strict=True)
        for t, q in zip(numbers, log_number_p, strict=True)
    ]
    return logsumexp(found) + np.log(h * k)


def run(index):
    kind, shape, prior, X, y, weight = draw(index)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model_of(kind, prior).fit(X, y, sample_weight=weight)
        begin = time.process_time()
        options = {} if weight is None else {"sample_weight": weight}
        bounds = model.evidence_bounds(X, y, random_state=index, **options)
        seconds = time.process_time() - begin
        rows = X / model.posterior_.units.x_scale
        if len(y) < X.shape[1]:  # coordinates on which f depends, with the same prior
            rows = np.linalg.qr(rows.T)[1].T
        ones = np.ones(len(y)) if weight is None else weight
        values = [truth(kind, prior, rows, y, ones, fine) for fine in (True, False)]
    low, high = bounds.interval()
    miss = max(low - values[0], values[0] - high, 0.0)
    is_wrong = bounds.reliable and miss > 1e-3 + 2 * abs(values[1] - values[0])
    error = abs(values[1] - values[0])
    print(
        f"{index:4d} {kind:17s} {shape:9s} {prior:7s} {len(y):2d} x {X.shape[1]}  "
        f"[{low:9.3f}, {high:9.3f}] {values[0]:9.3f} +- {error:.0e}"
        f"  {bounds.method:10s} {seconds:5.1f} s"
        f"{'' if bounds.reliable else '  not reliable'}{'  WRONG' if is_wrong else ''}",
        flush=True,
    )
    return bounds.reliable, is_wrong, len(y) >= X.shape[1], seconds


def main(n_runs=400, first=0):
    torch.set_num_threads(1)
    found = [run(index) for index in range(first, first + n_runs)]
    reliable, wrong, tall, seconds = (np.array(x) for x in zip(*found, strict=True))
    print(
        f"{n_runs} runs: {reliable.sum()} reliable, {wrong.sum()} of these wrong; "
        f"{(~reliable[tall]).sum()} of {tall.sum()} with n >= P not reliable; "
        f"seconds: median {np.median(seconds):.1f}, most {seconds.max():.1f}"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
