"""Solvers as parameters: strings, objects, and their settings."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model import BayesianLogisticRegression
from skvi.neural_network import BayesianMLPRegressor
from skvi.solvers import Stochastic

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
NETWORK = BayesianMLPRegressor(
    skip_connection=False,
    likelihood="gaussian",
    activation="softplus",
    divergence="kl",
    posterior="mean_field",
    hidden_layer_sizes=3,
    max_iter=3,
    random_state=0,
)


def waves(n=40):
    x = np.linspace(-2, 2, n)
    return x[:, None], np.sin(2 * x)


def test_settings_of_networks_are_those_of_their_solver():
    """`batch_size` in either place, and not in both; "auto" is what suits the network.

    Wrong variants: settings of the object ignored; those of the network where both are
    given.
    """
    settings = {"n_draws": 3, "learning_rate": 0.1}
    X, y = waves()
    beside = clone(NETWORK).set_params(solver=Stochastic(**settings), batch_size=8)
    solver = Stochastic(batch_size=8, **settings)
    model = clone(NETWORK).set_params(solver=solver).fit(X, y)
    assert np.array_equal(model.loss_curve_, beside.fit(X, y).loss_curve_)
    named = clone(NETWORK).set_params(solver="stochastic", batch_size=8)
    named.set_params(**{f"solver__{name}": v for name, v in settings.items()})
    assert np.array_equal(model.loss_curve_, named.fit(X, y).loss_curve_)
    assert model.diagnostics_["n_draws"] == 3 * 3  # of all rows, in as many epochs
    plain = clone(NETWORK).set_params(solver="stochastic").fit(X, y)
    assert plain.loss_curve_[0] != model.loss_curve_[0]
    solver = Stochastic()
    model = clone(NETWORK).set_params(solver=solver).fit(X, y)
    assert np.array_equal(model.loss_curve_, plain.loss_curve_)
    assert solver.n_draws == solver.batch_size == "auto"
    twice = clone(NETWORK).set_params(solver=Stochastic(batch_size=3), batch_size=8)
    with pytest.raises(IncompatibleComponentsError, match="leave batch_size=8 out"):
        twice.fit(X, y)


def test_a_search_reaches_the_settings():
    """Of a string, and of "auto", as of an object. Wrong variant: "auto" refused."""
    X, y = waves()
    for solver in ("auto", "stochastic", Stochastic(batch_size=3)):
        model = BayesianLogisticRegression(solver=solver, max_iter=2, random_state=0)
        grid = {"solver__batch_size": [5, 20], "solver__n_draws": [2]}
        search = GridSearchCV(model, grid, cv=2).fit(X, y > 0)
        best = search.best_estimator_
        assert best.solver.batch_size in (5, 20)
        assert best.diagnostics_["unit"] == "epoch"
        assert best.diagnostics_["n_draws"] == 2 * 2
