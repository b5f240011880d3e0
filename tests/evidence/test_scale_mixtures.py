"""Priors with spikes and heavy tails: parameters beside their scales."""

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import scale

from skvi.base import Layout, NormalForm
from skvi.evidence._estimates import Estimate
from skvi.evidence._forecast import why_hopeless
from skvi.evidence._tempered_result import _of_few_systems
from skvi.likelihoods import BernoulliLikelihood
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.losses import LogLoss
from skvi.predictors import LinearPredictor
from skvi.priors import ARD, Horseshoe, Normal, StudentT, build_prior
from skvi.targets import SupervisedTarget, Target
from skvi.targets._scale_mixture import ScaleMixtureTarget

PRIORS = (Horseshoe(0.7), ARD(), ARD(0.5, 0.2), StudentT(4.0, 0.3))


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
@pytest.mark.parametrize("theta", [0.05, 4.0])
def test_scales_give_the_prior_back(prior, theta):
    """The normal density of theta, integrated over its scale, is the prior's.

    Wrong variant: the density of a precision without its Jacobian.
    """
    built = build_prior(prior, Layout({"coef": (1, 1)}))
    x = torch.linspace(-60, 60, 40001, dtype=torch.float64)[:, None]
    terms = built.scale_mixture().terms(x)
    z = theta * torch.exp(-terms.log_scale)
    log_normal = -0.5 * z.square() - terms.log_scale - 0.5 * math.log(2 * math.pi)
    total = torch.logsumexp(terms.log_prob + log_normal, 0) + math.log(120 / 40000)
    expected = built.log_prob(torch.tensor([[theta]], dtype=torch.float64))
    assert float(total) == pytest.approx(float(expected), abs=1e-4)


def lifted_logistic(prior, d=3):
    generator = torch.Generator().manual_seed(0)
    model = LinearPredictor(d)
    built = build_prior({"coef": prior, "intercept": Normal(2.0)}, model.layout)
    X = torch.randn(20, d, generator=generator, dtype=torch.float64)
    y = (X[:, 0] > 0.3).double()
    target = SupervisedTarget(model, BernoulliLikelihood(), LogLoss(), built, X, y)
    one = torch.ones(d + 1).double()
    near = NormalForm(one / 3, one / 2)
    lifted = ScaleMixtureTarget.of(target, near, None)
    return lifted, lifted.start().sample(6, generator)


@pytest.mark.parametrize("prior", PRIORS[:2], ids=repr)
def test_gradients_beside_scales(prior):
    """By hand as by automatic differentiation.

    Wrong variant: the slope of the ratio without its second term.
    """
    lifted, draws = lifted_logistic(prior)
    value, gradient = lifted.log_joint_and_gradient(draws)
    expected = Target.log_joint_and_gradient(lifted, draws)
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(gradient, expected[1], rtol=1e-9, atol=1e-9)


def test_the_center_changes_no_evidence():
    """What is known of the likelihood only moves coordinates: the integral stays.

    Wrong variant: the width of a coefficient given its scale without its Jacobian.
    """
    prior = build_prior(Horseshoe(), Layout({"coef": (1, 1)}))
    model = LinearPredictor(1, fit_intercept=False)
    X, y = torch.ones(3, 1).double(), torch.tensor([1.0, 1.0, 0.0]).double()
    target = SupervisedTarget(model, BernoulliLikelihood(), LogLoss(), prior, X, y)
    found = []
    for center, deviation in ((0.0, 100.0), (0.7, 0.4)):
        mean = torch.full((1,), center, dtype=torch.float64)
        normal = NormalForm(mean, torch.full_like(mean, deviation))
        lifted = ScaleMixtureTarget.of(target, normal, None)
        e = torch.linspace(-9, 9, 301, dtype=torch.float64)
        x = torch.linspace(-22, 22, 601, dtype=torch.float64)
        grid = torch.cartesian_prod(e, x)
        step = (e[1] - e[0]) * (x[1] - x[0])
        log_joint = lifted.log_joint(grid)
        found.append(float(torch.logsumexp(log_joint, 0) + step.log()))
    assert found[0] == pytest.approx(found[1], abs=2e-3)


