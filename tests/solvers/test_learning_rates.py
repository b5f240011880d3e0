"""Objectives with noisy gradients get a share of the usual step size."""

from types import SimpleNamespace

import pytest

from skvi.neural_network import BayesianMLPRegressor
from skvi.objectives import ELBO, EUBO
from skvi.solvers import Stochastic
from tests.solvers.test_members import make_problem


@pytest.mark.parametrize(
    ("objective", "share"), [(ELBO(), 1.0), (ELBO("score"), 0.1), (EUBO(), 0.2)]
)
def test_automatic_rates_are_shares_of_the_usual_one(objective, share):
    """Wrong variants: divided by the share; no share; a given rate changed."""
    problem, target = (
        make_problem(0, objective=objective),
        SimpleNamespace(n_rows=10, held_out=None),
    )
    for given, expected in (("auto", 0.05 * share), (0.3, 0.3)):
        model = BayesianMLPRegressor(learning_rate=given)
        model.objective_ = objective
        training = Stochastic()._train(problem, model._solver_options(target))
        assert training.optimizer.rate == pytest.approx(expected)
