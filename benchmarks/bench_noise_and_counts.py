"""Heavy-tailed noise and overdispersed counts: coverage, densities, seconds.

``python benchmarks/bench_noise_and_counts.py``; a minute or two. Simulated data, 40
repetitions, 100 training rows and 100 new ones, 90 % intervals.
"""

import time

import numpy as np

from skvi.linear_model import BayesianLinearRegression, BayesianPoissonRegressor
from skvi.priors import Normal

N_REPEAT, N_TRAIN, N_TEST = 40, 100, 100
COEF = np.array([0.5, -0.4, 0.2])


def student_t(rng, df):
    """Targets with Student-t noise."""
    X = rng.normal(size=(N_TRAIN + N_TEST, 3))
    return X, X @ COEF + 0.5 * rng.standard_t(df, size=len(X))


def counts(rng, alpha):
    """Counts of mean 33 or so, and their dispersion."""
    X = rng.normal(size=(N_TRAIN + N_TEST, 3))
    mean = np.exp(X @ COEF + 3.5)
    return X, rng.poisson(rng.gamma(1 / alpha, alpha * mean) if alpha else mean)


def measure(model, draw, parameter):
    """Coverage, its error over repetitions, mean log density, seconds of fit."""
    rng, inside, density, seconds = np.random.default_rng(0), [], [], 0.0
    for _ in range(N_REPEAT):
        X, y = draw(rng, parameter)
        start = time.perf_counter()
        model.fit(X[:N_TRAIN], y[:N_TRAIN])
        seconds += time.perf_counter() - start
        new, target = X[N_TRAIN:], y[N_TRAIN:]
        low, high = model.predict_interval(new).T
        inside.append(np.mean((low <= target) & (target <= high)))
        density.append(model.predict_log_density(new, target).mean())
    error = np.std(inside, ddof=1) / N_REPEAT**0.5
    return np.mean(inside), error, np.mean(density), seconds / N_REPEAT


def main():
    """Print a table."""
    wide = {"intercept_prior": Normal(5.0)}
    print(f"{'data':<28}{'likelihood':<20}{'coverage':>16}{'nats':>9}{'s':>7}")
    for df in (3, 100):
        for name in ("gaussian", "student_t"):
            model = BayesianLinearRegression(likelihood=name)
            show(f"Student-t, {df} df", name, measure(model, student_t, df))
    for alpha in (0.0, 0.1, 0.3, 1.0):
        for name in ("poisson", "negative_binomial"):
            model = BayesianPoissonRegressor(
                likelihood=name, **{"prior": "normal", **wide}
            )
            show(f"counts, dispersion {alpha}", name, measure(model, counts, alpha))


def show(data, name, found):
    """Print a line."""
    covered, error, density, seconds = found
    text = f"{100 * covered:.1f} +- {100 * error:.1f} %"
    print(f"{data:<28}{name:<20}{text:>16}{density:>9.3f}{seconds:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
