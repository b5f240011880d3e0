"""Expectations over more classes than a fixed number of points can span."""

import numpy as np
import pytest
import torch

from skvi.expectations._rules import quasi_random_rule
from skvi.expectations._softmax import expect_logsumexp
from skvi.linear_model import BayesianLogisticRegression
from skvi.priors import Normal
from skvi.utils._tensors import make_generator


@pytest.mark.parametrize("dimension", [5, 32, 33, 40, 65, 130])
def test_the_rule_has_mean_zero_and_unit_covariance(dimension):
    """Wrong variant: a fixed number of points, whatever the dimension.

    64 antithetic points span 32 dimensions: with 33 rounding let a factorization of a
    singular matrix pass, and above it failed.
    """
    nodes, weights = quasi_random_rule(dimension, 64)
    assert nodes.shape == (dimension, len(weights))
    identity = torch.eye(dimension, dtype=torch.float64)
    torch.testing.assert_close((nodes * weights) @ nodes.T, identity)
    torch.testing.assert_close(nodes @ weights, torch.zeros(dimension).double())
    assert float(weights.sum()) == pytest.approx(1)
    # Up to half as many dimensions as points no more points are taken.
    assert dimension > 32 or len(weights) == 64


@pytest.mark.parametrize("n_classes", [20, 34, 50])
def test_expectations_agree_with_draws(n_classes):
    """Strong covariances, which take points; with standard deviations of 2.

    Wrong variant: nodes in half of the directions only.
    """
    rng = np.random.default_rng(n_classes)
    mean = torch.from_numpy(rng.normal(size=(2, n_classes)))
    root = torch.from_numpy(rng.normal(size=(2, n_classes, n_classes)))
    root *= 2 / n_classes**0.5
    value, first, second = expect_logsumexp(mean, root @ root.mT)
    draws = torch.from_numpy(rng.normal(size=(2, n_classes, 20_000)))
    f = mean[:, :, None] + root @ draws
    found = torch.logsumexp(f, 1)
    error = found.std(1) / found.shape[1] ** 0.5
    assert bool(((value - found.mean(1)).abs() < 4 * error + 0.05).all())
    assert float((first - torch.softmax(f, 1).mean(2)).abs().max()) < 0.02
    assert float(torch.linalg.eigvalsh(second).min()) > -1e-9


def test_a_fit_with_thirty_five_classes():
    """Fits where the integrals of all rows take points."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(72, 2)), np.arange(72) % 35
    model = BayesianLogisticRegression(prior=Normal(10.0)).fit(X, y)
    X = X - X.mean(0)
    assert model.converged_
    draw = model.posterior_.draw(1000, make_generator(0))
    theta, log_q = draw.theta, draw.log_q
    coef, intercept = theta[:, :70].reshape(-1, 35, 2), theta[:, 70:]
    f = torch.from_numpy(X) @ coef.mT + intercept[:, None]
    fit = -torch.nn.functional.cross_entropy(
        f.flatten(0, 1), torch.from_numpy(y).repeat(1000), reduction="none"
    )
    log_prior = torch.distributions.Normal(0, 10.0).log_prob(theta).sum(1)
    log_weights = fit.reshape(1000, -1).sum(1) + log_prior - log_q
    error = float(log_weights.std()) / 1000**0.5
    # 0.02 nat a row: f is wider than 2 in many of them.
    assert abs(model.lower_bound_ - float(log_weights.mean())) < 4 * error + 72 * 0.02
