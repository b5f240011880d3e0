"""Mixtures of the posteriors at several scales of a prior."""

import pickle

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from skvi.base import Layout, NormalForm
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.posteriors._mixture import MixtureOverScales
from skvi.priors._blocks import build_prior

LAYOUT = Layout({"coef": (1, 2), "intercept": (1,)})
WEIGHTS = np.array([0.2, 0.5, 0.3])


def mixture(family):
    rng, nodes = np.random.default_rng(0), []
    base = family.build(LAYOUT, torch.Generator().manual_seed(0))
    for k in range(3):
        root = np.tril(0.5 * rng.uniform(size=(3, 3))) + (1 + k) * np.eye(3)
        mean = torch.from_numpy(rng.normal(size=3) + k)
        nodes.append(base.near(NormalForm(mean, torch.from_numpy(root))))
    return MixtureOverScales(nodes, np.log(WEIGHTS), [-1.0, 0.0, 1.0])


def moments(q):
    means = np.array([n.mean.numpy() for n in q.normals()])
    covs = np.array([n.covariance().numpy() for n in q.normals()])
    mean = WEIGHTS @ means
    moved = means - mean
    return mean, np.tensordot(WEIGHTS, covs, 1) + moved.T @ (WEIGHTS[:, None] * moved)


def test_the_density_is_that_of_the_mixture():
    q = mixture(FullRankNormal())
    theta = np.random.default_rng(1).normal(size=(5, 3))
    parts = [
        multivariate_normal.logpdf(theta, n.mean, n.covariance()) + np.log(w)
        for n, w in zip(q.normals(), WEIGHTS, strict=True)
    ]
    found = q.log_prob(torch.from_numpy(theta))
    np.testing.assert_allclose(found, logsumexp(parts, 0), rtol=1e-10)
    again = pickle.loads(pickle.dumps(q))
    assert torch.equal(again.log_prob(torch.from_numpy(theta)), found)


@pytest.mark.parametrize("family", [FullRankNormal(), MeanFieldNormal()])
def test_draws_have_the_moments_and_the_density(family):
    """Wrong variants: all nodes equally likely; nodes in the order of the draws."""
    q = mixture(family)
    draw = q.draw(40_000, torch.Generator().manual_seed(0))
    mean, cov = moments(q)
    error = np.sqrt(np.diag(cov) / 40_000)
    assert np.all(np.abs(draw.theta.mean(0).numpy() - mean) < 5 * error)
    np.testing.assert_allclose(np.cov(draw.theta.numpy().T), cov, rtol=0.1, atol=0.1)
    torch.testing.assert_close(draw.log_q, q.log_prob(draw.theta))


@pytest.mark.parametrize("family", [FullRankNormal(), MeanFieldNormal()])
def test_as_a_prior_it_is_the_normal_of_its_moments(family):
    """Wrong variant: without the variance of the means of the nodes."""
    q = mixture(family)
    mean, cov = moments(q)
    normal = build_prior(q, LAYOUT).as_one().as_normal()
    np.testing.assert_allclose(normal.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(normal.variance, np.diag(cov), rtol=1e-10)
    if isinstance(family, FullRankNormal):
        np.testing.assert_allclose(normal.covariance(), cov, rtol=1e-10)
