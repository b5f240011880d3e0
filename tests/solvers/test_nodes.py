"""One unknown scale of a prior, by nodes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from skvi.divergences import KLDivergence
from skvi.likelihoods import BernoulliLikelihood, PoissonLikelihood
from skvi.losses import LogLoss
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal
from skvi.predictors import LinearPredictor
from skvi.priors import HalfCauchy, Normal
from skvi.solvers import Problem, SolverOptions
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.targets import SupervisedTarget
from skvi.targets._supervised import with_prior


def posed(likelihood, weight=1.0, n=30, d=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    f = X @ np.linspace(-1, 1, d)
    if isinstance(likelihood, PoissonLikelihood):
        y = rng.poisson(np.exp(f)).astype(float)
    else:
        y = (f > rng.logistic(size=n)).astype(float)
    model = LinearPredictor(d, fit_intercept=False)
    prior = Normal(HalfCauchy(0.5)).build(model.layout)
    data = torch.from_numpy(X), torch.from_numpy(y)
    target = SupervisedTarget(model, likelihood, LogLoss(), prior, *data)
    posterior = FullRankNormal().build(model.layout)
    return Problem(target, ELBO(), KLDivergence(weight), posterior, None)


@pytest.mark.parametrize("weight", [1.0, 0.4])
@pytest.mark.parametrize("likelihood", [BernoulliLikelihood(), PoissonLikelihood()])
def test_the_minimum_is_that_over_all_scales(likelihood, weight):
    """``-w log sum_k p(z_k) exp(-F_k / w) h``, on a fine grid of scales.

    Wrong variants: weights of exp(-F_k) under a weight of the divergence; no step.
    """
    problem = posed(likelihood, weight)
    found = NaturalGradient().solve(problem, SolverOptions())
    grid, step = np.linspace(-7, 6, 105, retstep=True)
    values = []
    for z in grid:
        prior = problem.target.prior.given_scale(math.exp(z))
        known = replace(problem, target=with_prior(problem.target, prior))
        loss = NaturalGradient().solve(known, SolverOptions()).value
        values.append(-loss / weight - math.log(math.pi * math.cosh(z)))
    exact = -weight * (np.logaddexp.reduce(values) + math.log(step))
    # Of the mass, what lies beyond five nats of the top is left out.
    assert exact - 1e-3 < found.value < exact + 0.02 * weight
    nodes = found.posterior
    weights = np.exp(values - np.logaddexp.reduce(values))
    mean = float(nodes.log_weights.exp() @ nodes.log_scales)
    assert mean == pytest.approx(weights @ grid, abs=0.03)
    slopes = np.interp(nodes.log_scales, grid, values) - np.max(values)
    assert slopes[0] < -4.5
    assert slopes[-1] < -4.5


def test_from_the_end_of_another_fit():
    """A warm start looks at no other place, and finds the same."""
    problem = posed(BernoulliLikelihood())
    solver = NaturalGradient()
    first = solver.solve(problem, SolverOptions())
    again = solver.solve(problem.at(first.state), SolverOptions(warm_start=True))
    assert again.value == pytest.approx(first.value, abs=2e-3)
    assert again.n_iter <= 2
