"""The sandwich where the truth is known, and what it says where it must not hold."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from skvi._sampling._chains import Chains, HamiltonianChains
from skvi.evidence import _importance, _modes
from skvi.evidence._bounds import bound_evidence
from skvi.evidence._estimates import (
    block_size,
    bridge_estimate,
    finite_sample_bounds,
    forward_bound,
    reverse_bound,
)
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import BetaLoss, LogLoss
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor
from skvi.priors import Laplace, Normal
from skvi.solvers._moment_matching import fit_proposal_normal
from skvi.targets import SupervisedTarget
from tests.reference import Problem, conjugate_evidence, grid_evidence

ROUNDING = 1e-9


pytestmark = pytest.mark.usefixtures("one_thread")


def conjugate(n=40, d=3, prior_scale=1.5, noise=0.6):
    """A linear regression with its posterior, mean-field, and its log p(D)."""
    rng = np.random.default_rng(0)
    A = np.column_stack([rng.standard_normal((n, d)), np.ones(n)])
    y = A @ rng.standard_normal(d + 1) + noise * rng.standard_normal(n)
    predictor = LinearPredictor(d)
    prior = Normal(prior_scale).build(predictor.layout)
    X = torch.from_numpy(A[:, :d].copy())
    target = SupervisedTarget(
        predictor, GaussianLikelihood(noise), LogLoss(), prior, X, torch.from_numpy(y)
    )
    posterior = MeanFieldNormal().build(predictor.layout)
    posterior = posterior.near(fit_proposal_normal(target))
    return target, posterior, conjugate_evidence(A, y, prior_scale, noise)


def bounds_of(target, posterior, seed, **options):
    return bound_evidence(
        target, posterior, torch.Generator().manual_seed(seed), **options
    )


@pytest.mark.parametrize(
    ("shape", "seed"), [((40, 3), 0), ((40, 3), 1), ((10, 15), 0), ((10, 15), 1)]
)
def test_conjugate_regression(shape, seed):
    """lower <= log p(D) <= upper within two errors, both tight; also for d > n.

    Wrong variants: likelihood without log(2 pi) / 2; the sign of the reverse weights.
    """
    target, posterior, exact = conjugate(*shape)
    bounds = bounds_of(target, posterior, seed)
    assert bounds.reliable, bounds.reason
    low, high = bounds.interval()
    assert low - 1e-9 <= exact <= high + 1e-9  # equal up to rounding where n < d
    assert exact - bounds.lower < 0.05
    assert bounds.upper - exact < 0.05
    assert bounds.estimate == pytest.approx(
        exact, abs=5 * bounds.table["bridge"].standard_error
    )
    table = bounds.table
    assert table["lower, 95 %"].value < exact < table["upper, 95 %"].value
    # Marginal deviations under a factorized q: neither bound is tight, both hold.
    elbo, eubo = table["ELBO of q"], table["EUBO of q"]
    assert elbo.value < exact - 0.01
    assert eubo.value > exact + 0.01


@pytest.mark.parametrize("n_draws", [64, pytest.param(1024, marks=pytest.mark.slow)])
def test_direction_at_any_number_of_draws(n_draws, global_random_seed):
    """In expectation lower is below and upper above, however few the draws.

    Wrong variants: the upper side as log mean exp of the reverse weights.
    """
    target, posterior, exact = conjugate()
    found = [
        bounds_of(target, posterior, 100 * global_random_seed + s, n_draws=n_draws)
        for s in range(12)
    ]
    for side, sign in (("lower", 1), ("upper", -1)):
        gaps = np.array([sign * (getattr(b, side) - exact) for b in found])
        assert gaps.mean() < 2 * gaps.std() / math.sqrt(len(gaps)) + ROUNDING


def one_feature():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((25, 1))
    return X, (X[:, 0] + rng.logistic(size=25) > 0.3).astype(int)


GENERALIZED = {
    "plain": ({}, {}),
    "wide": (
        {"scale": 4.0},
        {"prior": Normal(4.0), "intercept_prior": Normal(4.0)},
    ),
    "laplace": ({"laplace": True}, {"prior": Laplace()}),
    "beta": ({"beta": 1.5}, {"loss": BetaLoss(1.5)}),
    "weights": ({"w": np.linspace(0, 2.5, 25)}, {}),
}


@pytest.mark.parametrize("variant", GENERALIZED)
def test_against_a_grid(variant):
    """Two parameters, integrated on a grid of points; also generalized evidences.

    Wrong variants: the Laplace density without its 2; weights ignored in `log_joint`.
    """
    reference, parts = GENERALIZED[variant]
    X, y = one_feature()
    w = reference.get("w")
    centered = X - np.average(X, axis=0, weights=w)
    exact = grid_evidence(Problem(centered, y, **reference), n_nodes=401)
    parts = {"prior": "normal", "intercept_prior": "normal", **parts}
    model = BayesianLogisticRegression(**parts).fit(X, y, w)
    bounds = model.evidence_bounds(X, y, sample_weight=w, random_state=0)
    low, high = bounds.interval()
    assert low <= exact <= high
    assert max(exact - bounds.lower, bounds.upper - exact) < 0.05
    assert abs(bounds.estimate - exact) < 5 * bounds.table["bridge"].standard_error
    # One run in twenty of the wide prior has a Pareto k that is too large by a hair.
    again = {"sample_weight": w, "random_state": 1}
    assert bounds.reliable or model.evidence_bounds(X, y, **again).reliable
    assert model.lower_bound_ < exact
    special = variant in ("beta", "weights")
    assert bounds.quantity == (
        "generalized log evidence" if special else "log evidence"
    )
    assert str(bounds).startswith(bounds.quantity)


def lognormal_weights(sigma, n, seed, sign=1):
    """Log weights with mean weight exp(-2) (forward) or mean inverse exp(2)."""
    lw = sigma * np.random.default_rng(seed).standard_normal((64, n // 64))
    return torch.from_numpy(-2 + sign * (lw - sigma**2 / 2))


@pytest.mark.parametrize("sigma", [0.01, 1.5])
def test_estimates_of_known_weights(sigma):
    """Lognormal weights with log Z = -2: coverage over 200 sets of each estimate.

    Wrong variants: sign of the penalty (seen at sigma = 0.01); minimum of upper blocks.
    """
    n, covered = 4096, np.zeros(4)
    k = block_size(math.exp(sigma**2) - 1, n)
    assert 1 <= k <= n // 64
    for seed in range(200):
        forward = lognormal_weights(sigma, n, seed)
        reverse = lognormal_weights(sigma, n, 1000 + seed, sign=-1)
        low, high = finite_sample_bounds(forward.flatten(), reverse, 0.95)
        lower, lower_se = forward_bound(forward.flatten(), k)
        upper, upper_se = reverse_bound(reverse, k)
        covered += [
            low <= -2,
            high >= -2,
            lower - 2 * lower_se <= -2,
            upper + 2 * upper_se >= -2,
        ]
    assert covered.min() >= binom.ppf(1e-4, 200, 0.95)
    # Wide apart they would say nothing: the gap is a few errors.
    assert upper - lower < 8 * (lower_se + upper_se) + sigma**2 / k


@pytest.mark.parametrize("width", [0.5, 2.0])
def test_bridge_of_two_normals(width, global_random_seed):
    """r = N(0, 1), p = N(1/2, width^2) exp(-2): consistent, with an honest error.

    Wrong variants: the error of either side left out.
    """
    rng = np.random.default_rng(global_random_seed)
    z = []
    for _ in range(400):
        x = rng.standard_normal(500)
        t = 0.5 + width * rng.standard_normal((50, 10))
        lw = [
            torch.from_numpy(
                -2 - 0.5 * ((v - 0.5) / width) ** 2 - math.log(width) + 0.5 * v**2
            )
            for v in (x, t)
        ]
        value, error = bridge_estimate(*lw, n_effective=500)
        z.append((value + 2) / error)
    assert abs(np.mean(z)) < 5 * np.std(z) / 20
    assert abs(np.std(z) - 1) < 5 / math.sqrt(2 * 400)


def plant_chains(monkeypatch, spoil):
    """Let every sampler return chains that `spoil` has changed."""
    run = HamiltonianChains.run
    monkeypatch.setattr(
        HamiltonianChains, "run", lambda self, n, deadline=None: spoil(run(self, n))
    )


def assert_unreliable(bounds, *reasons):
    assert not bounds.reliable
    for reason in reasons:
        assert reason in bounds.reason
    assert "NOT reliable" in str(bounds)
    assert bounds.reason in str(bounds)


def test_chains_that_do_not_mix(monkeypatch):
    """Each chain repeats its first draw. Wrong variant: R-hat is not asked."""
    target, posterior, _ = conjugate()

    def freeze(chains):
        theta = chains.theta[:, :1].expand_as(chains.theta)
        lp = chains.log_joint[:, :1].expand_as(chains.log_joint)
        return Chains(theta, lp, 0.0)

    plant_chains(monkeypatch, freeze)
    bounds = bounds_of(target, posterior, 0, method="importance")
    assert_unreliable(bounds, "chains disagree (R-hat")


def test_heavy_tails_below(monkeypatch):
    """A proposal ten times too narrow. Wrong variant: khat of the upper side only."""
    target, posterior, _ = conjugate()
    adapt = _modes.adapt_proposal

    def narrow(*args, **options):
        proposal, pilot = adapt(*args, **options)
        normal = proposal.normal
        normal = type(normal)(normal.mean, 0.1 * normal.scale)
        return type(proposal)(normal, 40), pilot

    monkeypatch.setattr(_modes, "adapt_proposal", narrow)
    assert_unreliable(
        bounds_of(target, posterior, 0, method="importance"),
        "lower bound are too heavy-tailed (Pareto k",
    )


def test_heavy_tails_above(monkeypatch):
    """A reverse density three times too wide: r/p has infinite variance."""
    target, posterior, _ = conjugate()
    monkeypatch.setattr(_importance, "REVERSE_SCALES", (3.0,))
    assert_unreliable(
        bounds_of(target, posterior, 0, method="importance"),
        "upper bound are too heavy-tailed (Pareto k",
    )


def test_sides_that_cross(monkeypatch):
    """Posterior draws of another posterior: log densities 1 nat too low."""
    target, posterior, _ = conjugate()

    def lower(chains):
        return Chains(chains.theta, chains.log_joint - 1, chains.acceptance)

    plant_chains(monkeypatch, lower)
    assert_unreliable(
        bounds_of(target, posterior, 0, method="importance"),
        "the two bounds cross by 0.9",
    )


def test_precision_and_draws():
    """Smaller precision, tighter bounds; the same seed, the same numbers."""
    target, _, exact = conjugate()
    posterior = FullRankNormal().build(target.layout)
    coarse = bounds_of(target, posterior, 1, precision=0.1)
    fine = bounds_of(target, posterior, 1, precision=0.005)
    assert fine.gap < 0.015
    assert fine.lower_se < 0.7 * coarse.lower_se
    assert abs(fine.estimate - exact) < 0.005
    again = bounds_of(target, posterior, 1, precision=0.005)
    assert (again.lower, again.upper, again.ess) == (fine.lower, fine.upper, fine.ess)
