"""Networks of counts, skewed and integer targets."""

import warnings
from copy import deepcopy
from math import log

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

from skvi.likelihoods import (
    Likelihood,
)
from skvi.linear_model import BayesianPoissonRegressor
from skvi.neural_network import BayesianMLPRegressor
from skvi.solvers import Stochastic

#: One network with the whole divergence and the plainest noise.
ONE = {
    "divergence": "kl",
    "posterior": "mean_field",
    "likelihood": "gaussian",
    "activation": "softplus",
    "skip_connection": False,
}

quiet = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
LINEAR = {"hidden_layer_sizes": (), "max_iter": 40, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3))
RATES = np.exp(X @ [0.5, -0.3, 0.0] + 4)
COUNTS = {
    "poisson": RNG.poisson(RATES),
    "negative_binomial": RNG.poisson(RATES * RNG.gamma(3.0, 1 / 3, 300)),
}


class Exponential(Likelihood):
    """Waiting times, with what a likelihood must implement alone."""

    def log_prob(self, f, y):
        value = f[..., 0] - y * f[..., 0].exp()
        return torch.where(y >= 0, value, -torch.inf)

    def log_power_integral(self, f, c):
        return (c - 1) * f[..., 0] - log(c)

    def mean(self, f):
        return torch.exp(-f[..., 0])

    def sample(self, f, generator):
        u = torch.rand(f.shape[:2], generator=generator, dtype=f.dtype)
        return -torch.log1p(-u) * self.mean(f)


@quiet
@pytest.mark.parametrize("name", COUNTS)
def test_a_linear_network_is_a_regression_of_counts(name):
    """The same features: means to 3 %, densities to .02 nats, dispersion to a tenth.

    Wrong variants: the rate for its logarithm; an origin that predictions lack.
    """
    y = COUNTS[name]
    model = BayesianMLPRegressor(
        solver=Stochastic(learning_rate=0.05), **(ONE | {"likelihood": name} | LINEAR)
    )
    model.fit(X, y)
    other = BayesianPoissonRegressor(likelihood=name).fit(X, y)
    np.testing.assert_allclose(model.predict(X), other.predict(X), rtol=0.03)
    gap = model.predict_log_density(X, y) - other.predict_log_density(X, y)
    assert np.abs(gap).mean() < 0.02
    ends, expected = model.predict_interval(X), other.predict_interval(X)
    assert np.abs(ends - expected).max() <= 0.05 * expected.max()
    draws = model.sample_y(X, 400, random_state=0)
    assert (draws == np.floor(draws)).all()
    mean, std = model.predict(X, return_std=True)
    assert np.abs((draws.mean(1) - mean) / std).max() < 5 / 20
    if name == "negative_binomial":
        assert model.dispersion_ == pytest.approx(other.dispersion_, rel=0.1)
    assert "f_mean" in model._model.taken_from_y


@quiet
def test_a_likelihood_of_ones_own():
    """Means, densities and draws are those of the mixture; the rest says what lacks.

    Wrong variant: quantiles of a normal.
    """
    y = RNG.exponential(np.exp(X @ [0.5, -0.3, 0.0] + 4))
    model = BayesianMLPRegressor(**(ONE | {"likelihood": Exponential()} | LINEAR)).fit(
        X, y
    )
    f = model._drawn().by_rows(X, lambda f: f[..., 0].T) - model._model.units.f_mean
    np.testing.assert_allclose(model.predict(X), np.exp(-f).mean(1))
    density = logsumexp(f - y[:, None] * np.exp(f), 1) - log(f.shape[1])
    np.testing.assert_allclose(model.predict_log_density(X, y), density)
    function = model.sample_function(random_state=0)(X)
    assert np.corrcoef(np.log(function), X @ [0.5, -0.3, 0.0])[0, 1] > 0.9
    share = stats.expon.cdf(model.sample_y(X, 50, random_state=0), 0, np.exp(4))
    assert 0.3 < share.mean() < 0.7
    with pytest.raises(NotImplementedError, match="Exponential has no quantile"):
        model.predict_interval(X)
    with pytest.raises(ValueError, match=r"y holds -1, which .* is impossible"):
        model.fit(X, np.where(y > 10, y, -1.0))


quiet_convergence = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning"
)
FAST = {
    "posterior": "mean_field",
    "divergence": "kl",
    "hidden_layer_sizes": (),
    "solver": Stochastic(learning_rate=0.05, n_draws=2, tol=0.5),
    "max_iter": 60,
    "random_state": 0,
}


def expenses(seed=0, n=300):
    g = np.random.default_rng(seed)
    X = g.normal(size=(n, 2))
    paid = g.random(n) < 1 / (1 + np.exp(-X[:, 0]))
    return X, np.where(paid, np.exp(1 + 0.5 * X[:, 1] + 0.4 * g.normal(size=n)), 0)


@pytest.fixture(scope="module")
def of_expenses():
    """A fit that finds the shape of the noise by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return BayesianMLPRegressor(likelihood="hurdle", **FAST).fit(*expenses(n=600))


def test_expenses(of_expenses):
    """The mean, an exact value for its quantiles, and no negative interval.

    Wrong variants: the location for the mean; 1e-17 for 0.
    """
    (X, y), model = expenses(n=600), of_expenses
    assert model.likelihood_.at == 0.0
    error = y.std() / 600**0.5
    assert model.predict(X).mean() == pytest.approx(y.mean(), abs=4 * error)
    low, high = model.predict_interval(X).T
    assert low.min() == 0
    assert ((low <= y) & (y <= high)).mean() > 0.85
    assert set(vars(model)) >= {"shape_", "noise_scale_"}
    draws = model.sample_y(X, 20, random_state=0)
    assert (draws == 0).mean() == pytest.approx((y == 0).mean(), abs=0.05)
    assert model.diagnostics_["explained"] == pytest.approx(model.score(X, y), abs=0.05)


@quiet_convergence
def test_impossible_targets():
    """Messages name the value. Wrong variant: NaN from logarithms."""
    X, y = expenses()
    with pytest.raises(ValueError, match="for positive targets"):
        BayesianMLPRegressor(likelihood="generalized_gamma", **FAST).fit(X, y)
    with pytest.raises(ValueError, match="none is repeated"):
        BayesianMLPRegressor(likelihood="hurdle", **FAST).fit(X, X[:, 0])
    with pytest.raises(ValueError, match=r"HurdleLikelihood\(at=0.0\)"):
        BayesianMLPRegressor(likelihood="hurdle", **FAST).partial_fit(X, y)


@quiet_convergence
def test_batches_keep_a_shape_that_a_fit_chose(of_expenses):
    """Wrong variant: the normal noise that "hurdle" stands for outside of a fit."""
    (X, y), model = expenses(), deepcopy(of_expenses)
    first = model.likelihood_
    found = model.partial_fit(X[:100], y[:100]).likelihood_
    assert found.at == first.at
    assert found.rest.noise.log_unit == first.rest.noise.log_unit
    assert found.rest.noise.noise_scale > 0
