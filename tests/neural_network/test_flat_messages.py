"""What a flat fit is told is true of it: remedies, weights and the category."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.exceptions import SkviWarning
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.neural_network._reports import (
    explained_variance,
    has_outliers,
    missed_message,
    missed_variance,
    remedies,
    without_outliers,
    worse_message,
)
from skvi.solvers import Stochastic

#: One network with the whole divergence and the plainest noise.
ONE = {
    "divergence": "kl",
    "posterior": "mean_field",
    "likelihood": "gaussian",
    "activation": "softplus",
    "skip_connection": False,
}

LINEAR = {
    "hidden_layer_sizes": (),
    "solver": Stochastic(learning_rate=0.1, n_draws=2, tol=0.1),
    "max_iter": 60,
    "random_state": 0,
}


LONG = LINEAR | {"max_iter": 200}


def fit(model, X, y, sample_weight=None):
    """What a fit warns of, as pairs of category and text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y, sample_weight=sample_weight)
    assert model.converged_
    return [(w.category, str(w.message)) for w in caught]


def test_a_linear_network_misses_a_parabola():
    """It has one optimum. Wrong variants: the prior is blamed, or the seed, or the
    weight of the divergence."""
    X = np.random.default_rng(0).uniform(-2, 2, size=(200, 1))
    model = BayesianMLPRegressor(
        posterior="mean_field",
        divergence=KLDivergence(weight=0.1),
        batch_size=200,
        **LINEAR,
    )
    [(category, text)] = fit(model, X, X[:, 0] ** 2)
    assert category is SkviWarning
    assert model.diagnostics_["message"] in text
    assert "hidden_layer_sizes=(20,)" in text
    assert not any(word in text for word in ("prior", "random_state", "KL"))


def test_no_remedy_is_in_place_already():
    """Wrong variant: KLDivergence(weight=0.1) for every divergence."""
    assert (
        remedies((), "relu", KLDivergence()) == "hidden_layer_sizes=(20,) or more rows"
    )
    assert remedies((20,), "relu", KLDivergence(weight=0.1)) == "more rows"
    assert remedies((20, 3), "tanh", KLDivergence(weight=0.01)) == (
        "larger hidden_layer_sizes or more rows"
    )
    assert (
        remedies((20,), "identity", RenyiDivergence())
        == "activation='relu' or more rows"
    )


def outliers():
    """A line, and rows far from it that have next to no weight."""
    rng = np.random.default_rng(0)
    x = np.r_[rng.uniform(-2, 2, size=300), rng.uniform(3, 4, size=100)]
    y = np.r_[x[:300] + 0.1 * rng.normal(size=300), np.full(100, -5.0)]
    return x[:, None], y, np.r_[np.ones(300), np.full(100, 1e-4)]


def test_rows_without_weight_are_not_missed():
    """Wrong variant: all pairs of neighbors weigh the same."""
    X, y, weight = outliers()
    model = BayesianMLPRegressor(**(ONE | LINEAR))
    assert fit(model, X, y, weight) == []
    assert model.diagnostics_["explained"] > 0.95
    assert abs(model.diagnostics_["missed"]) < 0.1


def test_neighbors_without_weight_are_none():
    """Wrong variant: rows of weight zero are neighbors of the others."""
    X, y, weight = outliers()
    weight[300:] = 0
    first = slice(None, 300)
    zeros = np.zeros(400)
    found = missed_variance(X, y, zeros, weight)
    expected = missed_variance(X[first], y[first], zeros[first], weight[first])
    assert found == pytest.approx(expected)
    assert expected[1] == pytest.approx(300)


def test_few_rows_of_much_weight_are_few_pairs():
    """Wrong variant: the number of rows for the effective number of pairs."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 1)), rng.normal(size=400)
    weight = np.where(X[:, 0] > np.sort(X[:, 0])[-31], 1.0, 1e-6)
    missed, n_pairs = missed_variance(X, y, 0 * y, weight)
    assert missed is not None
    assert 28 < n_pairs < 35
    missed, n_pairs = missed_variance(X, y, 0 * y, weight**4)
    scaled = missed_variance(X, y, 0 * y, 7.0 * weight**4)
    assert scaled == pytest.approx((missed, n_pairs))
    alone = np.where(np.arange(400) < 5, 1.0, 1e-12)
    assert missed_variance(X, y, 0 * y, alone)[0] is None


def test_no_more_is_missed_than_the_fit_leaves():
    """Wrong variant: the share as it was estimated."""
    assert missed_message(2.24, 0.99, 400, "") == ""
    assert "explains 40%" in missed_message(0.9, 0.4, 400, "")
    assert "misses about 60%" in missed_message(0.9, 0.4, 400, "")
    assert "misses about 100%" in missed_message(3.0, -2.0, 400, "")


def test_an_offset_of_weighted_rows_is_no_signal():
    """Wrong variant: residuals about their mean without weights."""
    X, y, weight = outliers()
    offset = 10.0 + X[:, 0]
    share, _ = missed_variance(X, y, offset, weight)
    assert abs(share) < 0.1
    assert explained_variance(offset, y, weight) < 0


def test_a_fit_that_stops_early_is_another_matter():
    """Wrong variant: a SkviWarning whatever is said."""
    X = np.random.default_rng(0).uniform(-2, 2, size=(40, 1))
    model = BayesianMLPRegressor(**(ONE | LINEAR | {"max_iter": 2}))
    with pytest.warns(ConvergenceWarning, match="increase max_iter") as caught:
        model.fit(X, X[:, 0] ** 2)
    assert len(caught) == 1
    assert not issubclass(caught[0].category, SkviWarning)


def far_rows():
    """A line, and one row in twelve very far from it."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(300, 1))
    y = X[:, 0] + 0.1 * rng.normal(size=300)
    y[::12] += 50 * rng.normal(size=25)
    return X, y


