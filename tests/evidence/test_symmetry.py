"""Evidence under symmetries: chains judged by functions."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.evidence_networks import NOISE, small_data, truth
from skvi._sampling._chains import Chains
from skvi.evidence import _bounds
from skvi.evidence._estimates import Estimate, invariant_rhat
from skvi.evidence._row_particles import (
    ladder_bridge,
    ladder_lower,
    ladder_upper,
    tail_shape,
)
from skvi.evidence._tempered import TemperedSides, _why_not
from skvi.likelihoods import GaussianLikelihood
from skvi.losses import LogLoss
from skvi.neural_network import BayesianMLPRegressor
from skvi.predictors import MLPPredictor
from skvi.priors import Normal
from skvi.targets import SupervisedTarget
from tests.groups import random_copy

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)


def make_target(units):
    X, y = small_data("tanh", units, 1, 0)
    predictor = MLPPredictor(1, 1, (units,), "tanh")
    prior = Normal().build(predictor.layout)
    data = torch.from_numpy(X), torch.from_numpy(y)
    return SupervisedTarget(
        predictor, GaussianLikelihood(NOISE), LogLoss(), prior, *data
    ).frozen()


def test_chains_in_other_copies_agree(generator):
    """Each chain in its own copy of one mode. Wrong variant: R-hat of weights."""
    target = make_target(2)
    symmetry, center = target.symmetry, torch.tensor([1.5, -1, 0.5, 0.3, 1, -1, 0.2])
    noise = 0.1 * torch.randn(8, 50, 7, generator=generator, dtype=torch.float64)
    theta = torch.stack(
        [random_copy(symmetry, chain, generator) for chain in center + noise]
    )
    log_joint = target.log_joint(theta.flatten(0, 1)).reshape(8, 50)
    chains = Chains(theta, log_joint, 1.0)
    assert chains.rhat > 2
    assert invariant_rhat(target, chains) < 1.1
    # Another function with the same fit at no row.
    theta[0, :, -1] += 1.0
    log_joint = target.log_joint(theta.flatten(0, 1)).reshape(8, 50)
    assert invariant_rhat(target, Chains(theta, log_joint, 1.0)) > 1.5


def test_bounds_from_exact_draws_of_a_ladder(generator, z_score):
    """Normals of variance 1 / (1 + 3 beta): log Z = -log(4) / 2.

    In expectation on either side, with few draws, and with more blocks farther out.
    Wrong variants: weights of the other neighbor; the sign of the upper one.
    """
    betas = torch.linspace(0, 1, 4, dtype=torch.float64)
    scale = (1 + 3 * betas).rsqrt()[:, None, None]
    draws = scale * torch.randn(4, 4000, 20, generator=generator, dtype=torch.float64)
    log_weights, exact = -1.5 * draws.square(), -0.5 * math.log(4)
    lower, upper = (f(log_weights, betas) for f in (ladder_lower, ladder_upper))
    error = float(upper.std()) / 4000**0.5
    assert exact - 0.3 < float(lower.mean()) < exact < float(upper.mean()) < exact + 0.3
    assert float(ladder_upper(log_weights, betas, 5).mean()) > upper.mean() + 5 * error
    assert float(ladder_lower(log_weights, betas, 5).mean()) < lower.mean() - 5 * error
    value, error = ladder_bridge(log_weights, betas)
    assert abs(value - exact) < 5 * error < 0.05


PLANTED = {
    "disagree": {"rhat": 1.2},
    "from the prior to the posterior": {"trips": 0.5},
    "cross": {"below": 1.0},
    "miss a part": {"particles": 1.0},
    "came down": {"split": 1.0},
    "not finite": {"particles": math.nan, "below": -math.inf},
}


@pytest.mark.parametrize("says", [None, *PLANTED])
def test_planted_failures(says, generator):
    """Each diagnostic forbids the statement by itself; the good case passes."""
    planted = PLANTED.get(says, {})
    noise = 0.02 * torch.randn(3, 16, generator=generator, dtype=torch.float64)
    below = noise[0] - 0.1 + planted.get("below", 0.0)
    above, particles = noise[1] + 0.1, noise[2] - 0.2 + planted.get("particles", 0.0)
    above[:8] += planted.get("split", 0.0)

    class Draws:
        round_trips = planted.get("trips", 5.0)
        log_weights = torch.zeros(2, 16, 100)

    rhat = planted.get("rhat", 1.01)
    sides = TemperedSides(below, above, particles, Draws(), rhat, 0.1)
    both = below, above
    errors = [Estimate(float(v.mean()), float(v.std()) / 4) for v in both]
    reason = "; ".join(_why_not(sides, *errors, 0.3))
    assert (says in reason) if says else not reason
    worse = "; ".join(_why_not(sides, *errors, 0.9))
    assert "heavy-tailed" in worse or says == "not finite"


@pytest.mark.parametrize(
    ("activation", "units"),
    [pytest.param(*p, marks=pytest.mark.slow) for p in [("tanh", 1), ("relu", 1)]],
)
def test_small_networks(activation, units, monkeypatch):
    """Truth by quadrature. Wrong variants: a ladder that begins at another normal than
    it weighs with; bounds of the neighbors exchanged."""
    short = replace(_bounds.FROM_PRIOR, n_warmup=80)
    monkeypatch.setattr(_bounds, "FROM_PRIOR", short)
    X, y = small_data(activation, units, 1, seed=3)
    model = BayesianMLPRegressor(
        skip_connection=False,
        likelihood=GaussianLikelihood(NOISE),
        divergence="kl",
        posterior="mean_field",
        hidden_layer_sizes=units,
        activation=activation,
        normalize_y=False,
        max_iter=20,
        random_state=0,
    ).fit(X, y)
    bounds = model.evidence_bounds(X, y, n_draws=1600, random_state=0)
    value, _, _ = truth(activation, units, X, y)
    low, high = bounds.interval()
    assert bounds.reliable, bounds.reason
    assert low < value < high < low + 1.5
    assert bounds.table["particles"].value < value + 4 * bounds.lower_se


def test_tails_that_matter():
    """Weights with a variance by construction are not asked; others are, on both sides.

    Wrong variants: every ratio is asked for the weights back; the lower side is not.
    """
    uniform = torch.linspace(0.0005, 0.9995, 4000, dtype=torch.float64)
    heavy = -0.9 * uniform.log().reshape(1, 4, 1000)  # Pareto k 0.9 in units of a width
    flat, step = torch.zeros_like(heavy), torch.tensor([0.5, 1.0]).double()
    wide = torch.tensor([0.4, 1.0]).double()
    back, up = torch.cat([flat, -heavy / 0.5]), torch.cat([heavy / 0.5, flat])
    assert tail_shape(back, step) == -math.inf
    assert tail_shape(back, wide) > 0.7
    assert tail_shape(up, step) > 0.7
