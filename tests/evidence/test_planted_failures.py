"""Evidence bounds that must not hold say so; and what nobody can detect is known.

Targets of several modes have log Z = 0 by construction.
"""

import math

import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from skvi.base import Layout, NormalForm
from skvi.evidence import _modes
from skvi.evidence._bounds import bound_evidence
from skvi.linear_model import BayesianLogisticRegression
from skvi.posteriors import MeanFieldNormal
from skvi.priors import Normal
from skvi.targets import Target

pytestmark = pytest.mark.usefixtures("one_thread")


class Modes(Target):
    """Normals of equal mass in two dimensions, under a wide normal prior."""

    def __init__(self, means, scales, prior_scale=5.0):
        self.layout = Layout({"coef": (1, 2)})
        self.prior = Normal(prior_scale).build(self.layout)
        pairs = zip(means, scales, strict=True)
        self.modes = [
            NormalForm(torch.tensor(m).double(), torch.full((2,), s).double())
            for m, s in pairs
        ]

    def log_joint(self, theta, rows=None):
        logs = torch.stack([mode.log_prob(theta) for mode in self.modes])
        return torch.logsumexp(logs, 0) - math.log(len(self.modes))


def bounds_from_the_first(target, seed, method):
    posterior = MeanFieldNormal().build(target.layout)
    posterior = posterior.near(target.modes[0])
    generator = torch.Generator().manual_seed(seed)
    return bound_evidence(target, posterior, generator, method=method, precision=0.2)


@pytest.mark.parametrize(
    ("distance", "method"),
    [pytest.param(6.0, "importance", marks=pytest.mark.slow), (14.0, "auto")],
)
def test_two_modes_of_which_q_has_one(distance, method):
    """Chains from the prior find the other: reported, or right.

    Wrong variants: all chains start at q, which certifies -0.693; R-hat is not asked.
    """
    half = distance / 2
    target = Modes([(-half, 0.0), (half, 0.0)], [1.0, 1.0])
    bounds = bounds_from_the_first(target, 0, method)
    low, high = bounds.interval()
    if bounds.reliable:
        assert low < 0 < high
        assert high - low < 0.6
    else:
        causes = ("disagree", "heavy-tailed", "came only", "differ by")
        assert any(cause in bounds.reason for cause in causes)


def test_a_mode_that_nothing_reaches():
    """It cannot be detected, and the bounds say from where the chains start."""
    target = Modes([(0.0, 0.0), (60.0, 60.0)], [1.0, 0.01])
    bounds = bounds_from_the_first(target, 0, "auto")
    assert bounds.reliable
    assert bounds.estimate == pytest.approx(-math.log(2), abs=0.01)
    assert bounds.interval()[1] < -0.5
    assert "valid if the chains have mixed: they start at the fit" in bounds.reason


@pytest.mark.slow
def test_plain_importance_sampling_from_a_factorized_q(monkeypatch):
    """Breast cancer, 31 coefficients: four of 20,000 draws are effective.

    Wrong variant: Pareto k is not asked.
    """
    X, y = load_breast_cancer(return_X_y=True)
    data = scale(X), y
    priors = {"prior": "normal", "intercept_prior": "normal"}
    model = BayesianLogisticRegression(posterior="mean_field", **priors).fit(*data)
    adapt = _modes.adapt_proposal

    def plain(target, normal, generator, n_draws, deadline):
        q = model.posterior_.as_normal()
        proposal, _ = adapt(target, q, generator)
        proposal = type(proposal)(q, 200)  # nearly q
        draws = _modes.draw_weighted(target, proposal, 4096, generator)
        return proposal, draws

    monkeypatch.setattr(_modes, "adapt_proposal", plain)
    monkeypatch.setattr(_modes, "MAX_RESCUES", 0)
    bounds = model.evidence_bounds(*data, method="importance", random_state=0)
    assert not bounds.reliable
    assert "lower bound are too heavy-tailed (Pareto k" in bounds.reason
    rescued = model.evidence_bounds(*data, random_state=0)
    assert rescued.method == "tempering"
    assert rescued.reliable
    low, high = rescued.interval()
    assert low < -55.2234 < high
