"""Coverage of 90 % intervals of coefficients of the default regression, by effect.

Effects are one to three standard errors of least squares, of random sign. Of
simulations from the prior 90 % are covered; of such effects, which are larger than most
that a shrinking prior expects, fewer.

    python benchmarks/coverage_linear.py [n_fits]
"""

import sys
import warnings

import numpy as np

from skvi.linear_model import BayesianLinearRegression


def covered(prior, n, d, n_fits):
    """Shares of effects of about 1, 1.5, ... 3 standard errors, and of all."""
    rng, found = np.random.default_rng(100 * d + n), []
    for _ in range(n_fits):
        X = rng.normal(size=(n, d))
        moved = X - X.mean(0)
        error = np.sqrt(np.diag(np.linalg.inv(moved.T @ moved)))
        ratio = rng.uniform(1, 3, d) * rng.choice([-1, 1], d)
        y = X @ (ratio * error) + rng.normal(size=n)
        table = BayesianLinearRegression(prior=prior).fit(X, y).summary(coverage=0.9)
        low, high = (np.asarray(part)[-d:] for part in (table.lower, table.upper))
        inside = (low <= ratio * error) & (ratio * error <= high)
        found += list(zip(np.round(2 * np.abs(ratio)) / 2, inside, strict=True))
    size, inside = np.array(found).T
    return {s: inside[size == s].mean() for s in np.unique(size)}, inside.mean()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    n_fits = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    for n, d in [(15, 1), (15, 2), (15, 5), (40, 1), (40, 2), (40, 5)]:
        for prior in "auto", "hierarchical":
            each, mean = covered(prior, n, d, n_fits)
            parts = " ".join(f"{size:.1f}: {share:.2f}" for size, share in each.items())
            print(f"{n} x {d} {prior:<13} {mean:.3f} | {parts}", flush=True)
