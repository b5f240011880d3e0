"""What a fit costs beyond its training, and what several targets do."""

import numpy as np
import pytest

from skvi._estimator import _base
from skvi.neural_network import BayesianMLPRegressor, BayesianModuleRegressor
from skvi.objectives._analytic import AnalyticSteps
from skvi.predictors import ModulePredictor
from skvi.solvers import Stochastic
from tests.modules import relu_network

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


def data(n, n_targets=1):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    Y = np.sin(X) + 0.1 * rng.normal(size=(n, 3))
    return X, Y[:, 0] if n_targets == 1 else Y[:, :n_targets]


def test_estimates_after_a_fit(monkeypatch):
    """A fifth of its evaluations at most. Wrong variants: weights that are thought to
    be cheap, as for second-order solvers; 2,000 rows for the comparison."""
    counts, evaluate = {"fit": 0, "estimates": 0}, ModulePredictor.forward
    conclude, phase = _base.conclude, ["fit"]

    def counted(self, theta, X):
        counts[phase[0]] += len(theta) * len(X)
        return evaluate(self, theta, X)

    def judged(*args):
        phase[0] = "estimates"
        return conclude(*args)

    monkeypatch.setattr(ModulePredictor, "forward", counted)
    monkeypatch.setattr(_base, "conclude", judged)
    model = BayesianModuleRegressor(
        relu_network,
        solver=Stochastic(n_draws=2, tol=0),
        max_iter=40,
        batch_size=250,
        random_state=0,
    ).fit(*data(3000))
    assert model.n_iter_ == 40
    assert counts["estimates"] < 0.2 * 2 * counts["fit"]  # with gradients twice as much
    assert model.lower_bound_se_ > 0


@pytest.mark.parametrize("params", [{}, {"likelihood": "heteroscedastic"}])
def test_targets_share_the_steps_in_closed_form(params, monkeypatch):
    """Wrong variant: automatic differentiation, which took 3.5 times as long."""
    calls, step = [], AnalyticSteps.differentiate

    def counted(self, *args, **kwargs):
        calls.append(type(self._row_pass).__name__)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(AnalyticSteps, "differentiate", counted)
    model = BayesianMLPRegressor(max_iter=2, random_state=0, **(ONE | params))
    model.fit(*data(50, 3))
    assert set(calls) == {"_IndependentPass"}
