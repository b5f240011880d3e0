"""Modules, sparse and flat networks, and students."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from torch import nn

from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model import BayesianLogisticRegression
from skvi.neural_network import (
    BayesianMLPRegressor,
    BayesianModuleRegressor,
    distill,
)
from skvi.neural_network._distill import DistilledRegressor
from skvi.neural_network._reports import (
    explained_log_loss,
    explained_variance,
)
from skvi.priors import Laplace, Normal
from skvi.solvers import Stochastic
from tests.modules import relu_network

quiet = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
FAST = {"max_iter": 3, "n_predict_draws": 20, "random_state": 0}


def wave(n=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, 50 + 20 * (np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(n))


class Net(nn.Module):
    """At the top of this file, so that it can be pickled."""

    def __init__(self, n_features, n_outputs, width=4):
        super().__init__()
        self.first = nn.Linear(n_features, width)
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, n_outputs)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


class Places(nn.Module):
    """Numbers, and codes for an embedding."""

    def __init__(self):
        super().__init__()
        self.place, self.last = nn.Embedding(5, 2), nn.Linear(4, 1)

    def forward(self, numbers, place):
        embedded = self.place(place.long())
        return self.last(torch.cat([numbers, embedded], 1))


class PlacesInOne(Places):
    """The same, from all columns."""

    def forward(self, x):
        return super().forward(x[:, [0, 2]], x[:, 1])


def template():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net(2, 1)


@quiet
def test_unknown_points_and_priors():
    X, y = wave(30)
    with pytest.raises(IncompatibleComponentsError, match=r"first\.weight"):
        BayesianModuleRegressor(module=Net, deterministic="conv").fit(X, y)
    with pytest.raises(IncompatibleComponentsError, match="but not all"):
        BayesianModuleRegressor(module=Net, deterministic="*").fit(X, y)
    prior = {"first.weight": Laplace(), "coef": Normal(), "intercept": Normal(3.0)}
    model = BayesianModuleRegressor(module=Net, prior=prior, **FAST).fit(X, y)
    assert model._model.prior.as_normal() is None
    # Nothing is left that an entry for intercepts would be for.
    points = ["*.bias", "norm"]
    model = BayesianModuleRegressor(module=Net, deterministic=points, **FAST)
    assert list(model.fit(X, y).posterior_.layout) == ["first.weight", "last.weight"]

    class Mixing(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    with pytest.raises(IncompatibleComponentsError, match="GroupNorm"):
        BayesianModuleRegressor(module=Mixing(X.shape[1], 1)).fit(X, y)


@quiet
@pytest.mark.parametrize("tracks", [True, False])
def test_modules_in_training_mode(tracks):
    """As with features standardized by hand, also where a fit goes on; no chance.

    Wrong variants: running statistics of the module; those of the rows of each fit;
    dropout left on; several rows for a fit that goes on.
    """
    X, y = wave(60)
    norm = nn.BatchNorm1d(X.shape[1], affine=False, track_running_stats=tracks)
    torch.manual_seed(0)
    rest = [nn.Linear(X.shape[1], 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1)]
    whole = BayesianModuleRegressor(nn.Sequential(norm, *rest), **FAST).fit(X / 5, y)
    scaled = X / 5
    scaled = (scaled - scaled.mean(0)) / np.sqrt(scaled.var(0, ddof=1) + norm.eps)
    alone = BayesianModuleRegressor(nn.Sequential(*rest).eval(), **FAST).fit(scaled, y)
    assert whole.predict(X / 5) == pytest.approx(alone.predict(scaled))
    assert "statistics" in whole.diagnostics_["module"]
    assert "dropout is off" in whole.diagnostics_["module"]
    assert "module" not in alone.diagnostics_
    before = whole._model.predictor._fixed
    whole.set_params(warm_start=True).fit(X[:1], y[:1])
    assert whole._model.predictor._fixed == before
    with pytest.raises(ValueError, match="at least two rows"):
        clone(whole).fit(X[:1], y[:1])


@quiet
def test_pickles():
    """Modules of classes that can be imported. Wrong variant: a factory in the fit."""
    X, y = wave(30)
    for module in (Net, template(), relu_network):
        model = BayesianModuleRegressor(module=module, **FAST).fit(X, y)
        again = pickle.loads(pickle.dumps(model))
        assert np.array_equal(again.predict(X), model.predict(X))
        draws = model.sample_y(X, 2, random_state=0)
        assert np.array_equal(again.sample_y(X, 2, random_state=0), draws)


@quiet
def test_inputs_by_name():
    """As if the module had taken its columns itself; places have their own levels.

    Wrong variants: the first columns for every input; all columns.
    """
    X, y = wave()
    codes = np.random.default_rng(1).integers(5, size=150)
    X, y = np.c_[X[:, 0], codes, X[:, 1]], y + 100 * codes
    inputs = {"place": 1, "numbers": [0, 2]}
    options = {
        "max_iter": 20,
        "solver": Stochastic(learning_rate=0.1, n_draws=2),
        "random_state": 0,
    }
    model = BayesianModuleRegressor(Places, inputs=inputs, **options).fit(X, y)
    other = BayesianModuleRegressor(PlacesInOne, **options).fit(X, y)
    np.testing.assert_allclose(model.predict(X), other.predict(X), rtol=1e-9)
    assert model.score(X, y) > 0.9
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict(X), model.predict(X))
    assert clone(model).get_params()["inputs"] == inputs
    for wrong in ({"numbers": [0, 2]}, {"place": 1, "numbers": [0, 3]}, {"x": 1}):
        with pytest.raises(ValueError, match="Places fails on rows of shape"):
            clone(model).set_params(inputs=wrong).fit(X, y)


def lazy_network(n_outputs):
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(n_outputs))


@quiet
def test_lazy_layers_take_their_shapes_from_the_data():
    """Those of a function; a template is initialized by its owner, and says how.

    Wrong variants: a start from the global generator; a torch error.
    """
    X, y = wave(40)
    fits = [BayesianModuleRegressor(lazy_network, **FAST).fit(X, y) for _ in range(2)]
    shapes = [(4, 2), (4,), (1, 4), (1,)]
    assert [b.shape for b in fits[0].posterior_.layout.values()] == shapes
    np.testing.assert_array_equal(*(model.predict(X) for model in fits))
    again = pickle.loads(pickle.dumps(fits[0]))
    np.testing.assert_array_equal(again.predict(X), fits[0].predict(X))
    template = lazy_network(1)
    model = BayesianModuleRegressor(template, **FAST)
    with pytest.raises(ValueError, match=r"module\(torch.zeros\(1, n_features\)\)"):
        model.fit(X, y)
    template(torch.zeros(1, 2))
    assert np.isfinite(model.fit(X, y).predict(X)).all()


#: One network with the whole divergence and the plainest noise.
ONE = {
    "divergence": "kl",
    "posterior": "mean_field",
    "likelihood": "gaussian",
    "activation": "softplus",
    "skip_connection": False,
}


def sparse_data(n=150, seed=0):
    """Two of five features count."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    return X, np.sin(2 * X[:, 1]) + X[:, 3] + 0.1 * rng.normal(size=n)


