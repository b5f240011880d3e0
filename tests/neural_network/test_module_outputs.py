"""Modules that cannot be right say so before they are trained."""

import warnings

import numpy as np
import torch
from torch import nn

from skvi.exceptions import SkviWarning
from skvi.neural_network import BayesianModuleRegressor

FAST = {"max_iter": 1, "n_predict_draws": 2, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))


class Tail(nn.Module):
    """A network, and a function of its outputs that is no layer."""

    def __init__(self, n_outputs, function):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, n_outputs))
        self.function = function

    def forward(self, x):
        return self.function(self.net(x))


def said(model, X, y):
    """What a fit says of the outputs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    texts = [str(one.message) for one in caught if one.category is SkviWarning]
    return " ".join(text for text in texts if "the outputs of the module" in text)


def test_outputs_that_are_no_standardized_targets():
    """Those of the noise may be limited. Wrong variant: all columns are looked at."""
    y = np.abs(X[:, :2])
    relu = Tail(2, lambda f: torch.stack([f[:, 0], f[:, 1].relu()], 1))
    found = said(BayesianModuleRegressor(relu, **FAST), X, y)
    assert "limited, 0 to" in found
    assert "normalize_y=False" in found
    assert not said(BayesianModuleRegressor(relu, normalize_y=False, **FAST), X, y)
    clamped = Tail(2, lambda f: torch.stack([f[:, 0], f[:, 1].tanh()], 1))
    model = BayesianModuleRegressor(clamped, likelihood="heteroscedastic", **FAST)
    assert not said(model, X, y[:, 0])
