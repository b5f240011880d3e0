"""Grouped rows: which shops really sell more?
===========================================

A hundred shops have 2 to 8 weeks of sales each. A mean of two weeks says little of a
shop: the best and the worst averages are mostly those of shops with few weeks. A model
in which the effects of the shops have a scale of their own, found from the data, moves
averages of few weeks to the others, as far as they deserve it.

*The picture.* Left: the effects of the shops, sorted, with 90 % intervals. Right: what
plain averages estimate, and what the model does, against the truth.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from skvi.linear_model import BayesianLinearRegression, GroupedFeatures

# %%
# Sales that depend on the price and on the shop
rng = np.random.default_rng(0)
n_shops = 100
shop = np.repeat(np.arange(n_shops), rng.integers(2, 9, n_shops))
price = rng.normal(3.0, 0.5, len(shop))
effect = rng.normal(0.0, 1.5, n_shops)
sales = 20 - 4 * price + effect[shop] + 3 * rng.normal(size=len(shop))

# %%
# One column for each shop; their coefficients share a scale
labels = GroupedFeatures("zero", sparse_output=False).fit(shop[:, None])
X = np.c_[price, labels.transform(shop[:, None])]
model = BayesianLinearRegression(column_groups={"shop": slice(1, None)}).fit(X, sales)
print(model.summary(groups=True))
print("The scale of the shops was simulated with 1.5, that of the noise with 3.")

# %%
# Without the group, and without the shops
plain = BayesianLinearRegression().fit(X[:, :1], sales)
gain = model.lower_bound_ - plain.lower_bound_
print(f"The shops matter: log evidence higher by {gain:.0f} nats")

# %%
# Plain averages of each shop's residuals, and the model's effects
rest = sales - X[:, :1] @ model.coef_[:1] - model.intercept_
average = np.bincount(shop, rest) / np.bincount(shop)
shrunken = model.coef_[1:]
truth = effect - effect.mean()
for name, found in (("averages", average), ("model", shrunken)):
    error = np.sqrt(np.mean((found - found.mean() - truth) ** 2))
    print(f"root mean squared error of the effects, {name}: {error:.2f}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
table = model.summary(groups="shop", feature_names=["price", *map(str, range(n_shops))])
table.plot(left)
left.set(xlabel="effect on sales", ylabel="shops", title="sorted, with 90 % intervals")
right.axline((0, 0), slope=1, color="gray", linewidth=1)
right.plot(truth, average, "x", color="#D55E00", label="averages of the shops")
right.plot(truth, shrunken, "o", color="#0072B2", label="model")
right.set(xlabel="true effect", ylabel="estimate", title="closer to the truth")
right.legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "grouped_rows.png")
