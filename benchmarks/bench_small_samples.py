"""What 90 % intervals of linear regression cover with few rows.

Data are drawn from the model itself, with precisions and coefficients from proper
hyperpriors: intervals of the exact posterior cover 90 % on average. Compared are
the fitted posterior alone, in which coefficients and precisions are independent, and
what the estimator reports, which integrates the precisions; the default hyperpriors,
which say nothing, see the same data.

Run: python benchmarks/bench_small_samples.py [n_repetitions]
"""

import platform
import sys
import time
import warnings
from datetime import date

import numpy as np

from skvi.linear_model import BayesianLinearRegression
from skvi.priors import GammaHyperprior, Normal

N_FEATURES, N_NEW, LEVELS = 3, 50, [0.05, 0.95]
NOISE, COEF, INTERCEPT = (2.0, 1.0), (2.0, 2.0), 2.0
PROPER = {
    "noise_scale": GammaHyperprior(*NOISE),
    "prior": Normal(GammaHyperprior(*COEF)),
    "intercept_prior": Normal(INTERCEPT),
    "normalize_y": False,
}


def draw(n, rng):
    """Features and targets of the fit, those that are new, and coefficients."""
    noise, precision = rng.gamma(NOISE[0]) / NOISE[1], rng.gamma(COEF[0]) / COEF[1]
    X = rng.standard_normal((n + N_NEW, N_FEATURES))
    X -= X[:n].mean(0)  # the prior of the intercept is that at the mean
    coef = rng.standard_normal(N_FEATURES) / np.sqrt(precision)
    f = INTERCEPT * rng.standard_normal() + X @ coef
    y = f + rng.standard_normal(n + N_NEW) / np.sqrt(noise)
    return X[:n], y[:n], X[n:], y[n:], coef


def covered(model, X, y, coef):
    """Shares of coefficients and targets in their intervals; mean log density."""
    table, ends = model.summary(0.9), model.predict_quantiles(X, LEVELS)
    lower, upper = table.lower[1:], table.upper[1:]
    inside = (ends[:, 0] < y) & (y < ends[:, 1])
    density = model.predict_log_density(X, y).mean()
    return np.mean((lower < coef) & (coef < upper)), inside.mean(), density


def measure(n, n_repetitions):
    """Means and standard errors over data sets, (3 kinds, 3 numbers), and seconds."""
    rng, found, seconds = np.random.default_rng(n), [], []
    for _ in range(n_repetitions):
        X, y, new, target, coef = draw(n, rng)
        row = []
        for parts in (PROPER, {}):
            start = time.perf_counter()
            model = BayesianLinearRegression(**parts).fit(X, y)
            seconds.append(time.perf_counter() - start)
            row.append(covered(model, new, target, coef))
            other = BayesianLinearRegression(posterior="full_rank", **parts).fit(X, y)
            row.append(covered(other, new, target, coef))
        found.append(row)
    found = np.array(found)
    return found.mean(0), found.std(0) / np.sqrt(n_repetitions), np.median(seconds)


def main(n_repetitions=400):
    """Print one line for each number of rows and each kind of posterior."""
    warnings.simplefilter("ignore")
    print(f"{date.today()}, {platform.processor() or platform.machine()}")
    print(f"{n_repetitions} data sets, {N_FEATURES} features, {N_NEW} new rows")
    print(" n  hyperpriors  posterior   coefficients [%]    targets [%]   log density")
    for n in (6, 10, 30):
        mean, error, seconds = measure(n, n_repetitions)
        names = [(h, p) for h in ("proper", "default") for p in ("exact", "fitted")]
        for (hyper, kind), m, e in zip(names, mean, error, strict=True):
            print(
                f"{n:2d}  {hyper:11s}  {kind:9s}"
                f"   {100 * m[0]:6.1f} +- {100 * e[0]:.1f}"
                f"    {100 * m[1]:6.1f} +- {100 * e[1]:.1f}"
                f"   {m[2]:6.2f} +- {e[2]:.2f}"
            )
        print(f"    median fit {1e3 * seconds:.1f} ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
