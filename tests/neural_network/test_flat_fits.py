"""A network that is as good as a constant says so, and what to do."""

import warnings

import numpy as np
import pytest

from skvi.divergences import KLDivergence
from skvi.exceptions import SkviWarning
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.neural_network._reports import (
    explained_log_loss,
    explained_variance,
    flat_message,
    missed_message,
    missed_variance,
    unscaled_message,
)
from skvi.priors import Normal
from skvi.solvers import Stochastic

#: One network with the whole divergence and the plainest noise.
ONE = {
    "divergence": "kl",
    "posterior": "mean_field",
    "likelihood": "gaussian",
    "activation": "softplus",
    "skip_connection": False,
}
#: A size and a prior that suit the bound: scales are learned, of features by row.
SUITED = {
    "hidden_layer_sizes": 20,
    "prior": {
        "coef_0": Normal("learn_rows"),
        "coef": Normal("learn"),
        "intercept": Normal("learn"),
    },
}


def wave(n=100, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, size=(n, 1))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def test_a_missed_wave_is_reported():
    """Converged with too few units, and more than half of the variance is left.

    Neighbors share it.
    """
    X, y = wave()
    model = BayesianMLPRegressor(
        hidden_layer_sizes=2,
        solver=Stochastic(n_draws=20, tol=0.5),
        random_state=0,
        **ONE,
    )
    with pytest.warns(SkviWarning, match=r"KLDivergence\(weight=0.1\)") as record:
        model.fit(X, y)
    assert len(record) == 1
    assert model.converged_
    found = model.diagnostics_
    assert found["explained"] == pytest.approx(model.score(X, y), abs=1e-6)
    assert found["explained"] + found["missed"] == pytest.approx(0.97, abs=0.05)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_no_draw_of_a_wave_ends_at_a_constant():
    """A draw that did, with a bound of -119.8, converged, where -5 is within reach.

    Wrong variant: a tenth of the divergence throughout the warm-up.
    """
    source = np.random.default_rng(0)
    X = source.uniform(-2, 2, (120, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * source.standard_normal(120)
    model = BayesianMLPRegressor(max_iter=400, random_state=0, **(ONE | SUITED)).fit(
        X, y
    )
    assert model.lower_bound_ > -15
    error = model.predict(X) - np.sin(2 * X[:, 0])
    assert np.sqrt(np.mean(error**2)) < 0.06


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_wave_is_found(global_random_seed):
    """From every start, where a prior that counts from the first step ends half-way.

    Wrong variants: no warm-up; the whole divergence in it; relu by default, of which 6
    of 6 seeds have an RMSE above 0.04.
    """
    X, y = wave(500)
    model = BayesianMLPRegressor(
        max_iter=600, random_state=global_random_seed, **(ONE | SUITED)
    )
    error = model.fit(X, y).predict(X) - np.sin(2 * X[:, 0])
    assert np.sqrt(np.mean(error**2)) < 0.03
    assert model.noise_scale_ == pytest.approx(0.1, rel=0.2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::skvi.exceptions.SkviWarning")
@pytest.mark.parametrize(
    "options", [{"divergence": KLDivergence(weight=0.1), "max_iter": 600}, {"n": 1000}]
)
def test_the_remedies_help(options):
    X, y = wave(options.get("n", 100))
    options = {k: v for k, v in options.items() if k != "n"}
    model = BayesianMLPRegressor(random_state=0, **(ONE | options)).fit(X, y)
    assert model.score(X, y) > 0.8
    assert model.diagnostics_["missed"] < 0.2


QUICK = {
    "solver": Stochastic(n_draws=2),
    "batch_size": 10,
    "max_iter": 150,
    "random_state": 0,
}


def test_noise_is_no_alarm():
    """The message is true of noise as well, and says that it may be right."""
    X, _ = wave(40)
    y = np.random.default_rng(1).normal(size=40)
    model = BayesianMLPRegressor(hidden_layer_sizes=(2,), **(ONE | QUICK))
    with pytest.warns(SkviWarning, match="right if there is nothing to lea"):
        model.fit(X, y)
    assert abs(model.diagnostics_["missed"]) < 4 / 40**0.5


def test_classes_without_a_signal():
    X, _ = wave(40)
    y = np.random.default_rng(1).random(40) < 0.3
    model = BayesianMLPClassifier(
        skip_connection=False,
        divergence="kl",
        posterior="mean_field",
        hidden_layer_sizes=(2,),
        **QUICK,
    )
    with pytest.warns(SkviWarning, match="than the class frequencies would"):
        model.fit(X, y)
    assert model.diagnostics_["explained"] < 0.1


def test_a_good_fit_is_silent():
    """Rows of weight zero count nowhere."""
    X, _ = wave(40)
    y = X[:, 0] + 0.3 * np.random.default_rng(1).normal(size=40)
    weight = np.r_[np.zeros(5), np.ones(35)]
    model = BayesianMLPRegressor(hidden_layer_sizes=(), **(ONE | QUICK))
    model.fit(X, y, sample_weight=weight)
    expected = model.score(X[5:], y[5:])
    assert model.diagnostics_["explained"] == pytest.approx(expected, abs=1e-6)
    assert model.diagnostics_["message"] == ""


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


def test_equal_rows_share_no_signal():
    """Rows that were repeated agree with themselves. Wrong variant: they count."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 2)), rng.normal(size=50)
    X, y = np.repeat(X, 4, axis=0), np.repeat(y, 4)
    missed, n_pairs = missed_variance(X, y, np.zeros(200), np.ones(200))
    assert n_pairs == 50
    assert abs(missed) < 4 / 50**0.5
    assert missed_message(missed, 0.0, n_pairs, "") == ""


def test_nothing_is_said_where_nothing_can_be():
    """Constant targets, one row, and weak signals in many rows."""
    ones = np.ones(30)
    assert explained_variance(ones, 1e9 * ones, ones) is None
    assert missed_variance(ones[:, None], ones, ones, ones)[0] is None
    X = np.random.default_rng(0).normal(size=(30, 2))
    assert missed_variance(X * 1e300, X[:, 0], ones, ones)[0] is None
    X = X.astype(np.float32)
    assert abs(missed_variance(X, X[:, 0], ones, ones)[0]) < 1
    assert explained_variance(np.inf * ones, X[:, 0], ones) is None
    assert flat_message(None, 0.5, ones, 1.0, "its mean", "") == ""
    assert flat_message(-0.1, 0.5, ones[:1], 1.0, "its mean", "") == ""
    assert flat_message(0.02, 0.5, ones, 1.0, "its mean", "") != ""
    assert flat_message(0.02, 0.5, ones, 1000.0, "its mean", "") == ""  # 30,000 rows


def test_what_chance_finds_among_neighbors_is_not_missed():
    """Five standard errors, and never less than 0.1. Wrong variant: of a variance."""
    assert missed_message(0.35, 0.2, 100, "") == ""
    assert missed_message(0.45, 0.2, 100, "") != ""
    assert missed_message(0.35, 0.2, 1000, "") != ""
    assert missed_message(0.09, 0.2, 10_000, "") == ""


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_huge_weights_are_only_relative():
    """Wrong variant: squares of sums of weights as they are, which overflow."""
    X, y = wave(30)
    model = BayesianMLPRegressor(
        hidden_layer_sizes=(), max_iter=2, random_state=0, **ONE
    )
    model.fit(X, y, sample_weight=np.full(30, 1e200))
    assert model.diagnostics_["explained"] == pytest.approx(model.score(X, y))


def test_features_of_another_size():
    """The remedy is named, and works. Wrong variant: only features that are large."""
    X = np.random.default_rng(0).normal(size=(200, 2))
    y, size = X[:, 0] + X[:, 1] ** 2, 300.0
    model = BayesianMLPRegressor(max_iter=40, random_state=0, **ONE)
    with pytest.warns(UserWarning, match="standardize them first") as record:
        model.fit(X * size, y)
    assert len(record) == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scaled = BayesianMLPRegressor(max_iter=40, random_state=0, **ONE).fit(X, y)
    assert all("standardize" not in str(w.message) for w in caught)
    assert scaled.score(X, y) > max(model.score(X * size, y), 0.8) + 0.02
    assert all(map(unscaled_message, (1e-3 * X, 1e200 * X)))
    assert unscaled_message(np.zeros((5, 2))) == ""
