"""Networks with noise that depends on the features, with heavy tails, and K targets."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone

from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import (
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    StudentTLikelihood,
)
from skvi.metrics._scorers import NegCRPS
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
SETTINGS = {
    "hidden_layer_sizes": 20,
    "activation": "relu",  # needs the fewest iterations
    "likelihood": "heteroscedastic",
    "solver": Stochastic(learning_rate=0.02),
    "max_iter": 150,
    "random_state": 0,
}

CONSTANT = {"likelihood": "gaussian"}


def varying(scale):
    """Normal noise of a known level, of which the scales of rows are multiples."""
    return {"likelihood": HeteroscedasticLikelihood(GaussianLikelihood(scale))}


def spread(X):
    """Scale of the noise, which doubles seven times from left to right."""
    return 10 * np.exp(-1 + 0.8 * X[:, 0])


def make_data(n, seed, heavy=False):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 1))
    noise = rng.standard_t(3, n) if heavy else rng.standard_normal(n)
    return X, 30 + 10 * np.sin(2 * X[:, 0]) + spread(X) * noise


@pytest.fixture(scope="module")
def fitted():
    X, y = make_data(600, 0)
    return (
        BayesianMLPRegressor(**(ONE | SETTINGS)).fit(X, y),
        X,
        y,
    )


def test_a_known_scale_is_found(fitted):
    """To 15 % on average, and half a nat a row better than constant noise.

    Wrong variants: a scale of the wrong sign in f; the level for all rows.
    """
    model, X, y = fitted
    Z, t = make_data(500, 1)
    std = model.predict(Z, return_std=True)[1]
    assert np.abs(np.log(std / spread(Z))).mean() < 0.15
    constant = BayesianMLPRegressor(**(ONE | SETTINGS | CONSTANT)).fit(X, y)
    gain = model.predict_log_density(Z, t) - constant.predict_log_density(Z, t)
    assert gain.mean() > 0.4
    assert model.lower_bound_ > constant.lower_bound_ + 100
    inside = model.predict_interval(Z, 0.8)
    covered = (inside[:, 0] < t) & (t < inside[:, 1])
    assert abs(covered.mean() - 0.8) < 0.06


def test_predictions_follow_from_the_likelihood(fitted, z_score):
    """All answers are those of one mixture of normals with scales of rows.

    Wrong variants: squares of means of scales; the noise at the level.
    """
    model, X, y = fitted
    draws = model._drawn()
    f = draws.by_rows(X, lambda f: f.transpose(0, 1)).transpose(1, 0, 2)
    units = model._model.units
    means = units.y_mean + units.y_scale * f[..., 0]
    stds = model.noise_scale_ * np.exp(6 * np.tanh(f[..., 1] / 6))
    mean, std = model.predict(X, return_std=True)
    assert np.allclose(mean, means.mean(0))
    variance = means.var(0, ddof=1) + (stds**2).mean(0)
    assert np.allclose(std, np.sqrt(variance))
    density = stats.norm.pdf(y, means, stds).mean(0)
    assert np.allclose(model.predict_log_density(X, y), np.log(density))
    quantile = model.predict_quantiles(X, 0.2)[:, 0]
    assert np.allclose(stats.norm.cdf(quantile, means, stds).mean(0), 0.2)
    sample = model.sample_y(X[:4], 4000, random_state=0)
    ends = model.predict_quantiles(X[:4], [0.1, 0.9])
    # The predictions average over 100 networks, the draws over all.
    assert np.allclose((sample < ends[:, :1]).mean(1), 0.1, atol=0.03)
    assert np.allclose((sample > ends[:, 1:]).mean(1), 0.1, atol=0.03)
    components = model._predictive_normals(X)
    assert np.allclose(components[0], means.T)
    assert np.allclose(components[1], stds.T)


def test_it_starts_with_constant_noise(as_trained):
    """The first value is that of constant noise. Wrong variant: a random scale."""
    X, y = make_data(100, 0)
    start = {
        **SETTINGS,
        "max_iter": 1,
        "solver": Stochastic(learning_rate=1e-6),
        "batch_size": 100,
    }
    model = BayesianMLPRegressor(**(ONE | start)).fit(X, y)
    constant = BayesianMLPRegressor(**(ONE | start | CONSTANT)).fit(X, y)
    stds = model._predictive_normals(X)[1]
    assert np.allclose(stds, constant.noise_scale_, rtol=0.1)
    assert model.noise_scale_ == pytest.approx(constant.noise_scale_, rel=1e-3)


def test_a_fixed_level_is_in_units_of_y():
    """Wrong variants: not divided by the unit of y; that of a later time."""
    X, y = make_data(60, 0)
    options = {**SETTINGS, "max_iter": 3, "hidden_layer_sizes": 3}
    first = BayesianMLPRegressor(**(ONE | options | varying(4.0))).fit(X, y)
    other = BayesianMLPRegressor(**(ONE | options | varying(40.0)))
    other.fit(X, 10 * y + 3)
    shift = len(y) * math.log(10)
    assert math.isclose(other.lower_bound_, first.lower_bound_ - shift, rel_tol=1e-6)
    assert np.allclose(
        other._predictive(X).normals()[1], 10 * first._predictive(X).normals()[1]
    )
    assert other.noise_scale_ == 40.0
    before = first._predictive(X).normals()[1]
    assert np.array_equal(
        first.set_params(**varying(8.0))._predictive(X).normals()[1], before
    )


def test_heavy_tails():
    """Outliers are expected, and move the mean less. Wrong variant: normal tails."""
    X, y = make_data(300, 0)
    rng = np.random.default_rng(0)
    y = 30 + 10 * np.sin(2 * X[:, 0]) + rng.standard_normal(300)
    y[::20] += 60
    options = SETTINGS | CONSTANT
    normal = BayesianMLPRegressor(**(ONE | options)).fit(X, y)
    heavy = BayesianMLPRegressor(
        **(ONE | options | {"likelihood": StudentTLikelihood(df=2.5)})
    ).fit(X, y)
    truth = 30 + 10 * np.sin(2 * X[:, 0])
    error = [np.abs(m.predict(X) - truth).mean() for m in (normal, heavy)]
    assert error[1] < 0.5 * error[0]
    assert heavy.lower_bound_ > normal.lower_bound_ + 100
    f = heavy._drawn().by_rows(X[:5], lambda f: heavy._mean(f).T).T
    low = heavy.predict_quantiles(X[:5], 0.02)[:, 0]
    expected = stats.t(2.5, f, heavy.noise_scale_).cdf(low).mean(0)
    assert np.allclose(expected, 0.02)
    # The score takes draws where forecasts are no mixtures of normals.
    assert heavy._predictive_normals(X) is None
    assert NegCRPS(n_draws=200)(heavy, X, y) > NegCRPS()(normal, X, y)
    infinite = clone(heavy).set_params(likelihood__df=2.0, max_iter=1).fit(X, y)
    assert np.isinf(infinite.predict(X[:2], return_std=True)[1]).all()


def test_several_targets():
    """Each in its own units, with its own noise; the first layer is shared.

    Wrong variants: units or noise of the first column for all; densities of one target.
    """
    X, y = make_data(200, 0)
    Y = np.stack([y, 1e-3 * (X[:, 0] ** 2 + 0.1 * np.sin(50 * y))], 1)
    options = {**SETTINGS, "max_iter": 40}
    model = BayesianMLPRegressor(**(ONE | options)).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (200, 2)
    assert model.noise_scale_.shape == (2,)
    assert 5e-5 < model.noise_scale_[1] < 8e-4
    errors = (mean - Y).std(0) / Y.std(0)
    assert errors[1] < 0.35
    ends = model.predict_interval(X, 0.9)
    assert ends.shape == (200, 2, 2)
    covered = (ends[:, 0] < Y) & (Y < ends[:, 1])
    assert np.all(covered.mean(0) > 0.8)
    f = model._drawn().by_rows(X, lambda f: f.transpose(0, 1)).transpose(1, 0, 2)
    f = f.reshape(*f.shape[:2], 2, -1)
    units = model._model.units
    means = units.y_mean + units.y_scale * f[..., 0]
    stds = model.noise_scale_ * np.exp(6 * np.tanh(f[..., 1] / 6))
    assert np.allclose(mean, means.mean(0))
    assert np.allclose(std, np.sqrt(means.var(0, ddof=1) + (stds**2).mean(0)))
    density = stats.norm.pdf(Y, means, stds).prod(2).mean(0)
    assert np.allclose(model.predict_log_density(X, Y), np.log(density))
    assert model.sample_y(X[:3], 5).shape == (3, 2, 5)
    assert model.sample_function(0)(X).shape == (200, 2)
    assert model._predictive_normals(X)[1].shape == (200, 2, 100)
    assert np.isfinite(NegCRPS()(model, X, Y))
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X), model.predict(X))
    scaled = BayesianMLPRegressor(**(ONE | options)).fit(X, Y * [1.0, 100.0])
    shift = 200 * math.log(100)
    assert scaled.lower_bound_ == pytest.approx(model.lower_bound_ - shift, rel=1e-6)
    with pytest.raises(ValueError, match="2 columns"):
        model.predict_log_density(X, y)


def test_one_column():
    """Predictions have the shape of y, and are those of the vector, without a warning.

    Wrong variants: scikit-learn's warning and vectors; densities of all pairs of rows.
    """
    X, y = make_data(60, 0)
    column = y[:, None]
    options = {**SETTINGS, "max_iter": 5}
    flat, model = (
        BayesianMLPRegressor(**(ONE | options)).fit(X, t) for t in (y, column)
    )
    assert model.lower_bound_ == flat.lower_bound_
    for method, args, axis in [
        ("predict", (), 1),
        ("predict_interval", (), 2),
        ("predict_quantiles", ([0.1, 0.5, 0.9],), 2),
        ("sample_y", (4, 0), 1),
    ]:
        found, expected = (getattr(m, method)(X, *args) for m in (model, flat))
        expected = np.expand_dims(expected, axis)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert model.predict(X, return_std=True)[1].shape == (60, 1)
    assert model.sample_function(0)(X).shape == (60, 1)
    density = model.predict_log_density(X, column)
    np.testing.assert_allclose(density, flat.predict_log_density(X, y), rtol=1e-5)
    np.testing.assert_array_equal(model.predict_log_density(X, y), density)
    scores = NegCRPS()(model, X, column), NegCRPS()(flat, X, y)
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    assert model.score(X, column) == pytest.approx(flat.score(X, y), abs=1e-5)


def test_a_number_for_several_targets():
    """Of units of y. Wrong variant: the exponentials of nothing that was learned."""
    X, y = make_data(60, 0)
    known = {"likelihood": GaussianLikelihood(2.5)}
    model = BayesianMLPRegressor(**(ONE | known), max_iter=1, random_state=0)
    model.fit(X, np.column_stack([y, 100 * y]))
    np.testing.assert_allclose(model.noise_scale_, [2.5, 2.5])
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (60, 2)
    assert (std > 2.5).all()


def test_refused():
    X, y = make_data(30, 0)
    model = BayesianMLPRegressor(
        loss=lambda f, y: (y - f[..., 0]).abs(), **(ONE | varying(1.0))
    )
    with pytest.raises(IncompatibleComponentsError, match="scale of the noise"):
        model.fit(X, y)
