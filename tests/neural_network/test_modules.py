"""Bayesian torch modules: templates, nested parameters, points, images, pickles."""

import pickle

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from torch import nn

from skvi.exceptions import IncompatibleComponentsError
from skvi.neural_network import (
    BayesianMLPRegressor,
    BayesianModuleClassifier,
    BayesianModuleRegressor,
)
from skvi.posteriors import Ensemble
from skvi.priors import Laplace, Normal
from skvi.solvers import Stochastic
from tests.modules import relu_network

#: One network with the whole divergence and the plainest noise.
ONE = {
    "divergence": "kl",
    "posterior": "mean_field",
    "likelihood": "gaussian",
    "activation": "softplus",
    "skip_connection": False,
}

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
FAST = {"max_iter": 3, "n_predict_draws": 20, "random_state": 0}


def wave(n=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, 50 + 20 * (np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(n))


def digits(n=200):
    X, y = load_digits(return_X_y=True)
    return X[:n].astype(np.float32).reshape(-1, 1, 8, 8) / 16, y[:n]


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


def convolution(n_outputs, width=4):
    return nn.Sequential(
        nn.Conv2d(1, width, 3),
        nn.GroupNorm(1, width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9 * width, n_outputs),
    )


def test_a_module_learns_what_the_mlp_learns():
    """As far as fits from different starts go.

    Wrong variants: rows of a batch that are not scaled up; a narrower prior.
    """
    X, y = wave()
    settings = {
        "solver": Stochastic(learning_rate=0.05, n_draws=10),
        "max_iter": 60,
        "random_state": 0,
    }
    own = BayesianModuleRegressor(relu_network, **settings).fit(X, y)
    mlp = BayesianMLPRegressor(prior="normal", **(ONE | settings)).fit(X, y)
    assert own.lower_bound_ > mlp.lower_bound_ - 10
    assert own.score(X, y) > 0.85
    assert 3 < own.noise_scale_ < 6


def test_parameters_of_the_module_are_parameters():
    """Wrong variant: parameters that a clone, or a search, forgets."""
    X, y = wave(60)
    model = BayesianModuleRegressor(module=Net, module__width=3, **FAST)
    assert model.get_params()["module__width"] == 3
    assert "module__width=3" in repr(model)
    again = clone(model)
    assert again.get_params() == model.get_params()
    again.set_params(module__width=6, likelihood="heteroscedastic")
    assert again.fit(X, y).posterior_.layout["first.weight"].shape == (6, 2)
    assert again.posterior_.layout["last.weight"].shape == (2, 6)
    search = GridSearchCV(model, {"module__width": [2, 5]}, cv=2).fit(X, y)
    widths = [p["module__width"] for p in search.cv_results_["params"]]
    assert widths == [2, 5]
    found = search.best_estimator_.posterior_.layout["first.weight"].shape[0]
    assert found == search.best_params_["module__width"]
    with pytest.raises(TypeError, match="begin with module__"):
        BayesianModuleRegressor(width=3)
    with pytest.raises(ValueError, match="is an instance"):
        BayesianModuleRegressor(module=Net(2, 1), module__width=3).fit(X, y)
    with pytest.raises(TypeError, match="returned int"):
        BayesianModuleRegressor(module=lambda: 3).fit(X, y)


@pytest.mark.parametrize(
    "make", [Net, lambda n_features, n_outputs: Net(n_features, 1)]
)
def test_starts_are_those_of_the_random_state(make):
    """And nobody else's draws move. Wrong variant: torch.manual_seed for good."""
    X, y = wave(40)
    state = torch.get_rng_state()
    first = BayesianModuleRegressor(module=make, **FAST).fit(X, y)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    again = BayesianModuleRegressor(module=make, **FAST).fit(X, y)
    assert np.array_equal(first.predict(X), again.predict(X))
    other = clone(again).set_params(random_state=1).fit(X, y)
    assert not np.allclose(other.predict(X), again.predict(X))


def test_a_template_is_the_start_and_stays_as_it_is(as_trained):
    """Wrong variant: the weights of the template are trained in place."""
    X, y = wave(40)
    net = template()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    options = {
        **FAST,
        "max_iter": 1,
        "solver": Stochastic(learning_rate=1e-9),
        "module": net,
    }
    model = BayesianModuleRegressor(**options).fit(X, y)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    draws = model.sample_posterior(50, random_state=0)
    weight = before["first.weight"].numpy()
    assert np.allclose(draws["first.weight"].mean(0), weight, atol=0.02)
    trained = BayesianModuleRegressor(
        **{**options, "solver": Stochastic(learning_rate=0.1)}
    ).fit(X, y)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert not np.allclose(trained.predict(X), model.predict(X))


@pytest.mark.parametrize(
    ("deterministic", "points"),
    [
        (["*.bias", "norm.*"], ["first.bias", "norm.weight", "norm.bias", "last.bias"]),
        ("first.weight", ["first.weight"]),
    ],
)
def test_points_have_no_posterior(deterministic, points):
    """They are learned all the same. Wrong variant: points that stay at their start."""
    X, y = wave()
    options = {**FAST, "max_iter": 20, "module": template()}
    model = BayesianModuleRegressor(deterministic=deterministic, **options).fit(X, y)
    assert list(model.point_) == points
    assert not set(points) & set(model.posterior_.layout)
    start = {k: v.numpy() for k, v in options["module"].state_dict().items()}
    moved = [np.abs(model.point_[name] - start[name]).max() for name in points]
    assert min(moved) > 1e-3
    # One network is its points and a draw.
    theta = model._draw(1, 0)
    network = Net(2, 1).double()
    blocks = model.posterior_.layout.unpack(theta)
    values = {name: block[0] for name, block in blocks.items()}
    values |= {k: torch.from_numpy(v) for k, v in model.point_.items()}
    network.load_state_dict(values)
    expected = network(torch.from_numpy(X))[:, 0].detach().numpy()
    units = model._model.units
    found = model.sample_function(0)(X)
    assert np.allclose(found, units.y_mean + units.y_scale * expected)


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
    with pytest.raises(IncompatibleComponentsError, match="GroupNorm"):
        BayesianModuleRegressor(
            module=nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
        ).fit(X, y)


def test_images():
    """Averages over networks, in single precision; rows do not see each other.

    Wrong variants: the softmax of the mean output; rows that share a normalization.
    """
    X, y = digits()
    settings = {**FAST, "max_iter": 15, "solver": Stochastic(learning_rate=0.05)}
    model = BayesianModuleClassifier(module=convolution, **settings).fit(X, y)
    p = model.predict_proba(X)
    assert p.dtype == np.float32
    assert model.score(X, y) > 0.6
    f = model._drawn().by_rows(X, lambda f: f.transpose(0, 1)).transpose(1, 0, 2)
    log_p = f - logsumexp(f, 2, keepdims=True)
    assert np.allclose(p, np.exp(log_p).mean(0), atol=1e-6)
    order = np.random.default_rng(0).permutation(len(X))
    assert np.array_equal(model.predict_proba(X[order]), p[order])
    assert np.array_equal(model.predict_proba(X[:7]), p[:7])
    assert model.sample_function(0)(X[:3]).shape == (3, 10)
    balanced = clone(model).set_params(class_weight="balanced", max_iter=1)
    weight = np.linspace(0, 2, len(y))
    assert np.isfinite(balanced.fit(X, y, sample_weight=weight).lower_bound_)
    with pytest.raises(ValueError, match=r"rows of shape \(64,\)"):
        clone(model).fit(X.reshape(len(X), -1), y)


def test_pickles():
    """Modules of classes that can be imported. Wrong variant: a factory in the fit."""
    X, y = wave(30)
    for module in (Net, template(), relu_network):
        model = BayesianModuleRegressor(module=module, **FAST).fit(X, y)
        again = pickle.loads(pickle.dumps(model))
        assert np.array_equal(again.predict(X), model.predict(X))
        draws = model.sample_y(X, 2, random_state=0)
        assert np.array_equal(again.sample_y(X, 2, random_state=0), draws)


def test_members_of_an_ensemble_start_elsewhere():
    """Wrong variant: all members at the start of the module."""
    X, y = wave(30)
    model = BayesianModuleRegressor(
        module=Net,
        posterior=Ensemble(n_members=3),
        **{**FAST, "max_iter": 1, "solver": Stochastic(learning_rate=1e-9)},
    ).fit(X, y)
    means = model.sample_posterior(300, random_state=0)["first.weight"]
    assert means.std(0).max() > 0.1


def test_warm_start_goes_on():
    """Points included. Wrong variant: points that start anew."""
    X, y = wave()
    settings = {**FAST, "max_iter": 30, "solver": Stochastic(learning_rate=0.03)}
    model = BayesianModuleRegressor(module=Net, deterministic="*.bias", **settings)
    cold = model.fit(X, y).loss_curve_[0]
    end, point = model.loss_curve_[-1], model.point_["first.bias"]
    model.set_params(warm_start=True, max_iter=1, solver__learning_rate=1e-6).fit(X, y)
    assert abs(model.loss_curve_[0] - end) < 0.2 * (cold - end)
    assert np.allclose(model.point_["first.bias"], point, atol=1e-4)


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
