"""What a prior's spike hides: chains that start beyond it."""

import torch

from skvi.base import NormalForm
from skvi.likelihoods import GaussianLikelihood
from skvi.losses import LogLoss
from skvi.predictors import LinearPredictor
from skvi.priors import StudentT
from skvi.solvers._natural_gradient import dispersed_starts, likelihood_normal
from skvi.targets import SupervisedTarget


def make_target(likelihood, n=40, d=3):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, d, generator=generator).double()
    f = X @ torch.tensor([1.0, -0.7, 0.4]).double()
    noise = torch.randn(n, generator=generator).double()
    y = f + noise
    model = LinearPredictor(d, fit_intercept=False)
    prior = StudentT(scale=0.01).build(model.layout)
    return SupervisedTarget(model, likelihood, LogLoss(), prior, X, y)


def in_deviations(theta, normal):
    """Largest distance from a normal's mean, in its deviations."""
    return float(((theta - normal.mean) / normal.variance.sqrt()).abs().max())


def test_every_third_chain_starts_where_the_likelihood_is_large():
    """From a fit in the spike. Wrong variant: none does."""
    target, generator = make_target(GaussianLikelihood(1.0)), torch.Generator()
    spike = NormalForm(torch.zeros(3).double(), torch.full((3,), 0.01).double())
    starts = dispersed_starts(target, spike, generator.manual_seed(0), 60)
    likely = likelihood_normal(target)
    assert in_deviations(starts[::3], likely) < 5
    assert in_deviations(starts[1:30:3], likely) > 5
