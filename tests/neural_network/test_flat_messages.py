"""What a flat fit is told is true of it: remedies, weights and the category."""

import warnings

import numpy as np

from skvi.neural_network import BayesianMLPRegressor
from skvi.neural_network._reports import (
    without_outliers,
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


def outliers():
    """A line, and rows far from it that have next to no weight."""
    rng = np.random.default_rng(0)
    x = np.r_[rng.uniform(-2, 2, size=300), rng.uniform(3, 4, size=100)]
    y = np.r_[x[:300] + 0.1 * rng.normal(size=300), np.full(100, -5.0)]
    return x[:, None], y, np.r_[np.ones(300), np.full(100, 1e-4)]


def far_rows():
    """A line, and one row in twelve very far from it."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(300, 1))
    y = X[:, 0] + 0.1 * rng.normal(size=300)
    y[::12] += 50 * rng.normal(size=25)
    return X, y


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
