"""Modules that cannot be right say so before they are trained."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from skvi.exceptions import SkviWarning
from skvi.neural_network import BayesianModuleClassifier, BayesianModuleRegressor

FAST = {"max_iter": 1, "n_predict_draws": 2, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
CLASSES = {2: np.arange(40) % 2, 3: np.arange(40) % 3}


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


SOFTMAX, CENTERED = nn.Softmax(1), nn.LayerNorm(3, elementwise_affine=False)
LIMITED = [
    (2, nn.Sigmoid(), "probabilities, 0 to 1"),
    (2, nn.Sequential(nn.Identity(), nn.Sequential(nn.Hardsigmoid())), "probabilities"),
    (2, SOFTMAX, "probabilities, 1 to 1"),
    (2, nn.Tanh(), "limited, -1 to 1"),
    (2, nn.Softplus(), "limited, 0 to"),
    (3, SOFTMAX, "probabilities, 0 to 1"),
    (3, torch.sigmoid, "probabilities, 0 to 1"),
    (3, torch.tanh, "limited, -1 to 1"),
]
UNLIMITED = [
    (2, nn.Identity()),
    (2, lambda f: 5 * torch.tanh(f)),
    (3, nn.ReLU()),
    (3, nn.LogSoftmax(1)),
    (3, CENTERED),
]


@pytest.mark.parametrize(("n_classes", "function", "message"), LIMITED)
def test_outputs_that_are_no_log_odds(n_classes, function, message):
    """Wrong variant: silence."""
    module = Tail(1 if n_classes == 2 else n_classes, function)
    found = said(BayesianModuleClassifier(module, **FAST), X, CLASSES[n_classes])
    assert message in found
    assert "they are log odds" in found


@pytest.mark.parametrize("size", [1e-4, 1.0, 100.0])
@pytest.mark.parametrize(("n_classes", "function"), UNLIMITED)
def test_log_odds(n_classes, function, size):
    """Wrong variants: outputs of small features are limited; a relu of several is."""
    module = Tail(1 if n_classes == 2 else n_classes, function)
    y = CLASSES[n_classes]
    assert not said(BayesianModuleClassifier(module, **FAST), size * X, y)
    bare = nn.Linear(3, module.net[2].out_features, bias=False)
    assert not said(BayesianModuleClassifier(bare, **FAST), size * X, y)


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


@pytest.mark.parametrize(
    ("model", "y", "message"),
    [
        (BayesianModuleClassifier(nn.Linear(3, 2)), 2, "two classes use one log odds"),
        (BayesianModuleClassifier(nn.Linear(3, 1)), 3, "log odds for each class"),
        (BayesianModuleClassifier(), 2, r"BayesianModuleClassifier\(module\)"),
        (BayesianModuleRegressor(), 2, "BayesianMLPRegressor has its own network"),
        (
            BayesianModuleRegressor(nn.Linear(3, 1), likelihood="heteroscedastic"),
            2,
            "one of the log of its noise scale",
        ),
        (
            BayesianModuleRegressor(nn.Embedding(9, 1)),
            2,
            r"begin forward with x = x\.long\(\)",
        ),
    ],
)
def test_modules_that_do_not_fit_the_target(model, y, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, CLASSES[y])


def test_embedded_columns():
    """What the hint proposes."""

    class Embedded(Tail):
        def forward(self, x):
            return super().forward(self.embedding(x[:, 0].long()))

    module = Embedded(1, nn.Identity())
    module.embedding = nn.Embedding(4, 3)
    codes = np.column_stack([np.arange(40) % 4, X[:, 0]])
    y = np.where(codes[:, 0] == 2, 5.0, 0.0)
    model = BayesianModuleRegressor(module, max_iter=30, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert model.fit(codes, y).score(codes, y) > 0.9
