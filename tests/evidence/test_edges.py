"""Evidence bounds at the edges: priors and data that a stranger tries first."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

from skvi._sampling._chains import HamiltonianChains
from skvi.base import Layout, NormalForm
from skvi.evidence import _importance
from skvi.evidence._importance import importance_sides
from skvi.evidence._modes import OneMode
from skvi.linear_model import BayesianLogisticRegression, BayesianPoissonRegressor
from skvi.priors import GammaHyperprior, Normal
from skvi.targets import Target


def clusters(n=40):
    rng = np.random.default_rng(3)
    y = np.arange(n) % 2
    return rng.normal(size=(n, 1)) + 1.5 * y[:, None], y


def by_quadrature(X, y, scale, shape, rate):
    """Log evidence of one coefficient with a Gamma precision, and an intercept."""
    grid = np.linspace(-12, 12, 301)
    bias, coef = np.meshgrid(grid, grid, indexing="ij")
    total = stats.norm.logpdf(bias, 0, scale)
    # A normal whose precision is Gamma(a, b) is a Student-t with 2 a degrees.
    total += stats.t.logpdf(coef, 2 * shape, 0, np.sqrt(rate / shape))
    for x, sign in zip(X[:, 0], 2 * y - 1, strict=True):
        total -= np.logaddexp(0, -sign * (bias + x * coef))
    return logsumexp(total) + 2 * np.log(grid[1] - grid[0])


@pytest.mark.slow
def test_a_prior_without_closed_form_has_an_evidence():
    """The shared precision is integrated out: no normal solution to start from.

    Fails on the evidence that starts from a normal of the prior, which there is not.
    """
    X, y = clusters()
    X = (X - X.mean(0)) / X.std(0)  # what the hyperprior is relative to
    prior = {"prior": Normal(GammaHyperprior(2.0, 1.0)), "intercept_prior": Normal(3.0)}
    model = BayesianLogisticRegression(
        **{"prior": "normal", **prior}, random_state=0
    ).fit(X, y)
    bounds = model.evidence_bounds(X, y, n_draws=2048, random_state=0)
    truth = by_quadrature(X, y, 3.0, 2.0, 1.0)
    low, high = bounds.interval(4)
    assert bounds.reliable
    assert low <= truth <= high
    assert high - low < 0.2


class Rate(Target):
    """Posterior of a log rate, after counts of `total` altogether."""

    layout = Layout({"log_rate": (1,)})
    starts_near_fit = True  # there is no prior to start from

    def __init__(self, total):
        self.total = total

    def log_joint(self, theta, rows=None):
        return -self.total * (theta.exp() - theta).sum(1)


def test_chains_come_back_from_steep_rates():
    """At e^7 times the rate the density bends 1100 times as much as at its mode.

    Fails without the shortest steps of the warm-up: that chain never moves.
    """
    total = 1e6
    normal = NormalForm(torch.zeros(1).double(), torch.full((1,), total**-0.5).double())
    starts = torch.zeros(64, 1).double()  # so many that one does not change the step
    starts[0] = 7.0
    generator = torch.Generator().manual_seed(0)
    sampler = HamiltonianChains(Rate(total), starts, normal, generator)
    draws = sampler.warm_up(150).run(50).theta[..., 0]
    assert float(draws.abs().max()) < 10 * total**-0.5


def test_large_counts_under_a_wide_prior():
    """An easy posterior, and a prior whose draws predict 10^9 times the counts."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 1))
    y = 1000 * rng.poisson(np.exp(0.5 + 0.8 * X[:, 0]))
    model = BayesianPoissonRegressor(prior=Normal(5.0)).fit(X, y)
    found = [model.evidence_bounds(X, y, random_state=seed) for seed in range(3)]
    assert all(bounds.reliable for bounds in found)
    assert max(bounds.gap for bounds in found) < 0.1


@pytest.mark.parametrize("precision", [None, 1e-4])
def test_the_default_keeps_so_many_states_of_chains(precision, monkeypatch):
    """Draws that are correlated do not take four times as long unless asked for.

    Wrong variant: the limit for independent draws, times their correlation.
    """
    monkeypatch.setattr(_importance, "draw_limit", lambda n_params: 8192)
    target, generator = Rate(0.7), torch.Generator().manual_seed(0)
    wide = NormalForm(torch.zeros(1).double(), torch.full((1,), 1.2).double())
    sides = importance_sides(target, OneMode(wide), generator, None, precision)
    kept = sides.chains.log_joint.numel()
    assert kept > 8192 if precision else kept <= 8192
