"""Chains and importance sampling; `test_diagnostics.py` has what judges them."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_t

from skvi._sampling._chains import HamiltonianChains
from skvi._sampling._importance import (
    StudentT,
    WeightedDraws,
    adapt_proposal,
    draw_limit,
    draw_weighted,
)
from skvi.likelihoods import BernoulliLikelihood
from skvi.losses import LogLoss
from skvi.predictors import LinearPredictor
from skvi.priors import Normal
from skvi.targets import SupervisedTarget
from tests.densities import NormalTarget
from tests.reference import chain_mean

pytestmark = pytest.mark.usefixtures("one_thread")


def run_chains(target, starts, normal, generator, n_warmup, n_iter):
    sampler = HamiltonianChains(target, starts, normal, generator)
    return sampler.warm_up(n_warmup).run(n_iter)


@pytest.mark.parametrize(("kind", "width"), [("diag", 0.5), ("full", 2.0)])
def test_chains_of_a_normal(make_normal, generator, kind, width):
    """Whitened by another normal, of other width: only the acceptance corrects it.

    Wrong variants: every proposal accepted; the momentum's energy left out; the
    gradient not whitened.
    """
    target = NormalTarget(make_normal(4, "full", seed=1))
    other = make_normal(4, kind, seed=2, width=width)
    starts = target.prior.sample(64, generator)
    chains = run_chains(target, starts, other, generator, 150, 400)
    theta, true = chains.theta.numpy(), target.normal
    mean, error = chain_mean(theta)
    assert np.all(np.abs(mean - true.mean.numpy()) < 5 * error)
    centered = theta - true.mean.numpy()
    i, j = np.triu_indices(4)
    product, error = chain_mean(centered[..., i] * centered[..., j])
    assert np.all(np.abs(product - true.covariance().numpy()[i, j]) < 5 * error)
    assert np.allclose(
        chains.log_joint[3].numpy(), target.log_joint(chains.theta[3]).numpy()
    )
    assert chains.rhat < 1.05
    if width > 1:  # narrower ones meet the largest step that is allowed
        assert 0.7 < chains.acceptance < 0.9


def test_chains_of_a_skewed_posterior(generator):
    """Separable labels, one feature: first four moments against a grid.

    Wrong variant: a step of the leapfrog without its second half kick.
    """
    X = torch.tensor([[-2.0], [-1.0], [1.0], [2.5]], dtype=torch.float64)
    y = (X[:, 0] > 0).to(torch.float64)
    predictor = LinearPredictor(1, fit_intercept=False)
    prior = Normal(3.0).build(predictor.layout)
    target = SupervisedTarget(predictor, BernoulliLikelihood(), LogLoss(), prior, X, y)
    grid = torch.linspace(-15, 15, 20001, dtype=torch.float64)
    p = torch.softmax(target.log_joint(grid[:, None]), 0)
    whiten = prior.as_normal()
    starts = prior.sample(128, generator)
    chains = run_chains(target, starts, whiten, generator, 100, 300)
    for power in (1, 2, 3, 4):
        mean, error = chain_mean(chains.theta.numpy()[..., 0] ** power)
        assert abs(mean - float(p @ grid**power)) < 5 * error


def test_chains_survive_a_hole_in_the_support(make_normal, generator):
    """Non-finite densities are rejected, and left where a chain starts in one.

    A half-normal, right to five errors. Wrong variant: NaN is kept as the value of a
    start, so that no move from there is ever accepted.
    """
    target = NormalTarget(make_normal(1, "diag"))
    full = target.normal
    target.log_joint = lambda theta: torch.where(
        theta[:, 0] > full.mean, full.log_prob(theta), math.nan
    )
    z = torch.linspace(-1, 2, 64, dtype=torch.float64)[:, None]
    chains = run_chains(target, full.transform(z), full, generator, 40, 100)
    mean, error = chain_mean(((chains.theta - full.mean) / full.scale).numpy()[..., 0])
    assert torch.isfinite(chains.log_joint).all()
    assert abs(mean - math.sqrt(2 / math.pi)) < 5 * error


@pytest.mark.parametrize("df", [5, 12, 40])
@pytest.mark.parametrize("kind", ["diag", "full"])
def test_student_t(make_normal, generator, z_score, kind, df):
    """Density against scipy; draws by first and second moments.

    Wrong variants: determinant left out; chi-square with df / 2 terms doubled.
    """
    normal = make_normal(3, kind)
    proposal = StudentT(normal, df)
    theta = proposal.sample(20_000, generator)
    covariance = normal.covariance().numpy()
    exact = multivariate_t(normal.mean.numpy(), covariance, df=df)
    assert np.allclose(proposal.log_prob(theta).numpy(), exact.logpdf(theta.numpy()))
    assert z_score(theta, normal.mean) < 5
    squares = (theta - normal.mean).square()
    # A variance whose own error exists needs more than four degrees of freedom.
    if df > 5:
        assert z_score(squares, normal.variance * df / (df - 2)) < 5
    inside = normal.whiten(theta - normal.mean).square().sum(1) < 3
    direct = exact.rvs(20_000, random_state=1) - normal.mean.numpy()
    whitened = np.einsum("ij,jk,ik->i", direct, np.linalg.inv(covariance), direct)
    share = (inside.double().mean(), (whitened < 3).mean())
    assert abs(share[0] - share[1]) < 5 * math.sqrt(0.5 / 20_000)


def test_proposal_adapts_and_weights_integrate(make_normal, generator):
    """From a shifted start; the mean weight is the evidence.

    Wrong variant: the weights without the proposal's density.
    """
    target = NormalTarget(make_normal(5, "full", seed=1))
    start = make_normal(5, "diag", seed=7, width=1.5)
    first = draw_weighted(target, StudentT(start), 4096, generator)
    proposal, pilot = adapt_proposal(target, start, generator)
    assert pilot.ess > 0.7 * 4096 > 2 * first.ess
    draws = draw_weighted(target, proposal, 20_000, generator)
    ratio = torch.exp(draws.log_weights - target.log_evidence)
    assert abs(float(ratio.mean()) - 1) < 5 * float(ratio.std()) / math.sqrt(20_000)
    assert draws.khat < 0.5
    moments, error = draws.moments(), 5 / math.sqrt(draws.ess)
    shift = (moments.mean - target.normal.mean) / target.normal.variance.sqrt()
    assert float(shift.abs().max()) < error
    assert float((moments.variance / target.normal.variance).log().abs().max()) < (
        error * math.sqrt(2)
    )


def test_ess_of_weights():
    """(sum w)^2 / sum w^2, whatever the scale of the weights."""
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    draws = WeightedDraws(torch.zeros(3, 1), weights.log() + 800)
    assert draws.ess == pytest.approx(36 / 14)
    assert draws.weights.tolist() == pytest.approx([1 / 6, 1 / 3, 1 / 2])


def test_draws_fit_into_memory():
    """Wrong variants: no limit in bytes; single precision; 1e9 bytes."""
    assert (draw_limit(31), draw_limit(50_000)) == (131_072, 2684)
