"""Fits and predictions on a device: the same numbers, without waiting in between."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.base import clone

from skvi._estimator._base import BaseVariational
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.neural_network import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    BayesianModuleRegressor,
)
from skvi.priors import Normal
from skvi.solvers import Stochastic
from skvi.utils import _tensors
from skvi.utils._tensors import CPU
from tests.devices import META, emulated_device
from tests.modules import relu_network

_rng = np.random.default_rng(0)
X = _rng.normal(size=(60, 3))
_f = X @ [1.0, -0.5, 0.2]
LABELS = (_rng.uniform(size=60) < 1 / (1 + np.exp(-_f))).astype(int)
COUNTS, NUMBERS = _rng.poisson(np.exp(_f)), 3 + 2 * _f + 0.3 * _rng.normal(size=60)
CLASSES = np.digitize(_f, [-0.5, 0.5])

LEARNED, FIXED = Normal("learn"), {"prior": "normal", "noise_scale": 0.5}
SHORT = {"solver": Stochastic(batch_size=20), "max_iter": 2}
SMALL = {"hidden_layer_sizes": (4,), "max_iter": 2}
# Without draws: the same result to rounding.
EXACT = {
    "natural-gradient": (BayesianLogisticRegression(prior="normal"), LABELS),
    "factorized": (
        BayesianLogisticRegression(posterior="mean_field", prior="normal"),
        LABELS,
    ),
    "classes": (BayesianLogisticRegression(prior="normal"), CLASSES),
    "counts": (BayesianPoissonRegressor(prior="normal"), COUNTS),
    "empirical-bayes": (BayesianPoissonRegressor(prior=LEARNED), COUNTS),
    "exact": (BayesianLinearRegression(), NUMBERS),
    "nodes": (
        BayesianLinearRegression(posterior="full_rank"),
        NUMBERS,
    ),
    "conjugate": (BayesianLinearRegression(**FIXED), NUMBERS),
    "ard": (BayesianLinearRegression(prior="ard"), NUMBERS),
    "robust": (BayesianLinearRegression(loss="beta", max_iter=2), NUMBERS),
    "heavy-tails": (BayesianLinearRegression(**FIXED | {"prior": "laplace"}), NUMBERS),
}
NOISY = {
    "stochastic": (
        BayesianLogisticRegression(**{"prior": "normal", **SHORT}),
        LABELS,
    ),
    "precisions": (BayesianLinearRegression(**SHORT), NUMBERS),
    "moments": (BayesianLinearRegression(objective="eubo", **FIXED), NUMBERS),
    "multiplicative-network": (
        BayesianMLPRegressor(divergence="kl", posterior="multiplicative_flow", **SMALL),
        NUMBERS,
    ),
    "network": (
        BayesianMLPRegressor(
            skip_connection=False,
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            **SMALL,
        ),
        NUMBERS,
    ),
    "network-classes": (
        BayesianMLPClassifier(
            skip_connection=False, divergence="kl", posterior="mean_field", **SMALL
        ),
        CLASSES,
    ),
    "network-weights": (
        BayesianMLPClassifier(
            skip_connection=False,
            divergence="kl",
            posterior="mean_field",
            objective="iwelbo",
            **SMALL,
        ),
        LABELS,
    ),
    "module-with-points": (
        BayesianModuleRegressor(relu_network, deterministic="*.bias", max_iter=2),
        NUMBERS,
    ),
}
CASES = EXACT | NOISY
SLOW = {"robust", "empirical-bayes", "precisions", "moments"}
MARKED = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
    for name in CASES
]

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def problems(monkeypatch):
    """Problems that solvers were chosen for."""
    seen, choose = [], BaseVariational._choose_solver

    def spy(self, problem):
        seen.append(problem)
        return choose(self, problem)

    monkeypatch.setattr(BaseVariational, "_choose_solver", spy)
    return seen


def _fit(name, **parameters):
    model, y = CASES[name]
    return clone(model).set_params(random_state=0, **parameters).fit(X, y), y


@pytest.mark.parametrize("name", MARKED)
def test_fits_on_a_device(name, problems):
    """All that is trained is there; what is kept is in main memory, and pickles.

    Wrong variants: rows or posterior stay where they are.
    """
    with emulated_device():
        there, y = _fit(name, device="meta")
        for problem in problems:  # of a bent family also that of its normal start
            assert problem.target.rows.device == META
            assert problem.posterior.params.device == META
            assert problem.generator.device == META
        assert there.posterior_.params.device == CPU
        found = there.predict(X)
        text = pickle.dumps(there)
    here = pickle.loads(text)
    assert_allclose(here.predict(X), found, rtol=1e-6, atol=1e-9)
    if name in EXACT:
        model, _ = _fit(name, device="cpu")
        assert here.lower_bound_ == pytest.approx(model.lower_bound_, abs=1e-6)
        assert_allclose(found, model.predict(X), rtol=1e-4)
    if name == "conjugate":
        bounds = [m.evidence_bounds(X, y) for m in (here, model)]
        assert bounds[0].lower == pytest.approx(bounds[1].lower, abs=1e-9)


WITHOUT_WAITING = {
    "regressor": (
        BayesianMLPRegressor(
            skip_connection=False,
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
        ),
        NUMBERS,
    ),
    "classifier": (
        BayesianMLPClassifier(
            skip_connection=False, divergence="kl", posterior="mean_field"
        ),
        LABELS,
    ),
    "learned-scale": (
        BayesianMLPRegressor(
            skip_connection=False,
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            prior=LEARNED,
        ),
        NUMBERS,
    ),
    "weights": (
        BayesianMLPRegressor(
            skip_connection=False,
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            objective="iwelbo",
        ),
        NUMBERS,
    ),
    "robust": (
        BayesianMLPRegressor(
            skip_connection=False,
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            loss="beta",
        ),
        NUMBERS,
    ),
}


@pytest.mark.parametrize("name", WITHOUT_WAITING)
def test_steps_do_not_wait_for_the_device(name):
    """Numbers are read once in an epoch, however many steps it has.

    Wrong variant: `float(value)` of every step.
    """
    model, y = WITHOUT_WAITING[name]
    waits = []
    for batch_size in (30, 10):
        some = clone(model).set_params(**SMALL, device="meta")
        some.set_params(solver=Stochastic(batch_size=batch_size))
        with emulated_device() as device:
            some.set_params(random_state=0).fit(X, y)
            waits.append(device.n_waits)
    assert waits[1] <= waits[0]  # with three times as many steps


def test_predictions_are_copied_back_once():
    """Not in every block of rows."""
    many = np.tile(X, (300, 1))  # more rows than a block has
    with emulated_device() as device:
        model, _ = _fit("network-classes", device="meta")
        waits = []
        for rows in (X, many):
            before = device.n_waits
            model.predict_proba(rows)
            waits.append(device.n_waits - before)
    assert waits[0] == waits[1]


def test_auto_moves_networks_and_large_linear_models(monkeypatch, problems):
    monkeypatch.setattr(_tensors, "_best_device", lambda: META)
    with emulated_device():
        _fit("network")
        _fit("natural-gradient")
        monkeypatch.setattr(_tensors, "WORTH_MOVING", 60 * 4**2)
        _fit("natural-gradient")
        monkeypatch.setattr(_tensors, "WORTH_MOVING", 60 * 4**2 + 1)
        _fit("natural-gradient")
    devices = [problem.target.rows.device for problem in problems]
    assert devices == [META, CPU, META, CPU]


def test_sparse_features_stay_on_the_cpu(monkeypatch):
    monkeypatch.setattr(_tensors, "_best_device", lambda: META)
    monkeypatch.setattr(_tensors, "WORTH_MOVING", 1)
    rows, model = sparse.csr_array(X), BayesianLogisticRegression(prior="normal")
    with emulated_device():
        model.fit(rows, LABELS)
        with pytest.raises(ValueError, match="Sparse features stay on the CPU"):
            model.set_params(device="meta").fit(rows, LABELS)


@pytest.mark.parametrize("name", ["natural-gradient", "network"])
def test_a_second_fit_starts_on_the_device(name):
    with emulated_device():
        model, y = _fit(name, device="meta", warm_start=True)
        first = model.lower_bound_
        model.fit(X, y)
    assert model.lower_bound_ > first - 1


@pytest.mark.parametrize("name", ["classes", "counts", "ard", "network"])
def test_absent_devices(name):
    with pytest.raises(ValueError, match="device='abacus' is not a device of this"):
        _fit(name, device="abacus")
    with pytest.raises(ValueError, match="The 'device' parameter"):
        _fit(name, device=0)


def test_predicts_where_the_device_of_the_fit_is_not():
    with emulated_device():
        model, _ = _fit("network", device="meta")
        there = model.predict(X)
    assert_allclose(model.predict(X), there, rtol=1e-6)
    with pytest.raises(ValueError, match="device='meta' is not a device of this"):
        model.fit(X, NUMBERS)
