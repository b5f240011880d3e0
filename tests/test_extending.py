"""What users add without a change to the package: each in one test of a few lines."""

import math

import pytest
import torch

from skvi.base import Layout
from skvi.divergences import KL
from skvi.evidence import bound_evidence
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal
from skvi.solvers import Problem, SolverOptions, choose_solver
from skvi.targets import Target

BEND = 0.2


class Banana(Target):
    """A curved density over two parameters; its integral is e^-3."""

    layout = Layout({"place": (1,), "height": (1,)})

    def log_joint(self, theta, rows=None):
        x, y = theta.unbind(1)
        squares = x.square() + 4 * (y - BEND * x.square()).square()
        return -0.5 * squares - math.log(math.pi) - 3


@pytest.mark.parametrize("gradient", ["auto", "reparam", "score"])
def test_density_without_prior_and_rows(gradient):
    """The best normal is known: independent, of variances v and 1/4.

    Wrong variants: log q twice; a standard normal in the place of the prior.
    """
    target, generator = Banana(), torch.Generator().manual_seed(0)
    objective, posterior = ELBO(gradient), FullRankNormal().build(target.layout)
    objective.check(KL(), target)
    problem = Problem(target, objective, KL(), posterior, generator)
    rate = 0.1 * objective.rate_share
    options = SolverOptions(20, n_draws=20, learning_rate=rate, early_stopping=False)
    fit = choose_solver(problem)().solve(problem, options)
    v = (math.sqrt(0.25 + 16 * BEND**2) - 0.5) / (16 * BEND**2)
    q = posterior.as_normal()
    expected = torch.tensor([[v, 0.0], [0.0, 0.25]]).double()
    torch.testing.assert_close(q.covariance(), expected, rtol=0, atol=0.05)
    assert float(q.mean[1]) == pytest.approx(BEND * v, abs=0.03)
    loss = 0.5 * v + 0.5 + 4 * (BEND * v) ** 2 + math.log(math.pi) + 3
    loss -= 0.5 * math.log(v / 4) + 1 + math.log(2 * math.pi)
    assert fit.value == pytest.approx(loss, abs=5 * fit.value_se)
    bounds = bound_evidence(target, posterior, generator, n_draws=2000)
    low, high = bounds.interval()
    assert bounds.reliable
    assert high - 0.15 < low < -3 < high
