"""Cost of an annealed path, per gradient evaluation, beside a loop in plain numpy.

    python benchmarks/bench_annealing.py

The loop is the same algorithm for the same model: 64 chains, logistic regression with
an N(0, 1) prior on the breast-cancer data, Hamiltonian moves that a Metropolis step
corrects, positions whitened by a full covariance, at the temperatures and step sizes
that `tune_path` has chosen. Both run alternately in one process with one thread; the
median of the pairwise ratios of processor time is quoted. Their averages of the log
weights must agree within their errors. The loop is timed with numpy's own `logaddexp`
and with a form of it that is tuned by hand.
"""

import argparse
import os
import platform
import time
from datetime import date
from functools import partial

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from skvi._sampling._annealing import MAX_STEPS, PATH_LENGTH, AnnealedPath, tune_path
from skvi.likelihoods import BernoulliLikelihood
from skvi.losses import LogLoss
from skvi.predictors import LinearPredictor
from skvi.priors import Normal, build_prior
from skvi.solvers._moment_matching import fit_proposal_normal
from skvi.targets import SupervisedTarget

LOG_2PI = np.log(2 * np.pi)


def make_target():
    X, y = load_breast_cancer(return_X_y=True)
    X = torch.from_numpy(StandardScaler().fit_transform(X))
    predictor = LinearPredictor(X.shape[1])
    prior = build_prior(Normal(), predictor.layout)
    y = torch.from_numpy(y.astype(float))
    return SupervisedTarget(predictor, BernoulliLikelihood(), LogLoss(), prior, X, y)


def log_sigmoid(f):
    return -np.logaddexp(0, -f)


def fast_log_sigmoid(f):
    """The same to 1e-16, five times faster."""
    return np.minimum(f, 0) - np.log1p(np.exp(-np.abs(f)))


class NumpyLoop:
    """The path's forward direction, written for this one model."""

    def __init__(self, path, target, log_sigmoid):
        self.log_sigmoid = log_sigmoid
        A = np.column_stack([target.X.numpy(), np.ones(len(target.X))])
        self.signed = A * (2 * target.y.numpy() - 1)[:, None]
        self.columns = np.ascontiguousarray(self.signed.T)
        self.mean, self.scale = path.normal.mean.numpy(), path.normal.scale.numpy()
        self.log_det = np.log(np.diag(self.scale)).sum()
        self.betas, self.steps = path.betas, path.steps
        self.n_gradients = 0

    def value(self, position):
        theta = self.mean + position @ self.scale.T
        prior = -0.5 * (theta**2).sum(1) - 0.5 * theta.shape[1] * LOG_2PI
        return prior + self.log_sigmoid(theta @ self.columns).sum(1)

    def slope(self, position):
        self.n_gradients += 1
        theta = self.mean + position @ self.scale.T
        p = 1 / (1 + np.exp(theta @ self.columns))
        return (p @ self.signed - theta) @ self.scale

    def log_normal(self, position):
        d = position.shape[1]
        return -0.5 * (position**2).sum(1) - 0.5 * d * LOG_2PI - self.log_det

    def forward(self, n_chains, rng):
        x = rng.normal(size=(n_chains, len(self.mean)))
        value, slope, total = self.value(x), self.slope(x), np.zeros(n_chains)
        for t in range(1, len(self.betas)):
            change = self.betas[t] - self.betas[t - 1]
            total += change * (value - self.log_normal(x))
            if t < len(self.betas) - 1:
                beta, step = self.betas[t], self.steps[t - 1]
                x, value, slope = self.move(x, value, slope, beta, step, rng)
        return total

    def move(self, x, value, slope, beta, step, rng):
        def energy(x, value, momentum):
            squares = 0.5 * ((1 - beta) * x**2 + momentum**2)
            return squares.sum(1) - beta * value

        def force(x, slope):
            return beta * slope - (1 - beta) * x

        length = PATH_LENGTH * (0.5 + rng.random())
        n_steps = min(max(1, round(length / step)), MAX_STEPS)
        momentum = rng.normal(size=x.shape)
        start = energy(x, value, momentum)
        new, new_slope = x, slope
        momentum = momentum + 0.5 * step * force(x, slope)
        for i in range(n_steps):
            new = new + step * momentum
            new_slope = self.slope(new)
            momentum += (step if i < n_steps - 1 else 0.5 * step) * force(
                new, new_slope
            )
        new_value = self.value(new)
        change = np.minimum(start - energy(new, new_value, momentum), 0)
        accept = rng.random(len(x)) < np.exp(change)
        x = np.where(accept[:, None], new, x)
        slope = np.where(accept[:, None], new_slope, slope)
        return x, np.where(accept, new_value, value), slope


class CountingTarget:
    """A target that counts the gradients of its whitened form."""

    def __init__(self, target):
        self.target, self.n_gradients = target, 0

    def whitened(self, normal):
        found = self.target.whitened(normal)
        inner = found._add_rows

        def counted(*arguments):
            self.n_gradients += 1
            return inner(*arguments)

        found._add_rows = counted
        return found


def measure(function, counter):
    before, start = counter.n_gradients, time.process_time()
    log_weights = function()
    seconds = time.process_time() - start
    return seconds / (counter.n_gradients - before), np.asarray(log_weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--chains", type=int, default=64)
    options = parser.parse_args()
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    with threadpool_limits(1):
        torch.set_num_threads(1)
        target = make_target()
        found, _ = tune_path(target, fit_proposal_normal(target), generator)
        counting = CountingTarget(target)
        path = AnnealedPath(counting, found.normal, found.betas, found.steps)
        path = path.refined(max(1, 100 // len(path.betas)))
        loops = [NumpyLoop(path, target, f) for f in (log_sigmoid, fast_log_sigmoid)]
        n = options.chains
        parts = [
            (lambda: path.forward(n, generator).log_weights, counting),
            *((partial(loop.forward, n, rng), loop) for loop in loops),
        ]
        for part in parts:
            measure(*part)  # warms up
        rows = [[measure(*part) for part in parts] for _ in range(options.repeats)]
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, 1 thread")
    print(f"levels {len(path.betas) - 1}, chains {options.chains}")
    times = np.array([[seconds for seconds, _ in row] for row in rows])
    names = "skvi", "numpy, logaddexp", "numpy, tuned by hand"
    for i, name in enumerate(names):
        w = np.concatenate([row[i][1] for row in rows])
        ratio = np.median(times[:, 0] / times[:, i])
        print(
            f"{name:<22} {1e6 * np.median(times[:, i]):5.0f} us per gradient of all "
            f"chains; skvi takes {ratio:.2f} of it; mean log weight {w.mean():.4f} "
            f"+- {w.std() / len(w) ** 0.5:.4f}"
        )


if __name__ == "__main__":
    main()