def test_few_rows_have_no_outliers():
    """Whose spread they do not tell. Wrong variant: one of five rows is enough."""
    rng = np.random.default_rng(0)
    few = [has_outliers(rng.normal(size=5), np.ones(5)) for _ in range(200)]
    assert not any(few)
    many = np.r_[rng.normal(size=38), 30.0, -30.0]
    assert has_outliers(many, np.ones(40))


def test_outliers_hide_no_good_fit():
    """Nothing is said of it, and the fraction is that of all rows.

    Wrong variants: a message for variances of all rows, of which outliers are nearly
    all; a fraction without them, which hides that a mean is wrong.
    """
    X, y = far_rows()
    model = BayesianMLPRegressor(**(ONE | {"likelihood": "student_t"} | LONG))
    assert fit(model, X, y) == []
    assert model.diagnostics_["explained"] < 0.2
    clean = np.random.default_rng(1).normal(size=300)
    np.testing.assert_allclose(without_outliers(clean, 0 * clean), clean)
    shifted = without_outliers(1e3 * y + 5, 1e3 * X[:, 0] + 5)
    np.testing.assert_allclose(shifted, 1e3 * without_outliers(y, X[:, 0]) + 5)


def test_outliers_under_normal_noise_are_named():
    """Wrong variant: KLDivergence(weight=0.1) whatever the cause."""
    [(category, text)] = fit(
        BayesianMLPRegressor(**(ONE | LONG)),
        *far_rows(),
    )
    assert category is SkviWarning
    assert "likelihood='student_t'" in text
    assert "KL" not in text
    noise, ones = np.random.default_rng(0).normal(size=2000), np.ones(2000)
    assert not has_outliers(noise, ones)
    noise[::50] *= 20
    assert has_outliers(noise, ones)
    assert not has_outliers(noise, (np.arange(2000) % 50 > 0) + 1e-9)


def test_early_stopping_is_named():
    """Wrong variant: the remedies of a complete fit alone."""
    X = np.random.default_rng(0).uniform(-2, 2, size=(200, 1))
    model = BayesianMLPRegressor(early_stopping=True, **(ONE | LONG))
    [(_, text)] = fit(model, X, X[:, 0] ** 2)
    assert "early_stopping=False or hidden_layer_sizes=(20,)" in text


def test_errors_of_what_is_missed():
    """Of the residuals, and not of the target: a third of it left is eleven standard
    errors. Wrong variant: a fixed share of the target."""
    assert "misses about 30%" in missed_message(0.299, 0.67, 150, "")
    assert missed_message(0.299, 0.0, 150, "") == ""


def test_worse_than_a_constant(as_trained):
    """Of a fit that has not converged, too. Wrong variant: only of others."""
    X = np.random.default_rng(0).uniform(-2, 2, size=(50, 1))
    model = BayesianMLPRegressor(warm_start=True, normalize_y=False, **(ONE | LINEAR))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, 3 * X[:, 0])
    model.set_params(max_iter=1, solver__learning_rate=1e-6)
    with pytest.warns(ConvergenceWarning, match="worse than a constant: the sq"):
        model.fit(X, -3 * X[:, 0])
    assert "increase max_iter" in model.diagnostics_["message"]
    ratio = 1 - model.score(X, -3 * X[:, 0])
    assert f"{ratio:.3g} times" in model.diagnostics_["message"]
    assert worse_message(-0.05, "{}") == worse_message(None, "{}") == ""


def test_unscaled_features_are_named_beside_a_good_fit():
    """Also without another complaint. Wrong variant: only beside one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    labels = X[:, 0] > 0
    network = BayesianMLPClassifier(
        posterior="mean_field",
        hidden_layer_sizes=4,
        divergence=KLDivergence(0.3),
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network.fit(X, labels)
    with pytest.warns(SkviWarning, match=r"sizes from .* standardize them first"):
        network.fit(X * [1.0, 1e3], labels)
