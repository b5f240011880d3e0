"""Evidence under symmetries: sums over the group, chains judged by functions."""

import math
from itertools import permutations, product

import numpy as np
import pytest
import torch

from benchmarks.evidence_networks import NOISE, small_data, truth
from skvi.base import NormalForm
from skvi.evidence import _symmetrized, _tempered
from skvi.evidence._agreement import invariant_rhat
from skvi.evidence._estimates import Estimate
from skvi.evidence._stepping import (
    ladder_bridge,
    ladder_lower,
    ladder_upper,
    tail_shape,
)
from skvi.evidence._symmetrized import symmetrized_log_prob, symmetrized_rows
from skvi.evidence._tempered import TemperedSides
from skvi.evidence._tempered_result import _why_not
from skvi.likelihoods import GaussianLikelihood
from skvi.losses import LogLoss
from skvi.neural_network import BayesianMLPRegressor
from skvi.posteriors import MeanFieldNormal
from skvi.predictors import MLPPredictor
from skvi.priors import Normal
from skvi.sampling import Chains
from skvi.targets import SupervisedTarget

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)


def make_target(units=2, activation="tanh", seed=0, prior=None):
    X, y = small_data(activation, units, 1, seed)
    predictor = MLPPredictor(1, 1, (units,), activation)
    prior = (prior or Normal()).build(predictor.layout)
    data = torch.from_numpy(X), torch.from_numpy(y)
    return SupervisedTarget(
        predictor, GaussianLikelihood(NOISE), LogLoss(), prior, *data
    ).frozen()


def random_normal(size, generator, width=0.7):
    mean = torch.randn(size, generator=generator, dtype=torch.float64)
    scale = width * torch.rand(size, generator=generator, dtype=torch.float64)
    return NormalForm(mean, scale + 0.1)


def by_enumeration(normal, symmetry, theta):
    """Log of the mean over all elements of the group."""
    (units,) = symmetry.units
    signs = (1.0, -1.0) if symmetry.flips else (1.0,)
    values = []
    for order in permutations(range(len(units))):
        for flips in product(signs, repeat=len(units)):
            moved = theta.clone()
            for to, (source, sign) in enumerate(zip(order, flips, strict=True)):
                moved[:, units[to]] = sign * theta[:, units[source]]
            values.append(normal.log_prob(moved))
    return torch.stack(values).logsumexp(0) - math.log(len(values))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("units", [1, 3])
def test_sum_over_the_group(units, activation, generator, monkeypatch):
    """Against all elements, one by one; for many units bounds on it.

    Wrong variants: no signs; the number of permutations left out; an assignment in the
    place of the upper bound.
    """
    predictor = MLPPredictor(2, 1, (units,), activation)
    size, symmetry = predictor.layout.size, predictor.symmetry
    normal = random_normal(size, generator)
    theta = torch.randn(50, size, generator=generator, dtype=torch.float64)
    expected = by_enumeration(normal, symmetry, theta)
    low, high = symmetrized_log_prob(normal, symmetry, theta)
    torch.testing.assert_close(low, expected)
    torch.testing.assert_close(high, expected)
    monkeypatch.setattr(_symmetrized, "MAX_EXACT", 0)
    low, high = symmetrized_log_prob(normal, symmetry, theta)
    assert bool((low <= expected + 1e-9).all())
    assert bool((expected <= high + 1e-9).all())
    if units > 1:
        assert float((high - low).max()) > 1e-3


def test_rows_of_the_symmetrized_posterior_bound_the_truth(generator):
    """At q on one copy of two distinct units, log |G| is nearly all of the gain.

    Wrong variants: log |G| added to the ELBO of q, or not at all; the sum over G
    bounded from the other side.
    """
    target = make_target(1)
    value, _, _ = truth("tanh", 1, *(a.numpy() for a in (target.X, target.y)))
    posterior = MeanFieldNormal().build(target.layout)
    near = NormalForm(
        torch.tensor([1.0, 0.5, 1.0, 0.0]).double(), torch.full((4,), 0.4).double()
    )
    posterior = posterior.near(near)
    theta = target.prior.sample(200_000, generator)
    log_joint = target.log_joint_batched(theta)
    weights = torch.softmax(log_joint - target.prior.log_prob(theta), 0)
    chosen = torch.multinomial(weights, 6400, replacement=True, generator=generator)
    kept = theta[chosen].reshape(64, 100, -1), log_joint[chosen].reshape(64, 100)
    rows = symmetrized_rows(target, posterior, Chains(*kept, 1.0), generator)
    assert len(rows) == 4
    for row in rows.values():
        sign = 1 if row.direction == "lower" else -1
        assert sign * (row.value - value) < 4 * row.standard_error
    draw = posterior.draw(20_000, generator)
    plain = target.log_joint_batched(draw.theta) - draw.log_q
    elbo, error = float(plain.mean()), float(plain.std()) / len(plain) ** 0.5
    row = rows["ELBO of symmetrized q"]
    gain, error = row.value - elbo, 4 * math.hypot(error, row.standard_error)
    assert -error < gain < math.log(2) + error


def test_no_rows_where_the_prior_tells_units_apart(generator):
    posterior = MeanFieldNormal().build(make_target().layout)
    chains = Chains(torch.zeros(2, 8, 7).double(), torch.zeros(2, 8).double(), 1.0)
    assert symmetrized_rows(make_target(), posterior, chains, generator)
    prior = MeanFieldNormal().build(make_target().layout)
    prior = prior.near(random_normal(7, generator)).as_normal()

    class Lopsided(SupervisedTarget):
        def log_joint(self, theta, rows=None):
            return prior.log_prob(theta)

    target = make_target()
    target.__class__ = Lopsided
    assert not symmetrized_rows(target, posterior, chains, generator)


def test_chains_in_other_copies_agree(generator):
    """Each chain in its own copy of one mode. Wrong variant: R-hat of weights."""
    target = make_target(2)
    symmetry, center = target.symmetry, torch.tensor([1.5, -1, 0.5, 0.3, 1, -1, 0.2])
    noise = 0.1 * torch.randn(8, 50, 7, generator=generator, dtype=torch.float64)
    theta = torch.stack(
        [symmetry.transform(chain, generator) for chain in center + noise]
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
    [("tanh", 1), *(pytest.param(*p, marks=pytest.mark.slow) for p in [("relu", 1)])],
)
def test_small_networks(activation, units, monkeypatch):
    """Truth by quadrature. Wrong variants: a ladder that begins at another normal than
    it weighs with; bounds of the neighbors exchanged."""
    monkeypatch.setattr(_tempered, "N_WARMUP", 80)
    X, y = small_data(activation, units, 1, seed=3)
    model = BayesianMLPRegressor(
        hidden_layer_sizes=units,
        activation=activation,
        noise_scale=NOISE,
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
    if activation == "tanh":
        row = bounds.table["ELBO of symmetrized q"]
        assert row.value - bounds.table["ELBO of q"].value < np.log(2) + 0.5


def test_seconds_are_a_limit_of_tempering():
    X, y = small_data("tanh", 1, 1, seed=3)
    model = BayesianMLPRegressor(
        hidden_layer_sizes=1, noise_scale=NOISE, max_iter=5, random_state=0
    ).fit(X, y)
    bounds = model.evidence_bounds(X, y, max_seconds=1e-3, random_state=0)
    assert bounds.method == "tempering"


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
