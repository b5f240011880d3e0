"""Evidence beside a dispersion that the data do not show: its logarithm is skewed."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import nbinom, norm

from skvi.base import GammaForm, NormalForm
from skvi.evidence import _proposals
from skvi.evidence._estimates import bridge_estimate
from skvi.evidence._scored_mode import ScoredMode, _Scored, _Scores
from skvi.likelihoods import NegativeBinomialLikelihood
from skvi.linear_model import BayesianPoissonRegressor
from skvi.priors import Normal
from skvi.utils._gamma import log_gamma_density


@pytest.mark.parametrize("shape", [0.6, 1.1, 150.0])
def test_the_density_of_the_logarithm_integrates_to_one(shape):
    """And its draws have that density. Wrong variants: no Jacobian; its inverse."""
    gamma = GammaForm(torch.tensor([shape]).double(), torch.tensor([40.0]).double())
    normal = NormalForm(torch.zeros(1).double(), torch.tensor([0.8]).double())
    scores = _Scores(0, gamma)
    density = _Scored(normal, scores)
    t = torch.linspace(-90, 6, 40_001, dtype=torch.float64)[:, None]
    log_p = density.log_prob(t)
    assert float(torch.trapezoid(log_p.exp(), t[:, 0])) == pytest.approx(1, abs=1e-6)
    inside = t[(log_p > -200)]
    torch.testing.assert_close(scores.back(scores.of(inside)[0]), inside)
    draws = density.sample(4000, torch.Generator().manual_seed(0))[:, 0]
    below = torch.cumulative_trapezoid(log_p.exp(), t[:, 0])
    uniform = torch.from_numpy(np.interp(draws, t[1:, 0], below))
    assert float((uniform.sort()[0] - torch.linspace(0, 1, 4000)).abs().max()) < 0.03


def test_weights_are_bounded_in_both_tails():
    """Of a posterior that is like the prior near 0. Wrong variant: no heavy tails."""
    shape, rate = torch.tensor([[4.0], [40.0]]).double()
    normal = NormalForm(torch.tensor([-2.4]).double(), torch.tensor([0.5]).double())
    one = torch.ones(1).double()
    mode = ScoredMode(normal, _Scores(0, GammaForm(shape, rate)), one)
    t = torch.linspace(-40, 20, 601, dtype=torch.float64)
    exponential = log_gamma_density(t, one, (rate / shape).log())
    log_weights = exponential - mode._proposal(100).log_prob(t[:, None])
    assert float(log_weights.max()) < np.log(25)


def by_quadrature(X, y):
    """Log evidence with one coefficient ~ N(0, 1) and a dispersion ~ Exp(1)."""
    coef = np.linspace(-1.5, 1.5, 101)
    t = np.linspace(-16, 3, 150)
    r = np.exp(-t)[:, None, None]
    mean = np.exp(coef[:, None] * X[:, 0])
    log_joint = nbinom.logpmf(y, r, r / (r + mean)).sum(2)
    log_joint += norm.logpdf(coef) + (t - np.exp(t))[:, None]
    return logsumexp(log_joint) + np.log((coef[1] - coef[0]) * (t[1] - t[0]))


def test_no_overdispersion_takes_no_gradients(monkeypatch):
    """Against quadrature. Wrong variant: distinct counts once."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(100, 1))
    y = rng.poisson(np.exp(0.5 * X[:, 0]))
    model = BayesianPoissonRegressor(
        likelihood="negative_binomial", prior=Normal(), fit_intercept=False
    ).fit(X, y)
    monkeypatch.delattr(_proposals, "HamiltonianChains")
    truth = by_quadrature(X, y)
    for seed in range(3):
        bounds = model.evidence_bounds(X, y, random_state=seed)
        low, high = bounds.interval()
        assert bounds.reliable
        assert low < truth < high
        assert high - low < 0.1


@pytest.mark.parametrize("weighted", [False, True])
def test_totals_of_counts_are_sums_over_rows(weighted, generator):
    """Wrong variants: every distinct count once; its rows without weights."""
    y = torch.tensor([0.0, 3.0, 1.0, 3.0, 0.0, 0.0, 41.0, 2e4]).double()
    weight = torch.rand(8, generator=generator).double() if weighted else None
    f = torch.randn(5, 8, 1, generator=generator, dtype=torch.float64)
    of_draws = torch.randn(1, 5, 1, generator=generator, dtype=torch.float64)
    of_rows = torch.randn(1, 1, 8, generator=generator, dtype=torch.float64)
    for hyper in (of_draws, of_draws[0, 0], of_rows):
        likelihood = NegativeBinomialLikelihood("learn").bind(hyper)
        total = likelihood.total_log_prob(f, y, weight)
        rows = likelihood.log_prob(f, y)
        rows = rows if weight is None else rows * weight
        torch.testing.assert_close(total, rows.sum(1))


def test_zeros_alone_are_fitted():
    """The dispersion keeps its prior, of mean 1; a rate far below 1 remains."""
    X = np.random.default_rng(0).normal(size=(50, 2))
    model = BayesianPoissonRegressor(likelihood="negative_binomial")
    model.fit(X, np.zeros(50))
    assert model.converged_
    assert 0.7 < model.dispersion_ < 1.5
    assert model.predict(X).max() < 0.2


def test_a_draw_without_density_leaves_the_bridge_estimate():
    """Wrong variant: minus infinity times 0."""
    forward = torch.zeros(100).double()
    forward[0] = -torch.inf
    found = bridge_estimate(forward, torch.zeros(4, 25).double(), 100.0)
    assert found.value == pytest.approx(np.log(0.99), abs=0.01)
