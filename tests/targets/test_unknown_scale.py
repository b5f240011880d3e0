"""A target beside the unknown scale of its prior."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from skvi.base import NormalForm
from skvi.likelihoods import BernoulliLikelihood
from skvi.losses import LogLoss
from skvi.predictors import LinearPredictor
from skvi.priors import HalfCauchy, Normal, build_prior
from skvi.priors._half_cauchy import scale_at_score, score_of_scale
from skvi.targets import SupervisedTarget
from skvi.targets._unknown_scale import UnknownScaleTarget


def lifted(d=3, fit_intercept=True):
    rng = np.random.default_rng(0)
    model = LinearPredictor(d, fit_intercept=fit_intercept)
    prior = {"coef": Normal(HalfCauchy(0.7)), "intercept": Normal(10.0)}
    built = build_prior(prior if fit_intercept else prior["coef"], model.layout)
    X = torch.from_numpy(rng.normal(size=(12, d)))
    y = (X[:, 0] > 0).double()
    target = SupervisedTarget(model, BernoulliLikelihood(), LogLoss(), built, X, y)
    size, log_scales = model.layout.size, [-7.0, 0.3, 8.0]
    normals = []
    for log_scale in log_scales:  # of classes that are separated
        width = math.exp(log_scale)
        mean, root = rng.normal(size=size), rng.uniform(0.5, 1, size=(size, size))
        root = torch.from_numpy(width * np.tril(root))
        normals.append(NormalForm(width * torch.from_numpy(mean), root))
    return target, UnknownScaleTarget(target, log_scales, normals)


def test_scores_have_the_quantiles_of_the_scale():
    score = torch.linspace(-7, 7, 56, dtype=torch.float64).requires_grad_()
    scale, slope = scale_at_score(score)
    tails = stats.halfcauchy.sf(scale.detach()), stats.halfcauchy.cdf(scale.detach())
    normal = stats.norm.sf(score.detach()), stats.norm.cdf(score.detach())
    np.testing.assert_allclose(tails, normal, rtol=1e-5)
    (expected,) = torch.autograd.grad(scale.log().sum(), score)
    np.testing.assert_allclose(slope.detach(), expected, rtol=1e-9)
    back = score_of_scale(scale.detach().log())
    np.testing.assert_allclose(back, score.detach(), atol=1e-7)


def test_the_gradient_is_that_of_the_density():
    """Wrong variants: any of the terms of the score left out."""
    _, target = lifted()
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    leaf = theta.clone().requires_grad_()
    value = target.log_joint(leaf)
    (expected,) = torch.autograd.grad(value.sum(), leaf)
    found = target.log_joint_and_gradient(theta)
    torch.testing.assert_close(found[0], value.detach())
    torch.testing.assert_close(found[1], expected)
    assert bool((expected[:, -1] != 0).all())


def test_the_evidence_is_the_same():
    """One coefficient: a grid of both against one of the coefficient alone.

    Wrong variant: no determinant.
    """
    target, beside = lifted(1, fit_intercept=False)
    line = torch.linspace(-12, 12, 601, dtype=torch.float64)
    step = float(line[1] - line[0])
    grid = torch.cartesian_prod(line, line)
    found = torch.logsumexp(beside.log_joint(grid), 0) + 2 * math.log(step)
    fine = torch.linspace(-25, 25, 6000, dtype=torch.float64)
    axis = 1e-6 * torch.sinh(fine)
    weights = (1e-6 * torch.cosh(fine) * float(fine[1] - fine[0])).log()
    expected = torch.logsumexp(target.log_joint(axis[:, None]) + weights, 0)
    assert float(found) == pytest.approx(float(expected), abs=0.003)