@pytest.fixture(scope="module")
def network():
    X, y = sparse_data()
    model = BayesianMLPRegressor(
        prior="horseshoe",
        hidden_layer_sizes=8,
        solver=Stochastic(learning_rate=0.1, n_draws=4),
        max_iter=40,
        random_state=0,
        **(ONE | {"activation": "relu"}),
    )
    return model.fit(X, y)


@quiet
def test_every_prediction_is_of_the_pruned_network(network):
    """And none of the original one. Wrong variant: pruned draws for `predict` only."""
    X, _ = sparse_data(5)
    before = network.predict(X)
    pruned = network.prune(2.0)
    assert np.array_equal(network.predict(X), before)
    assert np.array_equal(network.prune(0).predict(X), before)
    kept = pruned.sparsity_report(2.0).kept
    for name, draws in pruned.sample_posterior(3, random_state=0).items():
        expected = kept.get(name, np.ones(draws.shape[1:], bool))
        assert np.array_equal((draws != 0).all(0), expected)
        assert np.array_equal((draws != 0).any(0), expected)
    assert (network.sample_posterior(3)["coef_0"] != 0).all()
    again = pickle.loads(pickle.dumps(pruned))
    assert np.array_equal(again.predict(X), pruned.predict(X))
    function = pruned.sample_function(random_state=0)
    assert np.array_equal(function(X), again.sample_function(random_state=0)(X))
    refitted = pruned.set_params(max_iter=2).fit(*sparse_data())
    assert (refitted.sample_posterior(3)["coef_0"] != 0).all()


