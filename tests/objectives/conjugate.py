"""A conjugate problem with two parameters, of which the tests of objectives share all.

Posterior and evidence are written with torch's distributions.
"""

import math

import torch
from torch.distributions import MultivariateNormal

from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.likelihoods import GaussianLikelihood
from skvi.losses import LogLoss
from skvi.predictors import LinearPredictor
from skvi.priors import Normal
from skvi.priors._blocks import build_prior
from skvi.targets import SupervisedTarget
from tests.densities import randn

N, SIZE, NOISE, PRIOR_SCALE = 8, 2, 0.7, 1.3


def make_target(predictor=None, prior=None, noise=NOISE):
    predictor, X = predictor or LinearPredictor(1), 0.8 + randn(N, 1)
    built = build_prior(prior or Normal(PRIOR_SCALE), predictor.layout)
    y, likelihood = X[:, 0] + randn(N, seed=1), GaussianLikelihood(noise)
    return SupervisedTarget(predictor, likelihood, LogLoss(), built, X, y)


EYE = torch.eye(N, dtype=torch.float64)
TARGET = make_target()
DESIGN = torch.cat([TARGET.X, torch.ones_like(TARGET.X)], 1)
PRECISION = DESIGN.T @ DESIGN / NOISE**2 + EYE[:SIZE, :SIZE] / PRIOR_SCALE**2
EXACT = MultivariateNormal(
    torch.linalg.solve(PRECISION, DESIGN.T @ TARGET.y / NOISE**2),
    precision_matrix=PRECISION,
)


def log_evidence(log_noise):
    covariance = torch.exp(2 * log_noise) * EYE + PRIOR_SCALE**2 * DESIGN @ DESIGN.T
    return MultivariateNormal(0 * TARGET.y, covariance).log_prob(TARGET.y)


LOG_Z = log_evidence(torch.tensor(math.log(NOISE), dtype=torch.float64))


def make_posterior(family, shift=0.5, stretch=1.3, target=TARGET):
    """A q whose mean is off by `shift` standard deviations, or the exact posterior.

    For other predictors it is the family's own start.
    """
    posterior = family.build(target.layout)
    if target.layout.size == SIZE:
        mean = EXACT.mean + shift * EXACT.stddev
        posterior = posterior.near(NormalForm(mean, stretch * EXACT.scale_tril))
    posterior.params.requires_grad_()
    return posterior


def as_torch(normal):
    scale = torch.diag(normal.scale) if normal.is_diagonal else normal.scale
    return MultivariateNormal(normal.mean, scale_tril=scale)


def run(
    objective, posterior, n_draws=10, seed=0, target=TARGET, divergence=None, rows=None
):
    """Value and gradient that the objective trains with."""
    generator = torch.Generator().manual_seed(seed)
    surrogate, value = objective.surrogate(
        target, posterior, divergence or KLDivergence(), rows, n_draws, generator
    )
    assert not value.requires_grad
    return value, torch.autograd.grad(surrogate, posterior.params)[0]


def replicate(n_replicates, *args, **kwargs):
    """Values and gradients of run with as many seeds."""
    pairs = [run(*args, seed=s, **kwargs) for s in range(n_replicates)]
    return [torch.stack(parts) for parts in zip(*pairs, strict=True)]
