"""Losses averaged over an unknown parameter of the likelihood, many values at once."""

import pytest
import torch

from skvi.likelihoods import (
    GaussianLikelihood,
    NegativeBinomialLikelihood,
    StudentTLikelihood,
)
from skvi.losses import LogLoss
from skvi.predictors import LinearPredictor
from skvi.priors import GammaHyperprior, Normal
from skvi.solvers._gamma_steps import AveragedLoss, _losses_at
from skvi.targets import HierarchicalTarget

# Seven values at once, and two of the 30 are left for the last call.
N_ROWS, N_VALUES = 70, 30


class Counted(StudentTLikelihood):
    n_calls = 0

    def expected_log_loss(self, mean, std_or_cov, y, refine=1):
        Counted.n_calls += 1
        return super().expected_log_loss(mean, std_or_cov, y, refine)


class OneValue(StudentTLikelihood):
    """A likelihood that takes one value for all rows."""

    binds_rows = False

    def expected_log_loss(self, mean, std_or_cov, y, refine=1):
        assert self.scale.ndim == 0
        return super().expected_log_loss(mean, std_or_cov, y, refine)


def make_target(likelihood, weight=None):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(N_ROWS, 2, generator=generator, dtype=torch.float64)
    y = torch.poisson(X.exp()[:, 0], generator)
    model = LinearPredictor(2)
    prior = Normal().build(model.layout)
    options = {"noise_hyperprior": GammaHyperprior(2.0, 2.0), "sample_weight": weight}
    return HierarchicalTarget(model, likelihood, LogLoss(), prior, X, y, **options)


@pytest.mark.parametrize(
    "likelihood",
    [
        GaussianLikelihood("learn"),
        StudentTLikelihood(3.0, "learn"),
        NegativeBinomialLikelihood("hyperprior"),
        OneValue(3.0, "learn"),
    ],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_values_of_the_parameter_at_once(likelihood, make_normal):
    """As one after the other. Wrong variant: the value of another row."""
    weight = torch.linspace(0.5, 2.0, N_ROWS, dtype=torch.float64)
    target, normal = make_target(likelihood, weight), make_normal(3, "full")
    hyper = torch.linspace(-2.0, 1.0, N_VALUES, dtype=torch.float64)
    weights = torch.softmax(hyper, 0)
    mean, variance = target.predictor.moments(target.X, normal)
    rows = mean, variance.sqrt(), target.y
    bound = [likelihood.bind(number.reshape(1)) for number in hyper]
    each = [LogLoss().expected(one, *rows) for one in bound]
    found = AveragedLoss(target, hyper, weights).expected(likelihood, *rows)
    for values, average in zip(zip(*each, strict=True), found, strict=True):
        expected = (weights[:, None] * torch.stack(values)).sum(0)
        torch.testing.assert_close(average, expected, rtol=1e-9, atol=1e-10)
    losses = torch.stack([weight @ value for value, _, _ in each])
    torch.testing.assert_close(_losses_at(target, hyper, normal), losses)


def test_few_calls():
    target = make_target(Counted(3.0, "learn"))
    hyper = torch.zeros(N_VALUES, dtype=torch.float64)
    rows = torch.zeros(N_ROWS).double(), torch.ones(N_ROWS).double(), target.y
    Counted.n_calls = 0
    AveragedLoss(target, hyper, hyper + 1).expected(target.likelihood, *rows)
    assert Counted.n_calls == 5
