"""Marginal variances, and the collapse of bounded divergences
===========================================================

A factorized posterior of correlated coefficients is too narrow. Generalized VI can
choose a divergence that makes it wider; a bounded one can also let it collapse.

*The claims* (Knoblauch, Jewson and Damoulas, *Generalized Variational Inference*,
slides, figures 18 and 19): the hyperparameter of a Rényi, beta, gamma or weighted KL
divergence sets the marginal variances, wider or narrower than those of VI; the alpha
divergence is bounded, so that the posterior over-concentrates severely unless alpha is
chosen carefully.

*The picture* shows on the left the width of one coefficient's marginal for every order,
where 1 is KL. *The first claim holds*: below 1 wider than VI, above 1 narrower (alpha,
of which it does not speak, is wider again above 1). None knows the exact width: the
order that meets it differs from divergence to divergence, and the mean moves as well,
since more width is more prior. On the right the alpha divergence in several dimensions
P. *The second claim holds* for the formula read literally (``joint=True``): once
(1 - alpha) P > 2 every fit is a point mass, with a warning, and some are already
somewhat below. Coordinate by coordinate, the default of skvi for factorized posteriors,
it does not collapse.
"""

import sys
import warnings

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skvi.divergences import (
    AlphaDivergence,
    BetaDivergence,
    GammaDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.linear_model import BayesianLinearRegression

NOISE = 2.0


def fit(X, y, divergence, posterior="mean_field"):
    """A linear regression with known noise and N(0, 1) priors."""
    model = BayesianLinearRegression(
        divergence=divergence,
        posterior=posterior,
        prior="normal",
        noise_scale=NOISE,
        fit_intercept=False,
        normalize_y=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # counted below
        return model.fit(X, y)


# %%
# Two correlated features
# -----------------------

rng = np.random.default_rng(0)
z = rng.standard_normal((25, 2))
X = np.c_[z[:, 0], 0.9 * z[:, 0] + np.sqrt(1 - 0.9**2) * z[:, 1]]
y = X @ [2.0, -1.0] + NOISE * rng.standard_normal(25)
exact = fit(X, y, KLDivergence(), "full_rank")
plain = fit(X, y, KLDivergence())
print("First coefficient, mean (standard deviation)")
print(f"  exact {exact.coef_[0]:.2f} ({exact.coef_std_[0]:.2f})")
print(f"  VI    {plain.coef_[0]:.2f} ({plain.coef_std_[0]:.2f})")

kinds = {
    "Rényi": lambda order: RenyiDivergence(alpha=order),
    "alpha": lambda order: AlphaDivergence(alpha=order),
    "beta": lambda order: BetaDivergence(beta=order),
    "gamma": lambda order: GammaDivergence(gamma=order),
    "KL, weight 1 / order": lambda order: KLDivergence(weight=1 / order),
}
orders = np.array([0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0])
print("Other divergences, at the orders")
print(f"{'':<22}" + "".join(f"{order:>13.2f}" for order in orders[2::2]))
widths = {}
for name, make in kinds.items():
    fits = [fit(X, y, make(order)) for order in orders]
    widths[name] = np.array([model.coef_std_[0] for model in fits])
    cells = (f"{m.coef_[0]:.2f} ({m.coef_std_[0]:.2f})" for m in fits[2::2])
    print(f"{name:<22}" + "".join(f"{cell:>13}" for cell in cells))
for name, width in widths.items():
    wide = (width[orders < 1] > plain.coef_std_[0]).all()
    narrow = (width[orders > 1] < plain.coef_std_[0]).all()
    print(f"{name:<22}wider below 1: {wide}; narrower above 1: {narrow}")

# %%
# The collapse
# ------------
# A hundred rows, and P features that are not correlated. Width: the mean standard
# deviation, relative to that of KL, which is right here up to 10 %.

ratios = {True: [], False: []}
for size in (2, 4, 6, 10):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, size))
    y = X @ np.full(size, 0.3) + NOISE * rng.standard_normal(100)
    right = fit(X, y, KLDivergence()).coef_std_.mean()
    for alpha in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        for joint, found in ratios.items():
            model = fit(X, y, AlphaDivergence(alpha=alpha, joint=joint))
            collapsed = "collapsed" in model.diagnostics_["message"]
            width = model.coef_std_.mean() / right
            found.append(((1 - alpha) * size, width, collapsed, size))

print("\nAlpha divergence: fits that collapsed, and smallest width relative to KL")
table = "{:<22}{:>12}{:>12}{:>12}"
print(table.format("(1 - alpha) P", "up to 1", "1 to 2", "above 2"))
for joint, found in ratios.items():
    cells = []
    for low, high in ((0, 1), (1, 2), (2, 99)):
        # Not 2 itself to rounding.
        inside = [r for r in found if low + 1e-9 < r[0] <= high + 1e-9]
        cells.append(f"{sum(r[2] for r in inside)} of {len(inside)}")
    print(table.format("joint=True" if joint else "each coordinate", *cells))
    print(f"  smallest width {min(r[1] for r in found):.2g}")

# %%
# The picture
# -----------

figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
lines = ("o-", "s--", "^-.", "v:", "kx-")
for (name, width), style in zip(widths.items(), lines, strict=True):
    left.plot(orders, width, style, ms=5, label=name)
left.axhline(exact.coef_std_[0], color="0.5", lw=3, label="exact")
left.axhline(plain.coef_std_[0], color="k", lw=0.8, ls="--", label="VI (KL)")
left.set(xscale="log", xlabel="order (alpha, beta or gamma)")
left.set_xticks((0.25, 0.5, 1, 2, 4), ("0.25", "0.5", "1", "2", "4"))
left.minorticks_off()
left.set(ylabel="standard deviation (units of y per unit of x)")
left.set_title("Width of a marginal")
left.set_ylim(top=1.05)  # room for the legend
left.legend(fontsize="small", loc="upper right")
for size, mark in zip((2, 4, 6, 10), "os^D", strict=True):
    for joint, color in ((True, "k"), (False, "C1")):
        at = [r[0] for r in ratios[joint] if r[3] == size]
        heights = [max(r[1], 1e-4) for r in ratios[joint] if r[3] == size]
        fill = color if joint else "none"
        label = f"{'joint' if joint else 'per coordinate'}, P = {size}"
        right.plot(at, heights, mark, color=color, mfc=fill, label=label)
right.axvline(2, color="0.5", ls="--")
right.set(yscale="log", ylabel="width relative to KL (1e-4: or less)")
right.set(xlabel="(1 - alpha) P", title="Alpha divergence in P dimensions")
right.legend(fontsize="small", ncols=2, loc="center right")
path = sys.argv[1] if len(sys.argv) > 1 else "gvi_marginals.png"
figure.savefig(path, dpi=120)
print(f"\nThe picture is in {path}")
