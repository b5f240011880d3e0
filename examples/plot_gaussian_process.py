"""Gaussian processes: a curve, its gap, and how many points summarize it
=======================================================================

A Gaussian process fits a curve without a formula. Its intervals widen where there are
no rows, and it knows the log evidence of its kernel exactly. For thousands of rows the
function is summarized by its values at a few inducing points.

*The picture.* Left: rows with a gap, the mean, and 90 % intervals for new rows. Right:
the lower bound that the fit reports rises with more inducing points to the exact log
evidence: with 14 of them it is a nat below.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from skvi.gaussian_process import SparseGaussianProcessRegressor

# %%
# Rows of a curve, with none between 4 and 6
rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 10, 150))
x = x[(x < 4) | (x > 6)]
y = np.sin(1.5 * x) + 0.3 * x + 0.2 * rng.normal(size=len(x))
X = x[:, None]

# %%
# Each row is an inducing point by default, up to 1,500 rows
exact = SparseGaussianProcessRegressor().fit(X, y)
bounds = exact.evidence_bounds(X, y)
print(exact.kernel_)
print(f"standard deviation of the noise: {exact.noise_scale_:.2f}, simulated with 0.20")
print(bounds)

# %%
# The same kernel with fewer points
counts = [2, 3, 4, 5, 6, 8, 10, 14, 20]
lower = []
for n_inducing in counts:
    sparse = SparseGaussianProcessRegressor(
        exact.kernel_, optimizer=None, n_inducing=n_inducing, random_state=0
    ).fit(X, y)
    lower.append(sparse.lower_bound_)
    print(f"{n_inducing:3d} points: lower bound {sparse.lower_bound_:8.2f} nats")

# %%
grid = np.linspace(-1, 11, 400)[:, None]
mean = exact.predict(grid)
low, high = exact.predict_interval(grid).T

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.fill_between(grid[:, 0], low, high, alpha=0.25, label="90 % interval")
left.plot(grid[:, 0], mean, label="mean")
left.plot(x, y, "k.", markersize=4, label="rows")
left.set(xlabel="x", ylabel="y", title="wide where there are no rows")
left.legend()
right.plot(counts, lower, "o-", label="lower bound of the fit")
right.axhline(bounds.estimate, color="k", linestyle="--", label="log evidence")
right.set(xlabel="inducing points", ylabel="nats", title="few points suffice")
right.set_ylim(bounds.estimate - 60, bounds.estimate + 5)
right.legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "gaussian_process.png", dpi=120)
