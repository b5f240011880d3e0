"""Bayesian multilayer perceptrons: what they return, and that it is right."""

import copy
import math
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.likelihoods import GaussianLikelihood
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.objectives import RenyiBound
from skvi.priors import Laplace, Normal
from skvi.solvers import Stochastic

#: One network with the whole divergence and the plainest noise.
ONE = {
    "divergence": "kl",
    "posterior": "mean_field",
    "likelihood": "gaussian",
    "activation": "softplus",
    "skip_connection": False,
}

quick = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
FAST = {"hidden_layer_sizes": (4,), "max_iter": 10, "random_state": 0}


def known(scale):
    return {"likelihood": GaussianLikelihood(scale)}


def wave(n=300, seed=0, noise=0.2):
    """One feature, a sine, and units far from standard: y is about 30 to 70.

    (Far fewer rows than 300 make the bound prefer a straight line with more noise.)
    """
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 1))
    return X, 50 + 20 * (np.sin(2 * X[:, 0]) + noise * rng.standard_normal(n))


@pytest.fixture(scope="module")
def fitted():
    X, y = wave()
    model = BayesianMLPRegressor(
        hidden_layer_sizes=10,
        solver=Stochastic(learning_rate=0.03),
        random_state=0,
        max_iter=60,
        **(ONE | {"activation": "relu"}),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", SkviWarning)
        return model.fit(X, y), X, y


def mixture(model, X):
    """Means of the drawn networks in units of y, (S, n)."""
    return model._drawn().by_rows(X, lambda f: model._mean(f).T).T


@quick
def test_mean_and_standard_deviation(fitted):
    """Law of total variance. Wrong variants: without noise; not in units of y."""
    model, X, y = fitted
    means = mixture(model, X)
    mean, std = model.predict(X, return_std=True)
    assert np.allclose(mean, means.mean(0))
    expected = np.sqrt(means.var(0, ddof=1) + model.noise_scale_**2)
    assert np.allclose(std, expected)
    # The noise of the data is 4.
    assert 3 < model.noise_scale_ < 6
    assert model.score(X, y) > 0.8
    far = model.predict([[12.0]], return_std=True)[1]
    assert far[0] > 2 * std.max()


@quick
def test_moments_far_from_zero(fitted):
    """Wrong variant: variances as differences of mean squares."""
    model, X, _ = fitted
    far = copy.copy(model)
    units = replace(model._model.units, y_mean=1e9)
    far._model = replace(model._model, units=units)
    assert np.allclose(
        far.predict(X, return_std=True)[1],
        model.predict(X, return_std=True)[1],
        rtol=1e-6,
    )


@quick
def test_quantiles_invert_the_mixture(fitted):
    """F(quantile) = level. Wrong variant: the normal with the same two moments."""
    model, X, _ = fitted
    levels = [0.01, 0.5, 0.9]
    found = model.predict_quantiles(X, levels)
    means = mixture(model, X)
    for column, level in zip(found.T, levels, strict=True):
        cdf = norm.cdf((column - means) / model.noise_scale_).mean(0)
        assert np.allclose(cdf, level, atol=1e-9)
    interval = model.predict_interval(X, coverage=0.8)
    assert np.allclose(interval, model.predict_quantiles(X, [0.1, 0.9]), rtol=1e-9)
    assert model.predict_quantiles(X, 0.5).shape == (len(X), 1)


@quick
def test_log_density_is_that_of_the_mixture(fitted):
    """Integrates to 1 over y. Wrong variant: the mean of log densities."""
    model, X, y = fitted
    grid = np.linspace(-150, 250, 4001)
    row = np.repeat(X[:1], len(grid), 0)
    density = np.exp(model.predict_log_density(row, grid))
    assert abs(density.sum() * (grid[1] - grid[0]) - 1) < 1e-6
    expected = norm.pdf(y, mixture(model, X), model.noise_scale_).mean(0)
    assert np.allclose(model.predict_log_density(X, y), np.log(expected))


@quick
def test_sampled_observations_have_the_predictive_moments(fitted, z_score):
    """Wrong variants: without noise; with the same noise in every row."""
    model, X, _ = fitted
    sample = model.sample_y(X[:3], n_draws=4000, random_state=1)
    # The predictions average over 100 networks only: compare with fresh ones.
    fresh = copy.copy(model)
    fresh._theta = fresh._draw(20_000, 2).numpy()
    mean, std = fresh.predict(X[:3], return_std=True)
    assert z_score(sample.T, mean) < 5.5
    assert z_score((sample.T - mean) ** 2, std**2) < 5.5
    noise = sample - sample.mean(1, keepdims=True)
    shared = np.cov(mixture(fresh, X[:3]).T)[0, 1]
    assert z_score(noise[0] * noise[1], shared) < 5.5


@quick
def test_a_sampled_function_is_one_network(fitted):
    """Consistent over calls; draws have the posterior's mean function."""
    model, X, _ = fitted
    function = pickle.loads(pickle.dumps(model.sample_function(random_state=3)))
    assert np.array_equal(function(X)[5:9], function(X[5:9]))
    assert not np.allclose(function(X), model.sample_function(random_state=4)(X))
    draws = np.array([model.sample_function(i)(X[:2]) for i in range(200)])
    means = mixture(model, X[:2])
    error = np.hypot(draws.std(0) / 200**0.5, means.std(0) / len(means) ** 0.5)
    assert np.all(np.abs(draws.mean(0) - means.mean(0)) < 5 * error)


@quick
@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_are_averages(n_classes):
    """Wrong variants: the softmax of the mean output; classes in another order."""
    X, y = load_iris(return_X_y=True)
    keep = y < n_classes
    X, names = scale(X[keep]), np.array(["b", "a", "c"])[y[keep]]
    model = BayesianMLPClassifier(
        skip_connection=False,
        divergence="kl",
        posterior="mean_field",
        hidden_layer_sizes=5,
        max_iter=80,
        random_state=0,
    )
    model.fit(X, names)
    f = model._drawn().by_rows(X, lambda f: f.transpose(0, 1))
    f = f.transpose(1, 0, 2)
    if n_classes == 2:
        p = (1 / (1 + np.exp(-f[..., 0]))).mean(0)
        expected = np.stack([1 - p, p], 1)
    else:
        e = np.exp(f - f.max(2, keepdims=True))
        expected = (e / e.sum(2, keepdims=True)).mean(0)
    assert np.allclose(model.predict_proba(X), expected)
    assert np.allclose(np.exp(model.predict_log_proba(X)), expected)
    assert list(model.classes_) == sorted(set(names))
    assert model.score(X, names) > 0.9
    column = np.searchsorted(model.classes_, names)
    assert np.allclose(
        model.predict_log_density(X, names),
        np.log(expected[np.arange(len(X)), column]),
    )


@quick
def test_bounds_are_on_the_density_of_y():
    """ELBO(10 y + 3) = ELBO(y) - n log 10. Wrong variant: the Jacobian left out.

    With a fixed noise scale the fit in standardized units is the same.
    """
    X, y = wave(40)
    first = BayesianMLPRegressor(**(ONE | FAST | known(4.0))).fit(X, y)
    other = BayesianMLPRegressor(**(ONE | FAST | known(40.0))).fit(X, 10 * y + 3)
    shift = len(y) * math.log(10)
    assert math.isclose(other.lower_bound_, first.lower_bound_ - shift, rel_tol=1e-6)
    value = other.objective_value_, first.objective_value_ - shift
    assert math.isclose(*value, rel_tol=1e-6)
    assert np.allclose(other.predict(X), 10 * first.predict(X) + 3)
    weighted = BayesianMLPRegressor(**(ONE | FAST | known(4.0)))
    weighted.fit(X, y, sample_weight=np.full(40, 2.0))
    again = BayesianMLPRegressor(**(ONE | FAST | known(40.0)))
    again.fit(X, 10 * y + 3, sample_weight=np.full(40, 2.0))
    assert math.isclose(
        again.lower_bound_, weighted.lower_bound_ - 2 * shift, rel_tol=1e-6
    )


@quick
def test_priors_by_layer():
    """A narrow prior on the last layer holds the function near the mean."""
    X, y = wave(40)
    prior = {"coef_0": Normal(), "coef_1": Laplace(1e-4), "intercept": Normal()}
    model = (
        BayesianMLPRegressor(prior=prior, **(ONE | FAST))
        .set_params(max_iter=60)
        .fit(X, y)
    )
    assert np.ptp(model.predict(X)) < 0.1 * np.ptp(y)
    with pytest.raises(IncompatibleComponentsError, match="coef_0"):
        BayesianMLPRegressor(prior={"weights": Normal()}, **(ONE | FAST)).fit(X, y)


@quick
def test_only_a_first_fit_warms_up(monkeypatch):
    """Wrong variant: a second one gives up again what the prior has shaped."""
    shares, original = [], Stochastic.solve

    def solve(solver, problem, options):
        shares.append(options.warm_up)
        return original(solver, problem, options)

    monkeypatch.setattr(Stochastic, "solve", solve)
    X, y = np.arange(20.0)[:, None], np.arange(20.0)
    model = BayesianMLPRegressor(
        hidden_layer_sizes=2, max_iter=1, warm_start=True, random_state=0, **ONE
    )
    for _ in range(2):
        with pytest.warns(ConvergenceWarning):
            model.fit(X, y)
    assert shares == [0.2, 0.0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_warm_start_goes_on(fitted):
    """A second fit starts where the first ended; another layout is refused."""
    X, y = wave()
    model = BayesianMLPRegressor(
        hidden_layer_sizes=5, max_iter=30, random_state=0, **ONE
    )
    cold = model.fit(X, y).loss_curve_[0]
    end, noise = model.loss_curve_[-1], model.noise_scale_
    # Steps so short that what moved is the start.
    model.set_params(warm_start=True, max_iter=1, solver__learning_rate=1e-4).fit(X, y)
    assert abs(model.loss_curve_[0] - end) < 0.1 * (cold - end)
    assert abs(math.log(model.noise_scale_ / noise)) < 0.01
    with pytest.raises(ValueError, match="warm_start"):
        model.set_params(hidden_layer_sizes=3).fit(X, y)


@quick
def test_bad_arguments(fitted):
    model, X, y = fitted
    for levels in (0, 1.5, [[0.5]]):
        with pytest.raises(ValueError, match="quantiles"):
            model.predict_quantiles(X, levels)
    with pytest.raises(ValueError, match="coverage"):
        model.predict_interval(X, coverage=1)
    with pytest.raises(ValueError, match="rows"):
        model.predict_log_density(X, y[:-1])
    for sizes in ((0,), (2.5,), -1, [[2]]):
        with pytest.raises(ValueError, match="hidden_layer_sizes"):
            BayesianMLPRegressor(hidden_layer_sizes=sizes, **ONE).fit(X, y)
    with pytest.raises(ValueError, match="full-rank"):
        BayesianMLPRegressor(hidden_layer_sizes=(200, 200), posterior="full_rank").fit(
            X, y
        )


@quick
def test_constant_target():
    """A target without scale keeps its units; the noise does not fall to zero."""
    X, _ = wave(30)
    model = BayesianMLPRegressor(
        hidden_layer_sizes=(),
        max_iter=60,
        solver=Stochastic(learning_rate=0.1),
        random_state=0,
        **ONE,
    )
    with pytest.warns(SkviWarning, match="30 rows with equal values of y"):
        model.fit(X, np.full(30, 5.0))
    assert np.allclose(model.predict(X), 5, atol=0.01)
    assert 0 < model.noise_scale_ < 0.01


@quick
def test_huge_scales_and_one_row():
    X, y = wave(40)
    model = BayesianMLPRegressor(**(ONE | FAST)).fit(X, 1e12 * y)
    assert np.all(np.isfinite(model.predict(X, return_std=True)))
    one = BayesianMLPRegressor(**(ONE | FAST))
    with pytest.warns(SkviWarning, match=r"one row .* give both, as in .*noise_scale"):
        one.fit(X[:1], y[:1])
    assert np.all(np.isfinite(one.predict(X, return_std=True)))
    given = BayesianMLPRegressor(**(ONE | FAST | known(2.0)), normalize_y=False)
    _, std = given.fit(X[:1], y[:1]).predict(X[:1], return_std=True)
    assert std[0] > 2


@quick
@pytest.mark.parametrize(
    ("objective", "loss"),
    [("elbo", "beta"), ("eubo", "log"), (RenyiBound(-0.5), "log")],
)
def test_single_precision_with_weights_and_full_covariances(objective, loss):
    """Networks stay in float32.

    Wrong variants: losses in float32 times weights in float64; the existence of a
    bound decided with a prior in float64 and a posterior in float32.
    """
    X, y = (array[::4] for array in load_iris(return_X_y=True))
    X, weight = X.astype(np.float32), np.linspace(0, 2, len(y))
    parts = {"objective": objective, "loss": loss, "posterior": "full_rank"}
    for estimator in (BayesianMLPRegressor, BayesianMLPClassifier):
        model = estimator(
            hidden_layer_sizes=2, max_iter=1, solver=Stochastic(n_draws=20), **parts
        )
        model.fit(X, y, sample_weight=weight)
        assert model.posterior_.params.numpy().dtype == np.float32
        assert np.isfinite(model.lower_bound_)
        assert np.isfinite(model.predict(X)).all()
    assert model.predict_proba(X).dtype == np.float32
