"""What a normal can still gain decides whether a fit to a density has converged."""

import math

import pytest
import torch

from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence
from skvi.objectives import ELBO
from skvi.objectives._steps import gain_of_normal
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.solvers import Problem, SolverOptions, Stochastic
from skvi.targets import Target


class _Normal(Target):
    """A normal density with integral 1."""

    prior = None

    def __init__(self, mean, covariance):
        self.layout = Layout({"a": (len(mean),)})
        self.normal = NormalForm(mean, torch.linalg.cholesky(covariance))

    def log_joint(self, theta, rows=None):
        return self.normal.log_prob(theta)


def make_target(n_params, smallest):
    """Directions whose standard deviations are between one and `smallest`."""
    generator = torch.Generator().manual_seed(n_params)
    normal = torch.randn(n_params, n_params, generator=generator, dtype=torch.float64)
    axes = torch.linalg.qr(normal)[0]
    variances = torch.logspace(
        0, 2 * math.log10(smallest), n_params, dtype=torch.float64
    )
    return _Normal(normal[0], axes @ torch.diag(variances) @ axes.T)


def gain(target, posterior):
    return gain_of_normal(target, posterior, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("n_params", [2, 7, 20])
def test_the_gain_is_the_divergence_from_a_normal(n_params):
    """Wrong variants: the mean alone; half of it for the covariance; draws that do not
    include log q, with which the optimum gains."""
    target = make_target(n_params, 0.1)
    built = FullRankNormal().build(target.layout)
    best = target.normal
    assert abs(gain(target, built.near(best))) < 1e-9
    for shift, factor in ((0.02, 1.0), (0.0, 1.03)):
        mean = best.mean + shift * best.scale.sum(1)
        q = built.near(NormalForm(mean, factor * best.scale))
        kl = 0.5 * n_params * (shift**2 + factor**2 - 1 - 2 * math.log(factor))
        assert gain(target, q) == pytest.approx(kl, rel=0.1)


def test_a_factorized_normal_cannot_gain_a_correlation():
    """Wrong variant: what is off the diagonal counts."""
    target = make_target(3, 0.1)
    precision = torch.linalg.inv(target.normal.covariance())
    q = NormalForm(target.normal.mean, precision.diagonal().rsqrt())
    posterior = MeanFieldNormal().build(target.layout)
    assert abs(gain(target, posterior.near(q))) < 1e-9
    wide = NormalForm(q.mean, 1.1 * q.scale)
    assert gain(target, posterior.near(wide)) > 0.01


class _Quartic(Target):
    """A radial density whose best normal of each family is the standard one."""

    prior = None

    def __init__(self, n_params, fourth):
        self.layout = Layout({"a": (n_params,)})
        self.factors = 1 - 4 * fourth * (n_params + 2), fourth

    def log_joint(self, theta, rows=None):
        square = theta.square().sum(-1)
        return -0.5 * self.factors[0] * square - self.factors[1] * square.square()


@pytest.mark.parametrize("family", [MeanFieldNormal(), FullRankNormal()])
@pytest.mark.parametrize("n_params", [2, 8])
def test_noise_is_no_gain(n_params, family):
    """At the optimum of a density that is not normal: residuals grow with eps.

    Wrong variant: residuals as large everywhere, which leave .08 and .015 nats.
    """
    target = _Quartic(n_params, 0.25 / n_params)
    posterior = family.build(target.layout)
    posterior = posterior.at(torch.zeros_like(posterior.params))
    found = [
        gain_of_normal(target, posterior, torch.Generator().manual_seed(seed))
        for seed in range(200)
    ]
    values = torch.tensor(found, dtype=torch.float64)
    assert abs(float(values.mean())) < (0.05 if n_params == 2 else 0.005)


@pytest.mark.parametrize("smallest", [0.3, 0.01])
def test_what_is_called_converged_is(smallest):
    """Wrong variant: a level objective is enough, two nats from the optimum."""
    target = make_target(2, smallest)
    posterior = FullRankNormal().build(target.layout)
    generator = torch.Generator().manual_seed(0)
    problem = Problem(target, ELBO(), KLDivergence(), posterior, generator)
    options = SolverOptions(max_iter=40, early_stopping=True)
    found = Stochastic().solve(problem, options)
    left = gain(target, found.posterior)
    assert found.converged == (left < 0.02)
    assert found.converged == (smallest == 0.3)
    assert ("predicts a gain" in found.message) == (smallest == 0.01)
