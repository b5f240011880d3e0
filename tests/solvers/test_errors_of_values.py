"""Standard errors behind `objective_value_se_`, against repeated estimates."""

import pytest
import torch

from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence
from skvi.objectives import RenyiBound
from skvi.posteriors import FullRankNormal
from skvi.solvers import Problem
from skvi.solvers._moment_matching import _standard_error, estimate_loss
from skvi.targets import Target

N_REPEATS = 200


def ratio(estimates, errors):
    """Spread of repeated estimates in units of their errors; 1, within 15 %."""
    return float(torch.stack(estimates).std() / torch.tensor(errors).double().mean())


def test_weighted_draws():
    """Wrong variant: as if weights were equal (a ratio of 1.6)."""
    generator = torch.Generator().manual_seed(0)
    estimates, errors = [], []
    for _ in range(N_REPEATS):
        noise = torch.randn(2, 500, generator=generator).double()
        weights, values = torch.softmax(noise[0], 0), noise[1]
        estimates.append(weights @ values)
        errors.append(_standard_error(weights, values, None))
    assert ratio(estimates, errors) == pytest.approx(1, abs=0.15)


def test_states_of_chains():
    """Wrong variant: as if they were independent (a ratio of 2.2)."""
    generator = torch.Generator().manual_seed(0)
    shape = torch.Size((4, 200))
    weights = torch.full((800,), 1 / 800).double()
    estimates, errors = [], []
    for _ in range(N_REPEATS):
        values = torch.randn(shape, generator=generator).double()
        for i in range(1, shape[1]):
            values[:, i] = 2 / 3 * values[:, i - 1] + (5 / 9) ** 0.5 * values[:, i]
        estimates.append(values.mean())
        errors.append(_standard_error(weights, values.flatten(), shape))
    assert ratio(estimates, errors) == pytest.approx(1, abs=0.15)


class StandardNormal(Target):
    layout = Layout({"coef": (1, 1)})

    def log_joint(self, theta, rows=None):
        return -0.5 * theta.square().sum(1)


def test_values_from_draws_of_the_posterior():
    """Wrong variant: the spread of leave-one-out values, 31 times too small."""
    posterior = FullRankNormal().build(StandardNormal.layout)
    near = NormalForm(torch.full((1,), 0.3).double(), torch.ones(1).double())
    posterior = posterior.near(near)
    estimates, errors = [], []
    for seed in range(N_REPEATS):
        generator = torch.Generator().manual_seed(seed)
        objective = RenyiBound(0.5)
        problem = Problem(
            StandardNormal(), objective, KLDivergence(), posterior, generator
        )
        value, error = estimate_loss(problem, 512)
        estimates.append(torch.tensor(value).double())
        errors.append(error)
    assert ratio(estimates, errors) == pytest.approx(1, abs=0.15)
