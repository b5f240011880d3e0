"""Annealed importance sampling, forwards and backwards, and the sandwich it gives."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from threadpoolctl import threadpool_limits

from skvi._sampling._annealing import AnnealedPath, tune_path
from skvi._sampling._state import State
from skvi.base import Layout, NormalForm
from skvi.evidence import bound_evidence
from skvi.linear_model import BayesianLogisticRegression
from skvi.posteriors import MeanFieldNormal
from skvi.priors import Normal
from skvi.targets import Target


@pytest.fixture(autouse=True)
def _one_thread():
    with threadpool_limits(1):
        yield


class NormalTarget(Target):
    """A normal density times exp(-3)."""

    log_evidence = -3.0

    def __init__(self, normal):
        self.normal, self.layout = normal, Layout({"theta": normal.mean.shape})
        self.prior = Normal(3.0).build(self.layout)

    def log_joint(self, theta, rows=None):
        return self.normal.log_prob(theta) + self.log_evidence


@pytest.mark.parametrize("kind", ["diag", "full"])
@pytest.mark.parametrize("n_levels", [1, 2, 4])
def test_weights_are_unbiased(kind, n_levels, make_normal, generator, z_score):
    """E[exp(forward)] = Z and E[exp(-reverse)] = 1/Z, however coarse the path is.

    Wrong variants: the weight taken after the move; a move at the next density; the
    path backwards with the moves of the levels above; no Metropolis step.
    """
    target = NormalTarget(make_normal(3, "full", seed=1, width=0.8))
    start = make_normal(3, kind, seed=2)
    betas = tuple(np.linspace(0, 1, n_levels + 1) ** 2)
    path = AnnealedPath(target, start, betas, (0.9,) * (n_levels - 1))
    draws = path.forward(40_000, generator)
    ratios = torch.exp(draws.log_weights - target.log_evidence)
    assert z_score(ratios, 1.0) < 5
    eps = torch.randn(40_000, 3, generator=generator, dtype=torch.float64)
    reverse = path.reverse(target.normal.transform(eps), generator)
    assert z_score(torch.exp(target.log_evidence - reverse), 1.0) < 5
    # Jensen: the means of the log weights are on either side.
    assert draws.log_weights.mean() < target.log_evidence < reverse.mean()


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.8])
def test_moves_leave_their_density(beta, make_normal, generator, z_score):
    """Draws of r^(1 - beta) p^beta, a normal, stay draws of it.

    Wrong variants: beta and 1 - beta exchanged in the energy; the force of the joint.
    """
    target = NormalTarget(make_normal(2, "full", seed=1, width=0.8))
    normal = make_normal(2, "full", seed=2)
    precisions = [torch.linalg.inv(n.covariance()) for n in (normal, target.normal)]
    precision = (1 - beta) * precisions[0] + beta * precisions[1]
    covariance = torch.linalg.inv(precision)
    pull = (1 - beta) * precisions[0] @ normal.mean
    mean = covariance @ (pull + beta * precisions[1] @ target.normal.mean)
    mixed = NormalForm(mean, torch.linalg.cholesky(covariance))
    eps = torch.randn(50_000, 2, generator=generator, dtype=torch.float64)
    state = State(target, normal, mixed.transform(eps), beta)
    for _ in range(3):
        accepted = state.move(1.3, 2, generator)
    assert 0.3 < accepted < 0.97  # the correction has something to do
    z = mixed.whiten(state.theta() - mixed.mean)
    i, j = torch.triu_indices(2, 2)
    assert z_score(z, torch.zeros(2)) < 5
    assert z_score(z[:, i] * z[:, j], (i == j).double()) < 5


def test_refined_paths_vary_less(make_normal, generator):
    """Four times as many levels: a quarter of the variance, or nearly so."""
    target = NormalTarget(make_normal(5, "full", seed=1, width=0.5))
    start = make_normal(5, "diag", seed=2, width=2.0)
    path, theta = tune_path(target, start, generator)
    assert len(path.betas) > 3
    assert path.betas[0] == 0
    assert path.betas[-1] == 1
    assert all(a < b for a, b in zip(path.betas[:-1], path.betas[1:], strict=True))
    fine = path.refined(4)
    assert len(fine.betas) == 4 * (len(path.betas) - 1) + 1
    assert len(fine.steps) == len(fine.betas) - 2
    spread = [float(p.forward(2000, generator).log_weights.var()) for p in (path, fine)]
    assert spread[1] < 0.4 * spread[0]
    assert theta.shape == (128, 5)


def test_targets_without_density_at_the_start():
    class Nowhere(NormalTarget):
        def log_joint(self, theta, rows=None):
            return super().log_joint(theta, rows) - math.inf

    unit = NormalForm(torch.zeros(2).double(), torch.ones(2).double())
    with pytest.raises(ValueError, match="not finite at any draw"):
        tune_path(Nowhere(unit), unit, torch.Generator())


@pytest.mark.parametrize("seed", range(3))
def test_sandwich_of_a_user_target(make_normal, seed):
    """Twelve correlated dimensions from a factorized q, without a linear predictor.

    Wrong variants: reverse paths from draws of q; forward weights of the coarse path
    with the errors of the fine one.
    """
    target = NormalTarget(make_normal(12, "full", seed=1, width=0.5))
    posterior = MeanFieldNormal().build(target.layout)
    posterior = posterior.near(make_normal(12, "diag", seed=2, width=0.3))
    generator = torch.Generator().manual_seed(seed)
    bounds = bound_evidence(target, posterior, generator, method="annealing")
    assert bounds.reliable, bounds.reason
    assert bounds.method == "annealing"
    low, high = bounds.interval()
    assert low <= target.log_evidence + 1e-9
    assert high >= target.log_evidence - 1e-9
    assert high - low < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
def test_methods_agree(posterior):
    """Breast cancer, 31 coefficients: log p(D) = -55.224 by other means."""
    X, y = load_breast_cancer(return_X_y=True)
    data = scale(X), y
    priors = {"prior": "normal", "intercept_prior": "normal"}
    model = BayesianLogisticRegression(posterior=posterior, **priors).fit(*data)
    found = {
        method: model.evidence_bounds(*data, method=method, random_state=1)
        for method in ("importance", "annealing")
    }
    for method, bounds in found.items():
        assert bounds.reliable, bounds.reason
        assert bounds.method == method
        low, high = bounds.interval()
        assert low < -55.224 < high
        assert high - low < 0.1
