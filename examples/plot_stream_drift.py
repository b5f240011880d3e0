"""A stream that drifts
=======================

The coefficients of a logistic regression turn slowly while its rows arrive. Each chunk
is scored before it is learned. A posterior that keeps everything becomes certain of the
average of all times; with ``forgetting`` it follows.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import skvi
from skvi.linear_model import BayesianLogisticRegression

figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")


def chunks(n_chunks=60, n_rows=100):
    rng = np.random.default_rng(0)
    for angle in np.linspace(0, np.pi, n_chunks):
        X = rng.standard_normal((n_rows, 2))
        f = 2 * X @ [np.cos(angle), np.sin(angle)]
        yield X, (f + rng.logistic(size=n_rows) > 0).astype(int)


name = "log_predictive_density"
for forgetting in (1.0, 0.9, 0.5):
    model = BayesianLogisticRegression(prior="normal")
    found = skvi.stream(model, chunks(), classes=[0, 1], forgetting=forgetting)
    ax.plot(found.scores[name], label=f"forgetting={forgetting}")
    print(f"forgetting={forgetting}: {found.mean(name):.3f} nats per row")
ax.axhline(-np.log(2), color="0.6", linestyle=":", label="knows nothing")
ax.set(xlabel="chunk", ylabel="mean log density before it is learned")
ax.legend(fontsize="small")

path = sys.argv[1] if len(sys.argv) > 1 else "stream_drift.png"
figure.savefig(path, dpi=120)
print(f"The picture is in {path}")
