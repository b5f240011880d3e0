"""Evidence beside a dispersion that the data do not show: its logarithm is skewed."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import nbinom

from skvi.base import Layout
from skvi.evidence import _near_normal
from skvi.evidence._estimates import bridge_estimate
from skvi.exceptions import SkviWarning
from skvi.likelihoods import NegativeBinomialLikelihood
from skvi.linear_model import BayesianPoissonRegressor
from skvi.priors import HalfCauchy, Laplace, Normal


def by_quadrature(X, y, prior):
    """Log evidence of one coefficient and a dispersion ~ Exp(1)."""
    coef = np.linspace(-2.5, 2.5, 401)
    t = np.linspace(-16, 3, 150)
    r = np.exp(-t)[:, None, None]
    mean = np.exp(coef[:, None] * X[:, 0])
    log_joint = nbinom.logpmf(y, r, r / (r + mean)).sum(2)
    log_prior = prior.build(Layout({"coef": (1, 1)})).log_prob(as_column(coef))
    log_joint += log_prior.numpy() + (t - np.exp(t))[:, None]
    return logsumexp(log_joint) + np.log((coef[1] - coef[0]) * (t[1] - t[0]))


def as_column(values):
    return torch.from_numpy(values)[:, None]


@pytest.mark.parametrize(
    ("prior", "n"), [(Normal(), 7), (Laplace(), 50), (Normal(HalfCauchy()), 100)]
)
def test_a_dispersion_takes_no_gradients(monkeypatch, prior, n):
    """Against quadrature. Wrong variants: distinct counts once; no prior of it."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 1))
    X /= np.sqrt(np.mean(X**2))  # to which an unknown scale is relative
    y = rng.poisson(np.exp(0.5 * X[:, 0]))
    model = BayesianPoissonRegressor(
        likelihood="negative_binomial", prior=prior, fit_intercept=False
    ).fit(X, y)
    monkeypatch.delattr(_near_normal, "HamiltonianChains")
    bounds = model.evidence_bounds(X, y, random_state=0)
    low, high = bounds.interval()
    assert bounds.reliable
    assert low < by_quadrature(X, y, prior) < high
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
        total = likelihood._total_log_prob(f, y, weight)
        rows = likelihood.log_prob(f, y)
        rows = rows if weight is None else rows * weight
        torch.testing.assert_close(total, rows.sum(1))


def test_zeros_alone_are_fitted():
    """The dispersion keeps its prior, of mean 1, and a rate far below 1 remains.

    Its mean does not exist: no data exclude a large scale with a large dispersion.
    """
    X = np.random.default_rng(0).normal(size=(50, 2))
    model = BayesianPoissonRegressor(likelihood="negative_binomial")
    model.fit(X, np.zeros(50))
    assert model.converged_
    assert 0.7 < model.dispersion_ < 1.5
    assert np.exp(model.predict_log_density(X, np.zeros(50))).min() > 0.95
    with pytest.warns(SkviWarning, match="the median is given"):
        assert model.predict(X).max() < 0.2


def test_a_draw_without_density_leaves_the_bridge_estimate():
    """Wrong variant: minus infinity times 0."""
    forward = torch.zeros(100).double()
    forward[0] = -torch.inf
    found = bridge_estimate(forward, torch.zeros(4, 25).double(), 100.0)
    assert found.value == pytest.approx(np.log(0.99), abs=0.01)
