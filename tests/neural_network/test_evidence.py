"""Bounds on the evidence of networks: exact without hidden units, honest with them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.exceptions import ConvergenceWarning

from skvi.evidence import _bounds
from skvi.likelihoods import GaussianLikelihood
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.predictors import MLPPredictor
from skvi.priors import Normal

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
NOISE, SCALE = 0.6, 1.4
QUICK = {"max_iter": 30, "random_state": 0}


def make_data(n=15, d=2, dtype=np.float64):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)).astype(dtype)
    return X, np.tanh(2 * X[:, 0]) + 0.3 * rng.normal(size=n)


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("auto", np.float32),
        pytest.param("tempering", np.float64, marks=pytest.mark.slow),
    ],
)
def test_without_hidden_units(method, dtype):
    """Linear regression. Wrong variants: scales of the prior, the units of y."""
    X, y = make_data(dtype=dtype)
    model = BayesianMLPRegressor(
        hidden_layer_sizes=(),
        prior=Normal(SCALE),
        normalize_y=True,
        **(ONE | QUICK | {"likelihood": GaussianLikelihood(NOISE)}),
    ).fit(X, y)
    bounds = model.evidence_bounds(X, y, method=method, random_state=0)
    unit = y.std()
    # Weights act on X, with prior scales of 1 / sqrt(d); everything in units of y.
    features = np.column_stack([X / np.sqrt(X.shape[1]), np.ones(len(X))])
    covariance = (NOISE / unit) ** 2 * np.eye(len(y))
    covariance = covariance + SCALE**2 * features @ features.T
    scaled = (y - y.mean()) / unit
    exact = stats.multivariate_normal(None, covariance).logpdf(scaled)
    exact -= len(y) * np.log(unit)
    low, high = bounds.interval()
    assert bounds.reliable
    assert low < exact < high < low + 0.2
    assert "permuted" not in bounds.reason


@pytest.mark.slow
def test_one_hidden_unit(monkeypatch, global_random_seed):
    """Truth from 100,000 draws of the prior; two copies, which differ in sign.

    Chains are judged by what both share. Wrong variant: R-hat of the weights.
    """
    short = replace(_bounds.FROM_PRIOR, n_warmup=80)
    monkeypatch.setattr(_bounds, "FROM_PRIOR", short)
    X, y = make_data()
    labels = (y > 0).astype(int)
    model = BayesianMLPClassifier(
        skip_connection=False,
        divergence="kl",
        posterior="mean_field",
        hidden_layer_sizes=1,
        activation="tanh",
        prior=Normal(1.0),
        **QUICK,
    )
    model.fit(X, labels)
    bounds = model.evidence_bounds(
        X, labels, n_draws=1600, random_state=global_random_seed
    )
    predictor = MLPPredictor(2, 1, (1,), "tanh", *model._scales)
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(100_000, predictor.layout.size))
    theta *= predictor.layout.natural_scales().numpy()
    f = predictor.forward(torch.from_numpy(theta), torch.from_numpy(X))[..., 0]
    signs = torch.from_numpy(2.0 * labels - 1)
    log_p = torch.nn.functional.logsigmoid(signs * f).sum(1)
    exact = float(torch.logsumexp(log_p, 0) - np.log(len(theta)))
    weights = torch.exp(log_p - exact)
    error = float(weights.std()) / len(theta) ** 0.5
    low, high = bounds.interval()
    assert low - 2 * error < exact < high + 2 * error
    assert bounds.reliable
    assert bounds.method == "tempering"
    assert high - low < 0.8
    # From a normal around one copy, weights of chains in the other are useless.
    one_copy = model.evidence_bounds(
        X, labels, method="importance", n_draws=400, random_state=0
    )
    assert not one_copy.reliable
    assert "exp(0.7) equivalent modes" in one_copy.reason
    with pytest.raises(ValueError, match="of the fit"):
        model.evidence_bounds(X, 1 - labels)


def test_long_paths_are_refused_at_once(monkeypatch):
    """As the default network has one: the reason says what to do.

    Wrong variant: hours, whatever `max_seconds` is.
    """
    monkeypatch.setattr("skvi.evidence._bounds.tempered_sides", None)  # not reached
    X = np.random.default_rng(0).normal(size=(120, 2))
    model = BayesianMLPRegressor(max_iter=2, divergence="kl", random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, X[:, 0])
    assert model.posterior_.layout.size * len(X) > 3e5
    monkeypatch.setattr("skvi.evidence._importance.MAX_PATH", 3e5)
    bounds = model.evidence_bounds(X, X[:, 0], max_seconds=5, random_state=0)
    assert not bounds.reliable
    assert "method='tempering'" in bounds.reason
    with pytest.raises(TypeError, match="not callable"):
        model.evidence_bounds(X, X[:, 0], method="tempering")


def test_networks_have_a_time_limit_by_default(monkeypatch):
    """Wrong variant: five minutes without a word, with three units on 308 rows."""
    X = np.random.default_rng(0).normal(size=(40, 2))
    shape = {"hidden_layer_sizes": 2, "divergence": "kl", "max_iter": 2}
    model = BayesianMLPRegressor(**shape, random_state=0).fit(X, X[:, 0])
    monkeypatch.setattr("skvi.evidence._bounds.PATH_SECONDS", 0.5)
    bounds = model.evidence_bounds(X, X[:, 0], random_state=0)
    assert not bounds.reliable
    assert "max_seconds" in bounds.reason
