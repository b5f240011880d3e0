"""Any torch module, with a posterior for as many of its weights as one likes
===========================================================================

A posterior over the weights of a small convolutional network for images of digits.
Which of its parameters have one is a choice: here the normalizations are learned as
points, and the rest is drawn. Turned digits show what the posterior is for: the more a
picture differs from those of the fit, the more do the networks disagree, and their
average is less sure than each of them.

The script draws the log probability of the right class over the angle.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from skvi.neural_network import BayesianModuleClassifier
from skvi.solvers import Stochastic

# %%
# A module
# --------
# Whatever returns a module will do. What it is called with are parameters of the
# estimator: ``module__width`` can be set, cloned, and searched. The number of classes
# comes by itself.


def convolution(n_outputs, width=8):
    """A convolution, and a normalization that treats every image separately."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3),
        nn.GroupNorm(1, width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9 * width, n_outputs),
    )


X, y = load_digits(return_X_y=True)
images = X.astype(np.float32).reshape(-1, 1, 8, 8) / 16
X_train, X_test, y_train, y_test = train_test_split(
    images, y, test_size=0.5, stratify=y, random_state=0
)
model = BayesianModuleClassifier(
    module=convolution,
    module__width=6,
    deterministic="1",  # the normalization
    solver=Stochastic(n_draws=2, tol=20.0),
    max_iter=200,
    random_state=0,
)
model.fit(X_train, y_train)
print(f"accuracy {model.score(X_test, y_test):.3f}")
print("posterior:", ", ".join(model.posterior_.layout))
print("points:   ", ", ".join(model.point_))

# %%
# Turned digits
# -------------
# One network, drawn from the posterior, beside the average over a hundred of them.

angles = np.arange(0, 91, 15)
average, single = [], []
one = model.sample_function(random_state=0)
for angle in angles:
    turned = rotate(X_test, angle, axes=(2, 3), reshape=False, order=1)
    average.append(model.predict_log_density(turned, y_test).mean())
    p = one(turned)[np.arange(len(y_test)), y_test]
    single.append(np.log(np.maximum(p, 1e-30)).mean())
    print(f"{angle:3d} degrees: {average[-1]:6.2f} nats, one network {single[-1]:6.2f}")

figure, ax = plt.subplots(figsize=(6, 3.5))
ax.plot(angles, average, "o-", label="average over 100 networks")
ax.plot(angles, single, "s--", label="one of them")
ax.set(xlabel="rotation [degrees]", ylabel="mean log probability [nats]")
ax.legend()
figure.tight_layout()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "torch_modules.png", dpi=150)
