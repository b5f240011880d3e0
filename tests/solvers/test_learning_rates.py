"""Objectives with noisy gradients get a share of the usual step size."""

import pytest

from skvi.objectives import ELBO, EUBO
from skvi.solvers import SolverOptions, Stochastic
from tests.solvers.test_members import make_problem


@pytest.mark.parametrize(
    ("objective", "share"), [(ELBO(), 1.0), (ELBO("score"), 0.1), (EUBO(), 0.2)]
)
def test_automatic_rates_are_shares_of_the_usual_one(objective, share):
    """Wrong variants: divided by the share; no share; a given rate changed."""
    problem = make_problem(0, objective=objective)
    for given, expected in (("auto", 0.05 * share), (0.3, 0.3)):
        training = Stochastic(learning_rate=given)._train(problem, SolverOptions())
        assert training.optimizer.rate == pytest.approx(expected)
