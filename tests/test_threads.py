"""Fitted estimators answer in several threads as in one; fits beside each other."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from skvi.changepoint import BayesianChangepointDetector
from skvi.inference import VariationalInference
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.model_selection import BatchedGridSearchCV, EvidenceSearch
from skvi.neural_network import (
    BayesianModuleClassifier,
    BayesianModuleRegressor,
    distill,
)
from tests.modules import relu_network
from tests.problems import NETWORK, PROBLEMS, assert_same, data, fitted

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
N_THREADS, N_CALLS = 4, 400
MODULE = {k: v for k, v in NETWORK.items() if k != "hidden_layer_sizes"}
NUMBERS, LABELS = "linear", "multinomial"  # problems whose data serve


class Remembering(nn.Module):
    """Keeps a value of its own between two layers."""

    def __init__(self, n_features, n_outputs):
        super().__init__()
        self.first, self.last = nn.Linear(n_features, 5), nn.Linear(5, n_outputs)

    def forward(self, X):
        self.hidden = self.first(X)
        return self.last(torch.relu(self.hidden))


class Slow(Remembering):
    """Draws the start of its last layer some time after that of the first."""

    def __init__(self, n_features, n_outputs):
        super().__init__(n_features, n_outputs)
        time.sleep(0.02)
        self.last.reset_parameters()


class Drawing:
    """Draws of a posterior in the place of predictions."""

    def __init__(self, model):
        self.model = model

    def predict(self, X):
        return self.model.sample_posterior(5, random_state=0)["theta"]


def density(theta):
    return -0.5 * (theta["theta"] - 1).square().sum(-1)


def module(kind, make=relu_network):
    name = LABELS if kind is BayesianModuleClassifier else NUMBERS
    return kind(make, **MODULE).fit(*data(name))


def search(kind, **options):
    model = BayesianLinearRegression(prior="normal")
    grid = {"prior__scale": [0.5, 2.0]}
    return kind(model, grid, **options).fit(*data(NUMBERS))


#: Those that evaluate a module of torch, which threads would share.
SHARING = {
    "module": lambda: module(BayesianModuleRegressor),
    "module of classes": lambda: module(BayesianModuleClassifier),
    "module that remembers": lambda: module(BayesianModuleRegressor, Remembering),
    "flow": lambda: BayesianLogisticRegression(
        posterior="flow", solver="stochastic", max_iter=1, random_state=0
    ).fit(*data("logistic")),
    "flow of a density": lambda: Drawing(
        VariationalInference(
            density, {"theta": 2}, posterior="flow", max_iter=1, random_state=0
        ).fit()
    ),
}
OTHERS = {
    "detector": lambda: BayesianChangepointDetector().fit(data(NUMBERS)[0]),
    "evidence search": lambda: search(EvidenceSearch, random_state=0),
    "batched search": lambda: search(BatchedGridSearchCV, cv=2),
    "distilled": lambda: distill(
        fitted("mlp"), data("mlp")[0], n_rows=200, random_state=0
    ),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in [*PROBLEMS, *OTHERS]]


@pytest.fixture
def short_turns():
    """Threads that change places often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def side_by_side(work, n_calls):
    with ThreadPoolExecutor(N_THREADS) as pool:
        return list(pool.map(lambda _: work(), range(n_calls)))


@pytest.mark.parametrize("name", [*SHARING, *SLOW])
def test_predictions_in_threads(name, short_turns):
    """400 of them, in four threads, are those of one thread.

    Wrong variant: calls put their tensors into one module at the same time.
    """
    if name in PROBLEMS:
        model, X = fitted(name), data(name)[0]
    else:
        model = {**SHARING, **OTHERS}[name]()
        X = data(LABELS if "classes" in name else NUMBERS)[0]
    ask = model.predict_proba if hasattr(model, "predict_proba") else model.predict
    expected = ask(X)
    assert np.isfinite(expected).all()
    for found in side_by_side(lambda: ask(X), N_CALLS):
        np.testing.assert_array_equal(found, expected)


def test_fits_of_one_module_in_threads(short_turns):
    """Of a template, and of a class whose instances draw their own starts.

    Wrong variant: they draw from one generator that each of them has seeded.
    """
    X, y = data(NUMBERS)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        template = relu_network(X.shape[1], 1)

    def fit_both():
        for given in (template, Slow):
            model = BayesianModuleRegressor(given, **MODULE).fit(X, y)
            yield f"of {type(given).__name__}", model.predict(X)

    expected = dict(fit_both())
    for found in side_by_side(lambda: dict(fit_both()), 2 * N_THREADS):
        assert_same(found, expected, rtol=1e-5, atol=1e-5)
