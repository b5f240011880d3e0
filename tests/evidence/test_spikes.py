"""Priors with spikes and heavy tails: right, or not called reliable."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from skvi.base import Layout
from skvi.evidence._estimates import Estimate
from skvi.evidence._tempered import _of_few_systems
from skvi.linear_model import BayesianLogisticRegression
from skvi.priors import ARD, Horseshoe, StudentT
from skvi.priors._blocks import build_prior


@pytest.mark.parametrize(
    "prior",
    [Horseshoe(), StudentT(1.0, 0.02), pytest.param(ARD(), marks=pytest.mark.slow)],
    ids=repr,
)
def test_intervals_hold_the_quadrature(prior):
    """One coefficient, which the prior's peak may hide.

    Wrong variant: the weights of offers without that of the state.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=40)
    y = (rng.uniform(size=40) < 1 / (1 + np.exp(-0.8 * x))).astype(int)
    built = build_prior(prior, Layout({"coef": (1, 1)}))

    def density(theta):
        log_prior = built.log_prob(torch.tensor([[theta]], dtype=torch.float64))
        likelihood = -np.logaddexp(0, -theta * (2 * y[:, None] - 1)[:, 0] * x).sum()
        return math.exp(float(log_prior) + likelihood + 20)

    points = [0.0, *10.0 ** np.arange(-12, -2), 0.01, 0.03, 0.1, 0.3, 1, 3, 8]
    points = [*(-p for p in points[:0:-1]), *points]
    truth = math.log(sum(quad(density, *ends)[0] for ends in pairwise(points))) - 20
    model = BayesianLogisticRegression(prior=prior, fit_intercept=False)
    bounds = model.fit(x[:, None], y).evidence_bounds(x[:, None], y, random_state=0)
    low, high = bounds.interval()
    assert not bounds.reliable or low < truth < high
    assert bounds.reliable or isinstance(prior, ARD)


def test_sides_of_few_systems():
    """The larger error for both, and two of it to the estimate, which is 0.

    Wrong variants: errors of their own; blocks that are too short bring the bounds no
    further apart.
    """
    found = _of_few_systems(Estimate(0.01, 0.003), Estimate(0.5, 0.02), 0.0)
    assert found == ((-0.04, 0.02), (0.5, 0.02))
