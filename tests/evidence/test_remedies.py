"""Every reason against a result comes with its cause and with what helps."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from skvi.evidence._bounds import bound_evidence
from skvi.evidence._importance import why_too_long
from skvi.evidence._summarize import remedy
from skvi.likelihoods import BernoulliLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import LogLoss
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor, MLPPredictor
from skvi.priors import ARD, Horseshoe, Normal, StudentT
from skvi.solvers._moment_matching import fit_proposal_normal
from skvi.targets import SupervisedTarget
from skvi.utils._interrupts import Clock


def target_with(prior, predictor=None, n=40, d=8):
    generator = torch.Generator().manual_seed(0)
    model = predictor or LinearPredictor(d)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = (torch.rand(n, generator=generator) < 0.5).double()
    built = prior.build(model.layout)
    return SupervisedTarget(model, BernoulliLikelihood(), LogLoss(), built, X, y)


@pytest.mark.parametrize(
    ("prior", "names"),
    [
        (Horseshoe(), "this prior is not log-concave"),
        (ARD(), "this prior is not log-concave"),
        (StudentT(), "this prior is not log-concave"),
        (Normal(), "standardize the features"),
    ],
)
def test_priors_are_named(prior, names):
    """Wrong variant: one remedy for all of them."""
    found = remedy(target_with(prior), False, 0.01)
    assert names in found
    assert ("prior='normal'" in found) == (names[:4] == "this")


def test_networks_are_told_of_their_units():
    network = target_with(Normal(), MLPPredictor(8, hidden_layer_sizes=(3,)))
    assert "hidden units" in remedy(network, False, 0.01)


def test_few_draws_are_their_own_cause():
    assert "n_draws" in remedy(target_with(Normal()), False, math.inf)


@pytest.mark.parametrize(
    ("method", "module"),
    [("importance", "_summarize"), ("tempering", "_tempered_result")],
)
def test_seconds_that_ended_a_run_are_named(method, module, monkeypatch):
    """As the cause, before any other; wrong variant: the model is blamed.

    Chains whose warm-up is cut short after as little as this have not mixed. Seconds
    that end before there are chains are named, too: here they end no earlier phase.
    """
    monkeypatch.setattr(f"skvi.evidence.{module}.MAX_RHAT", 0.9)
    target = target_with(Normal(30.0))
    posterior = FullRankNormal().build(target.layout)
    posterior = posterior.near(fit_proposal_normal(target))
    options = {"method": method, "precision": 0.1}
    generator = torch.Generator().manual_seed(0)
    early = bound_evidence(target, posterior, generator, max_seconds=1e-3, **options)
    assert "max_seconds ended before there were any bounds" in early.reason
    monkeypatch.setattr(Clock, "enforced", lambda self: nullcontext())
    for seconds in (1e-3, None):
        generator = torch.Generator().manual_seed(0)
        bounds = bound_evidence(
            target, posterior, generator, max_seconds=seconds, **options
        )
        assert not bounds.reliable
        assert "R-hat" in bounds.reason
        assert ("max_seconds ended the run" in bounds.reason) == (seconds is not None)


def test_a_reliable_interval_that_is_wide_says_how_wide(monkeypatch):
    target = target_with(Normal(1.0))
    posterior = FullRankNormal().build(target.layout)
    posterior = posterior.near(fit_proposal_normal(target))
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr("skvi.evidence._tempered.MAX_SWEEPS", 300)
    bounds = bound_evidence(
        target, posterior, generator, None, 1e-4, method="tempering"
    )
    low, high = bounds.interval()
    assert f"holds, but it is {high - low:.2g} nats wide" in bounds.reason
    assert bounds.reason.endswith("a larger n_draws narrows it")


def test_what_certainly_takes_minutes_is_said_before_a_proposal_is_fitted(monkeypatch):
    """From a poor fit, under a prior for which proposals are fitted from two starts.

    Wrong variants: no rough fit, so that a proposal is fitted; nearly normal posteriors
    are refused, too.
    """

    class Fitted(Exception):
        pass

    def fit(*args):
        raise Fitted

    monkeypatch.setattr("skvi.evidence._bounds.fit_proposal_normal", fit)
    far, near = target_with(StudentT(), n=300, d=500), target_with(StudentT(), n=5000)
    monkeypatch.setattr("skvi.evidence._importance.MAX_WORK", 1e4)
    options = torch.Generator().manual_seed(0), None, None, "log evidence", None
    posterior = MeanFieldNormal().build(far.layout)
    bounds = bound_evidence(far, posterior, *options)
    assert "and under this prior" in bounds.reason
    with pytest.raises(Fitted):
        bound_evidence(near, MeanFieldNormal().build(near.layout), *options)


def test_what_takes_minutes_is_said_at_once():
    """Far from normal and large: the reason, unless somebody says how long to try.

    Wrong variants: chains are begun; nearly normal posteriors are refused, too.
    """
    near, far = (target_with(Normal(scale), n=1000, d=1300) for scale in (1e-3, 10.0))
    generator = torch.Generator().manual_seed(0)
    assert why_too_long(near, near.prior.as_normal(), generator) == ""
    assert "minutes" in why_too_long(far, far.prior.as_normal(), generator)
    rng = np.random.default_rng(0)
    X = sp.random(1000, 2000, density=0.01, random_state=0, format="csr")
    y = (rng.uniform(size=1000) < 0.5).astype(int)
    model = BayesianLogisticRegression(prior="normal", posterior="mean_field")
    bounds = model.fit(X, y).evidence_bounds(X, y, random_state=0)
    assert (bounds.method, bounds.reliable) == ("none", False)
    for part in ("2,001 coefficients", "a normal prior", "fewer features", "max_secon"):
        assert part in bounds.reason
