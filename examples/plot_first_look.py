"""A first look: which model, and how sure
==========================================

Two questions that point estimates leave open. Which of four groups of features should
a diagnosis use? Their log evidences, each known to a tenth of a nat, answer without a
validation set. And how far can a prediction be trusted? The intervals of a regression
on random Fourier features widen where the data end.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import scale

import skvi
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression

X, y = load_breast_cancer(return_X_y=True)
groups = {
    "errors": slice(10, 20),
    "means": slice(0, 10),
    "worst values": slice(20, 30),
    "all 30": slice(0, 30),
}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for place, (name, columns) in enumerate(groups.items()):
    features = scale(X[:, columns])
    model = BayesianLogisticRegression().fit(features, y)
    bounds = model.evidence_bounds(features, y, precision=0.1, random_state=0)
    low, high = bounds.interval()
    print(f"{name:12}  log evidence between {low:8.2f} and {high:8.2f}")
    left.plot((low + high) / 2, place, "o", color="C0")
    left.hlines(place, -190, (low + high) / 2, color="C0", lw=1)
    left.annotate(
        f"{low:.2f} to {high:.2f}", (high, place), (8, -4), textcoords="offset points"
    )
left.set(
    yticks=range(len(groups)),
    yticklabels=groups,
    xlabel="log evidence, nats",
    title="Breast cancer: which features?",
    xlim=(-190, 25),
    ylim=(-0.5, 3.5),
)

rng = np.random.default_rng(0)
x = np.sort(np.concatenate([rng.uniform(-3, -0.5, 60), rng.uniform(0.5, 2, 60)]))
target = np.sin(2 * x) + 0.1 * rng.normal(size=len(x))
new = np.linspace(-5, 5, 200)
curve = make_pipeline(
    RBFSampler(gamma=0.5, n_components=200, random_state=0), BayesianLinearRegression()
).fit(x[:, None], target)
low, high = skvi.predict_interval(curve, new[:, None], coverage=0.9).T
right.fill_between(new, low, high, alpha=0.25, label="90 % interval")
right.plot(new, curve.predict(new[:, None]), color="C0", label="mean")
right.plot(x, target, ".", ms=3, color="black", label="data")
right.set(title="A regression, beyond its data", xlabel="x", ylim=(-4, 4))
right.legend(loc="upper center", fontsize="small")

path = sys.argv[1] if len(sys.argv) > 1 else "first_look.png"
figure.savefig(path, dpi=120)
print(f"The picture is in {path}")
