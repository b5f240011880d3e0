"""Networks of counts, and with a likelihood of the user's own."""

import pickle
from math import log

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from sklearn.base import clone

from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import (
    Likelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
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

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
LINEAR = {"hidden_layer_sizes": (), "max_iter": 40, "random_state": 0}
SMALL = {"hidden_layer_sizes": 3, "max_iter": 3, "random_state": 0}
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


def test_outputs_start_at_the_best_constant(as_trained):
    """Of large counts, without which fits begin far away. Wrong variant: at rate 1."""
    start = {
        **SMALL,
        "max_iter": 1,
        "solver": Stochastic(learning_rate=1e-9),
        "prior": "normal",
    }
    y = COUNTS["poisson"] + 10_000
    model = BayesianMLPRegressor(**(ONE | {"likelihood": "poisson"} | start)).fit(X, y)
    assert np.abs(np.log(model.predict(X) / y.mean())).max() < 1.0
    plain = clone(model).set_params(normalize_y=False).fit(X, y)
    assert plain.predict(X).max() < 100
    assert plain._model.offset(None, 3) is None


def test_several_counts_in_columns():
    """Each has its own dispersion; batches keep the origin of the first one.

    Wrong variant: the origin of each batch.
    """
    y = np.c_[COUNTS["poisson"], COUNTS["negative_binomial"]]
    model = BayesianMLPRegressor(
        **(ONE | {"likelihood": "negative_binomial"} | LINEAR)
    ).fit(X, y)
    assert model.predict_interval(X).shape == (300, 2, 2)
    assert model.dispersion_[0] < 0.05 < 0.2 < model.dispersion_[1]
    first = model._model.units.f_mean
    model.partial_fit(X, 50 * y)
    assert model._model.units.f_mean == first != 0
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict(X), model.predict(X))


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


@pytest.mark.parametrize(
    ("params", "y", "message"),
    [
        (
            {"likelihood": NegativeBinomialLikelihood("hyperprior")},
            1,
            r"use NegativeBinomialLikelihood\('learn'\)",
        ),
        ({}, -1, "y must hold counts, .* holds -1"),
        ({}, 0.5, "y must hold counts, .* holds 0.5"),
    ],
)
def test_what_does_not_go_together(params, y, message):
    """Wrong variant: parameters that are ignored."""
    model = BayesianMLPRegressor(
        **(ONE | {"likelihood": PoissonLikelihood(), **params})
    )
    with pytest.raises((IncompatibleComponentsError, ValueError), match=message):
        model.fit(X, np.full(300, float(y)))
