"""Networks for skewed, positive and zero-inflated targets: choice and predictions."""

import numpy as np
import pytest

from skvi.likelihoods import (
    GaussianLikelihood,
    GeneralizedGammaLikelihood,
    HeteroscedasticLikelihood,
    HurdleLikelihood,
    JohnsonSULikelihood,
    StudentTLikelihood,
)
from skvi.neural_network import BayesianMLPRegressor
from skvi.neural_network._likelihood import (
    candidate_likelihoods,
    likely_shape,
    repeated_value,
)
from skvi.solvers import Stochastic

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
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


def test_repeated_values():
    """Wrong variant: grades, whose values are all repeated, are hurdles."""
    g = np.random.default_rng(0)
    y = g.normal(size=300)
    assert repeated_value(y) is None
    assert repeated_value(np.round(y)) is None
    assert repeated_value(np.where(y < 1, 7.5, y)) == 7.5
    assert repeated_value(np.where(y < 2.5, y, 7.5)) is None
    weight = np.where(y < 1, 1e-3, 1.0)
    assert repeated_value(np.where(y < 1, 7.5, y), weight) is None


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e6])
def test_likely_shapes(unit):
    """Additive and multiplicative noise of positive targets, in any unit.

    Twenty normal numbers do not tell a shape. Wrong variants: no Jacobian of the
    logarithm; the largest density of few rows, which has most numbers.
    """
    g = np.random.default_rng(0)
    X = g.normal(size=(300, 2))
    growing = np.exp(2 + 0.6 * X[:, 0] + 0.5 * g.normal(size=300))
    added = 10 + 2 * X[:, 0] + g.exponential(size=300)
    assert isinstance(likely_shape(X, unit * growing, None), GeneralizedGammaLikelihood)
    assert isinstance(likely_shape(X, unit * added, None), JohnsonSULikelihood)
    assert isinstance(likely_shape(X, unit * (growing - 9), None), JohnsonSULikelihood)
    rest = likely_shape(*expenses(), None).rest
    assert isinstance(rest, GeneralizedGammaLikelihood)
    assert len(candidate_likelihoods(expenses()[1])) == 3
    normal = [likely_shape(X[:20], unit * g.normal(5, 2, 20), None) for _ in range(20)]
    assert sum(isinstance(found, GaussianLikelihood) for found in normal) >= 15


@pytest.mark.parametrize(
    "likelihood",
    ["hurdle", HurdleLikelihood(StudentTLikelihood(), 0.0), "johnson_su"],
    ids=repr,
)
def test_units_of_y(likelihood):
    """Predictions follow the unit of y; a probability has none.

    Wrong variants: zeros among the rows that give y its scale; the Jacobian of a
    probability.
    """
    X, y = expenses()
    first = BayesianMLPRegressor(likelihood=likelihood, **FAST).fit(X, y)
    second = BayesianMLPRegressor(likelihood=likelihood, **FAST).fit(X, 1e3 * y)
    np.testing.assert_allclose(second.predict(X), 1e3 * first.predict(X), rtol=1e-3)
    quantiles = (
        model.predict_quantiles(X, [0.05, 0.5, 0.9]) for model in (first, second)
    )
    low, high = quantiles
    np.testing.assert_allclose(high, 1e3 * low, rtol=1e-3, atol=1e-3)
    log_unit = np.log(1e3) * ((y != 0) if likelihood != "johnson_su" else 1)
    found = second.predict_log_density(X, 1e3 * y) + log_unit
    np.testing.assert_allclose(found, first.predict_log_density(X, y), atol=1e-3)
    jacobian = np.sum(log_unit * np.ones(len(y)))
    assert second.lower_bound_ + jacobian == pytest.approx(first.lower_bound_, abs=0.5)


def test_expenses():
    """The mean, an exact value for its quantiles, and no negative interval.

    Wrong variants: the location for the mean; 1e-17 for 0.
    """
    X, y = expenses(n=600)
    model = BayesianMLPRegressor(likelihood="hurdle", **FAST).fit(X, y)
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


def test_impossible_targets():
    """Messages name the value. Wrong variant: NaN from logarithms."""
    X, y = expenses()
    with pytest.raises(ValueError, match="for positive targets"):
        BayesianMLPRegressor(likelihood="generalized_gamma", **FAST).fit(X, y)
    with pytest.raises(ValueError, match="none is repeated"):
        BayesianMLPRegressor(likelihood="hurdle", **FAST).fit(X, X[:, 0])
    with pytest.raises(ValueError, match=r"HurdleLikelihood\(at=0.0\)"):
        BayesianMLPRegressor(likelihood="hurdle", **FAST).partial_fit(X, y)


def test_batches_keep_the_shape():
    """Wrong variant: the unit of logarithms of another batch."""
    X, y = expenses()
    noise = HeteroscedasticLikelihood(GeneralizedGammaLikelihood())
    given = HurdleLikelihood(noise, 0.0)
    model = BayesianMLPRegressor(likelihood=given, **FAST)
    model.partial_fit(X, y)
    first = model.likelihood_.rest.noise.log_unit
    model.partial_fit(X[:100], 3 * y[:100])
    assert model.likelihood_.rest.noise.log_unit == first
    assert np.isfinite(model.predict(X)).all()


def test_batches_keep_a_shape_that_a_fit_chose():
    """Wrong variant: the normal noise that "hurdle" stands for outside of a fit."""
    X, y = expenses()
    model = BayesianMLPRegressor(likelihood="hurdle", **FAST).fit(X, y)
    first = model.likelihood_
    found = model.partial_fit(X[:100], y[:100]).likelihood_
    assert found.at == first.at
    assert found.rest.noise.log_unit == first.rest.noise.log_unit
    assert found.rest.noise.noise_scale > 0