@quiet
def test_thresholds_are_checked(network):
    with pytest.raises(ValueError, match="threshold"):
        network.prune(-1.0)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_classes(library):
    """Wrong variant: each class of a row has the same weight."""
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = np.array(["b", "a", "c"])[y]
    if library == "polars":
        X = pytest.importorskip("polars").DataFrame(dict(X))
    teacher = BayesianLogisticRegression().fit(X, names)
    student = distill(teacher, X, (10,), 1000, random_state=0)
    assert student.feature_names_in_.tolist() == list(X.columns)
    expected, p = teacher.predict_proba(X), student.predict_proba(X)
    kl = (expected * np.log(expected / p)).sum(1)
    assert kl.mean() < 2e-3
    assert (student.predict(X) == teacher.predict(X)).mean() > 0.97
    again = pickle.loads(pickle.dumps(student))
    assert np.array_equal(again.predict_proba(X), p)


def test_deviations_that_vary():
    """Wrong variant: logs of deviations without the factor of the fit."""
    X = np.linspace(-1, 1, 60)[:, None]
    std = 0.1 + X[:, 0] ** 2
    student = DistilledRegressor((10,), random_state=0)
    student.fit(X, np.column_stack([np.sin(2 * X[:, 0]), std]))
    np.testing.assert_allclose(student.predict(X, return_std=True)[1], std, rtol=0.1)


def test_messages():
    with pytest.raises(ValueError, match="means and positive standard deviations"):
        DistilledRegressor().fit(np.zeros((3, 1)), [[1.0, 0.0]] * 3)


def test_what_has_no_distribution():
    X, y = load_diabetes(return_X_y=True)
    for model in (Ridge(), make_pipeline(StandardScaler(), Ridge())):
        with pytest.raises(TypeError, match=r"Ridge.*no predict\(X, return_std=True\)"):
            distill(model.fit(X, y), X)
    with pytest.raises(TypeError, match="no predict_proba"):
        distill(LinearSVC().fit(X, y > 100), X)


def flat_wave(n=100, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, size=(n, 1))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def test_weights_equal_repetition():
    """Wrong variant: the mean without weights."""
    rng = np.random.default_rng(0)
    y, weight = rng.normal(size=9), rng.integers(1, 4, size=9)
    mean, log_p = 0.5 * y + 0.1, np.log(rng.dirichlet(np.ones(3), size=9))
    codes = rng.integers(3, size=9)
    rows = np.repeat(np.arange(9), weight)
    ones = np.ones(len(rows))
    found = explained_variance(mean, y, weight.astype(float))
    assert found == pytest.approx(explained_variance(mean[rows], y[rows], ones))
    found = explained_log_loss(log_p, codes, weight.astype(float))
    assert found == pytest.approx(explained_log_loss(log_p[rows], codes[rows], ones))
    frequency = np.bincount(codes[rows], minlength=3) / len(rows)
    constant = np.log(np.tile(frequency, (9, 1)))
    found = explained_log_loss(constant, codes, weight.astype(float))[0]
    assert found == pytest.approx(0, abs=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_huge_weights_are_only_relative():
    """Wrong variant: squares of sums of weights as they are, which overflow."""
    X, y = flat_wave(30)
    model = BayesianMLPRegressor(
        hidden_layer_sizes=(), max_iter=2, random_state=0, **ONE
    )
    model.fit(X, y, sample_weight=np.full(30, 1e200))
    assert model.diagnostics_["explained"] == pytest.approx(model.score(X, y))
