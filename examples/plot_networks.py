"""Curves, noise that changes, and a gap in the data
=================================================

The default network on rows whose noise grows to the right, with a gap in which there
are none. The interval follows the noise where there are rows, and widens where there
are none: the first is uncertainty of the rows, the second of the network. Below, both
parts are shown apart.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from skvi.neural_network import BayesianMLPRegressor

rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-3, -0.5, 200), rng.uniform(1, 3, 200)])[:, None]
y = np.sin(2 * x[:, 0]) + 0.1 * np.exp(x[:, 0] / 2) * rng.normal(size=400)
model = BayesianMLPRegressor(random_state=0).fit(x, y)

grid = np.linspace(-4, 4, 200)[:, None]
low, high = model.predict_interval(grid, coverage=0.9).T
parts = model.predict_uncertainty(grid)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.fill_between(grid[:, 0], low, high, alpha=0.25, label="90 % interval")
left.plot(grid, model.predict(grid), label="mean")
left.plot(x, y, "k.", ms=2, label="rows")
left.set(title="What the network predicts", xlabel="x", ylim=(-3, 3))
left.legend(loc="lower left")
right.plot(grid, parts["noise_std"], label="of the noise: more rows do not help")
right.plot(grid, parts["function_std"], label="of the network: more rows help")
for start, end in [(-3, -0.5), (1, 3)]:
    right.axvspan(start, end, color="black", alpha=0.06)
right.set(
    title="Standard deviation, by its cause", xlabel="x (gray: rows)", ylim=(0, 0.8)
)
right.legend(loc="upper center")
for place in (-2.0, 0.25, 2.5):
    found = {k: v[0] for k, v in model.predict_uncertainty([[place]]).items()}
    print(place, {k: f"{v:.2f}" for k, v in found.items()})

path = sys.argv[1] if len(sys.argv) > 1 else "networks.png"
figure.savefig(path, dpi=120)
print(f"The picture is in {path}")
