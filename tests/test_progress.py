"""Callbacks, printed lines, warm starts and minibatches."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from skvi.linear_model import BayesianLogisticRegression
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.solvers import Stochastic, _moment_matching

SMALL = {
    "hidden_layer_sizes": (3,),
    "max_iter": 4,
    "solver": Stochastic(n_draws=2),
    "random_state": 0,
}
MODELS = {
    "natural_gradient": BayesianLogisticRegression(prior="normal", tol=1e-11),
    "eubo": BayesianLogisticRegression(
        objective="eubo", random_state=0, prior="normal"
    ),
    "renyi": BayesianLogisticRegression(
        objective="renyi",
        posterior="mean_field",
        max_iter=10,
        random_state=0,
        prior="normal",
    ),
    "stochastic": BayesianLogisticRegression(
        solver=Stochastic(n_draws=2), max_iter=3, random_state=0, prior="normal"
    ),
    "minibatches": BayesianLogisticRegression(
        solver=Stochastic(batch_size=50), max_iter=4, random_state=0, prior="normal"
    ),
    "mlp_regressor": BayesianMLPRegressor(
        skip_connection=False,
        likelihood="gaussian",
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        **SMALL,
    ),
    "mlp_classifier": BayesianMLPClassifier(
        skip_connection=False, divergence="kl", posterior="mean_field", **SMALL
    ),
    "mlp_eubo": BayesianMLPRegressor(
        skip_connection=False,
        likelihood="gaussian",
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        objective="eubo",
        **SMALL,
    ),
}


def make_data():
    X, y = load_iris(return_X_y=True)
    return scale(X[50:]), y[50:]


X, Y = make_data()


def state_of(model):
    return model.posterior_.params.numpy()


def fit(name, *callbacks, data=(X, Y), **params):
    model = clone(MODELS[name]).set_params(**params)
    if callbacks:
        model.set_callbacks(*callbacks)
    return model.fit(*data)


def callbacks():
    """scikit-learn's callbacks, which it has from version 1.9."""
    return pytest.importorskip("sklearn.callback")


class Recorder:
    """A callback that counts iterations, and stops or raises after some of them."""

    def __init__(self, stop_after=None, raise_after=None):
        self.stop_after, self.raise_after = stop_after, raise_after
        self.n_tasks, self.seen = 0, []

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
        if context.task_name != "iteration":
            return False
        self.n_tasks += 1
        self.seen.append(fitted_estimator.predict(X))
        if self.n_tasks == self.raise_after:
            raise KeyboardInterrupt
        return self.n_tasks == self.stop_after


# --- callbacks ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["natural_gradient", "renyi", "stochastic", "minibatches", "mlp_classifier"]
)
def test_a_callback_stops_the_fit(name):
    """Quietly, with the state that it saw. Wrong variants: a warning; one more step."""
    callbacks()
    recorder = Recorder(stop_after=2)
    model = fit(name, recorder)
    assert recorder.n_tasks == model.n_iter_ == len(model.loss_curve_) == 2
    assert not model.converged_
    assert model.diagnostics_["ending"] == "stopped"
    assert np.array_equal(model.predict(X), recorder.seen[-1])
    assert np.isfinite(model.lower_bound_)
    assert np.isfinite(model.objective_value_)


def test_callbacks_do_not_change_what_is_kept(monkeypatch):
    """Where the draws are too poor, and what the callback saw is given up.

    Wrong variant: the posterior that the callback was shown last stays.
    """
    callbacks()
    monkeypatch.setattr(_moment_matching, "MAX_ERROR", 0.0)
    with pytest.warns(ConvergenceWarning, match="solution was kept"):
        watched = fit("renyi", Recorder())
    with pytest.warns(ConvergenceWarning, match="solution was kept"):
        alone = fit("renyi")
    assert np.array_equal(state_of(watched), state_of(alone))
