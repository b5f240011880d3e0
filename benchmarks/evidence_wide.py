"""Evidence of the default prior where features outnumber rows, against particles.

    python benchmarks/evidence_wide.py [kind ...]

Counts, two and three classes; 15 to 60 rows, up to four times as many features, effects
from none to strong. The reference knows no coefficient: at each of 129 log scales of
the prior f of all rows is normal, and the trapezoidal rule adds them up. Counts: by
importance sampling around the mode of f. Classes: particles go through the rows one by
one (each is drawn given those before, weighted by its likelihood and resampled), many
more and at more scales than skvi uses where it does the same. Standard errors are those
of four runs. A reliable interval misses if the reference is outside of it by more than
three of these errors.

Two cores of x86_64, beside other work, 2026-11-25: seconds of the processor. All
intervals are reliable, and none misses; the last five sets of three classes were not
run. References are of 33 scales, which are too few
where many rows with strong effects determine the scale: the one of 60 x 90 counts is of
129, and two runs.

    kind     n    d  effect   interval             reference          s
    counts  15   30    0.0 [  -26.64,   -26.57]     -26.62 +- 0.00    0.3 importance
    counts  15   60    0.3 [  -25.45,   -25.39]     -25.42 +- 0.00    0.2 importance
    counts  20   40    1.0 [  -38.51,   -38.38]     -38.44 +- 0.00    2.6 particles
    counts  20   80    3.0 [  -53.43,   -53.31]     -53.46 +- 0.03   43.5 importance
    counts  30   60    0.0 [  -44.56,   -44.51]     -44.54 +- 0.00    0.3 importance
    counts  30  120    0.3 [  -52.57,   -52.53]     -52.56 +- 0.00    0.3 importance
    counts  40   60    1.0 [  -69.78,   -69.64]     -69.68 +- 0.01   33.1 particles
    counts  60   90    3.0 [ -174.48,  -174.34]    -174.42 +- 0.10   40.4 importance
    counts  60  240    0.0 [  -85.95,   -85.90]     -85.94 +- 0.00    0.6 importance
    two     15   30    0.0 [  -12.53,   -12.40]    -12.44 +- 0.01    1.6 particles
    two     15   60    0.3 [  -13.25,   -13.16]    -13.19 +- 0.01    1.6 particles
    two     20   40    1.0 [  -12.00,   -11.94]    -11.94 +- 0.01   11.0 particles
    two     20   80    3.0 [  -13.79,   -13.63]    -13.71 +- 0.00    2.4 particles
    two     30   60    0.0 [  -21.92,   -21.77]    -21.87 +- 0.02    5.4 particles
    two     30  120    0.3 [  -23.53,   -23.40]    -23.46 +- 0.00    5.1 particles
    two     40   60    1.0 [  -29.52,   -29.36]    -29.43 +- 0.03   20.2 particles
    two     60   90    3.0 [  -44.57,   -44.36]    -44.41 +- 0.04   84.5 particles
    two     60  240    0.0 [  -41.31,   -41.13]    -41.22 +- 0.02   20.8 particles
    three   15   30    0.0 [  -19.14,   -18.99]    -19.01 +- 0.01    8.9 particles
    three   15   60    0.3 [  -16.58,   -16.40]    -16.47 +- 0.01    4.5 particles
    three   20   40    1.0 [  -27.65,   -27.51]    -27.55 +- 0.03   32.3 particles
    three   20   80    3.0 [  -22.47,   -22.30]    -22.36 +- 0.02    7.0 particles
"""

import platform
import sys
import time
import warnings
from datetime import date

import numpy as np
import torch
from scipy.special import log_softmax, logsumexp
from scipy.stats import norm, poisson, t

from skvi.linear_model import BayesianLogisticRegression, BayesianPoissonRegressor

N_PARTICLES, N_RUNS = 8_000, 4
COLUMNS = {"counts": 1, "two": 1, "three": 3}
SHAPES = [(15, 30), (15, 60), (20, 40), (20, 80), (30, 60), (30, 120), (40, 60)]
SHAPES += [(60, 90), (60, 240)]
EFFECTS = (0.0, 0.3, 1.0, 3.0)


def log_likelihood(kind, y, f):
    """Of one row, (n_particles,), at functions (n_particles, n_columns)."""
    if kind == "two":
        return -np.logaddexp(0, -f[:, 0] if y else f[:, 0])
    return log_softmax(f, 1)[:, int(y)]