@pytest.mark.parametrize(
    "prior",
    [Horseshoe(), pytest.param(ARD(0.3, 0.1), marks=pytest.mark.slow)],
    ids=repr,
)
def test_intervals_hold_the_quadrature(prior, monkeypatch):
    """One coefficient, by the chains that move its scale.

    Wrong variant: chains of the lifted target without the density of the scales.
    """
    monkeypatch.setattr("skvi.priors._scale_mixture.MANY", 0)
    monkeypatch.setattr("skvi.evidence._forecast.MIN_SWEEPS", 200)
    rng = np.random.default_rng(1)
    x = rng.normal(size=40)
    y = (rng.uniform(size=40) < 1 / (1 + np.exp(-0.8 * x))).astype(int)
    built = build_prior(prior, Layout({"coef": (1, 1)}))

    def density(theta):
        log_prior = built.log_prob(torch.tensor([[theta]], dtype=torch.float64))
        likelihood = -np.logaddexp(0, -theta * (2 * y[:, None] - 1)[:, 0] * x).sum()
        return math.exp(float(log_prior) + likelihood + 20)

    points = [-3, -1, -0.1, -0.01, -1e-4, 0, 1e-4, 0.01, 0.1, 1, 3, 8]
    truth = math.log(sum(quad(density, *ends)[0] for ends in pairwise(points))) - 20
    model = BayesianLogisticRegression(prior=prior, fit_intercept=False)
    bounds = model.fit(x[:, None], y).evidence_bounds(x[:, None], y, random_state=0)
    low, high = bounds.interval()
    assert bounds.method == "tempering"
    assert low < truth < high
    assert high - low < 0.7  # 0.2 to 0.5 with other seeds


def test_sides_of_few_systems():
    """The larger error for both, and two of it to the estimate, which is 0.

    Wrong variants: errors of their own; blocks that are too short bring the bounds no
    further apart.
    """
    found = _of_few_systems(Estimate(0.01, 0.003), Estimate(0.5, 0.02), 0.0)
    assert found == ((-0.04, 0.02), (0.5, 0.02))


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["horseshoe", "ard"])
def test_diabetes_is_reliable(prior):
    """Wrong variant: chains of the coefficients alone, which spikes hold."""
    X, y = load_diabetes(return_X_y=True)
    X, y = scale(X), scale(y)
    model = BayesianLinearRegression(prior=prior).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        bounds = model.evidence_bounds(X, y, random_state=0)
    low, high = bounds.interval()
    assert bounds.reliable, bounds.reason
    assert high - low < 0.7  # 0.2 to 0.5 with other seeds


def test_many_vague_scales_are_refused_at_once():
    """Unless somebody says how long to try. Wrong variant: every scale is vague."""
    for prior, limited, names in (
        (ARD(), False, "the ARD prior"),
        (ARD(), True, ""),
        (ARD(1.0, 1.0), False, ""),
        (Horseshoe(), False, ""),
    ):
        lifted, _ = lifted_logistic(prior, 20)
        found = why_hopeless(lifted.mixture, 20, limited)
        assert (names in found) if names else not found
    assert "ARD(shape=1.0" in why_hopeless(lifted_logistic(ARD(), 20)[0].mixture, 20)
    assert not why_hopeless(lifted_logistic(ARD(), 10)[0].mixture, 20)


def test_too_many_scales_are_refused_at_once(monkeypatch):
    """The reason names the prior and what to do; nothing is printed as a bound.

    Wrong variant: a proposal is fitted first.
    """
    monkeypatch.setattr("skvi.evidence._bounds.fit_proposal_normal", None)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 150)), np.arange(30) % 2
    model = BayesianLogisticRegression(prior="horseshoe", posterior="mean_field")
    bounds = model.fit(X, y).evidence_bounds(X, y, random_state=0)
    assert not bounds.reliable
    assert bounds.method == "none"
    assert "under the horseshoe prior" in bounds.reason
    assert "prior='normal'" in bounds.reason
    assert math.isnan(bounds.stated()[1])
    assert "unknown" in str(bounds)