def at_scale(kind, gram, y, log_scale, rng):
    """Log evidence at one scale, by particles that go through the rows."""
    n, k = len(y), COLUMNS[kind]
    cov = np.exp(2 * log_scale) * gram + 100.0
    root = np.linalg.cholesky(cov + 1e-8 * np.diag(np.diag(cov)))
    noise, total = np.empty((N_PARTICLES, k, n)), 0.0
    for i in range(n):
        noise[:, :, i] = rng.standard_normal((N_PARTICLES, k))
        f = noise[:, :, : i + 1] @ root[i, : i + 1]
        log_w = log_likelihood(kind, y[i], f)
        total += logsumexp(log_w) - np.log(N_PARTICLES)
        ends = np.cumsum(np.exp(log_w - log_w.max()))
        points = (np.arange(N_PARTICLES) + rng.uniform()) / N_PARTICLES
        noise = noise[np.searchsorted(ends, points * ends[-1])]
    return total


def around_mode(gram, y, log_scale, rng):
    """Log evidence of counts at one scale, by weights of Student-t around the mode."""
    n = len(y)
    root = np.linalg.cholesky(np.exp(2 * log_scale) * gram + 100 + 1e-9 * np.eye(n))
    e = np.zeros(n)
    for _ in range(100):
        rate = np.exp(root @ e)
        hessian = np.eye(n) + root.T @ (rate[:, None] * root)
        change = np.linalg.solve(hessian, root.T @ (y - rate) - e)
        e = e + change * min(1.0, 1.0 / np.abs(root @ change).max())
    width = np.linalg.cholesky(np.linalg.inv(hessian))
    noise = rng.standard_t(10, size=(N_PARTICLES, n))
    draws = e + noise @ width.T
    log_p = poisson.logpmf(y, np.exp(np.minimum(draws @ root.T, 50))).sum(1)
    log_p += norm.logpdf(draws).sum(1)
    log_q = t.logpdf(noise, 10).sum(1) - np.log(np.diag(width)).sum()
    return logsumexp(log_p - log_q) - np.log(N_PARTICLES)


def reference(kind, X, y):
    """Log evidence and its standard error."""
    rows = X - X.mean(0)
    gram = rows @ rows.T / (rows**2).mean()
    log_scales, step = np.linspace(-9, 7, 129, retstep=True)
    prior, runs = -np.log(np.pi * np.cosh(log_scales)), []
    for seed in range(N_RUNS):
        rng = np.random.default_rng(seed)
        if kind == "counts":
            values = [around_mode(gram, y, z, rng) for z in log_scales]
        else:
            values = [at_scale(kind, gram, y, z, rng) for z in log_scales]
        runs.append(logsumexp(np.array(values) + prior) + np.log(step))
    return np.mean(runs), np.std(runs, ddof=1) / np.sqrt(N_RUNS)


def draw(kind, n, d, effect, rng):
    """Features and targets; `effect` is the deviation of f."""
    while True:
        X = rng.standard_normal((n, d))
        f = effect * X @ rng.standard_normal((d, COLUMNS[kind])) / np.sqrt(d)
        if kind == "counts":
            return X, rng.poisson(np.exp(np.minimum(f[:, 0], 5)))
        noise = rng.gumbel(size=(n, max(COLUMNS[kind], 2)))
        y = (noise + np.hstack([0 * f, f])[:, -noise.shape[1] :]).argmax(1)
        if len(np.unique(y)) == noise.shape[1]:
            return X, y


def main(kinds):
    torch.set_num_threads(1)
    print(f"{date.today()}, {platform.machine()}")
    print(
        "kind     n    d  effect   interval           reliable  reference    misses  s"
    )
    n_misses = n_reliable = n_sets = 0
    for kind in kinds or COLUMNS:
        for i, (n, d) in enumerate(SHAPES):
            effect = EFFECTS[i % len(EFFECTS)]
            X, y = draw(kind, n, d, effect, np.random.default_rng(i))
            of_counts = kind == "counts"
            model = (
                BayesianPoissonRegressor if of_counts else BayesianLogisticRegression
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fit = model().fit(X, y)
                begin = time.process_time()
                found = fit.evidence_bounds(X, y, random_state=0)
                seconds = time.process_time() - begin
            low, high = found.interval()
            value, error = reference(kind, X, y)
            misses = not low - 3 * error < value < high + 3 * error
            n_sets, n_reliable = n_sets + 1, n_reliable + found.reliable
            n_misses += misses and found.reliable
            print(
                f"{kind:6s} {n:3d} {d:4d} {effect:6.1f} [{low:8.2f}, {high:8.2f}]"
                f"  {found.reliable!s:8s} {value:8.2f} +- {error:.2f}  "
                f"{'MISS' if misses else '':4s} {seconds:6.1f} {found.method}",
                flush=True,
            )
    print(f"{n_sets} sets, {n_reliable} reliable, {n_misses} of these miss")


if __name__ == "__main__":
    main(sys.argv[1:])
