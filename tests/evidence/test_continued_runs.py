"""Runs of tempered chains that go on while the chains disagree."""

from functools import cache

import pytest
import torch

from skvi._sampling._chains import silent
from skvi._sampling._importance import MAX_RHAT
from skvi.base import NormalForm
from skvi.evidence._bounds import bound_evidence
from skvi.evidence._estimates import invariant_rhat
from skvi.evidence._tempered import LONGER, MIN_TRIPS, Effort, tempered_sides
from skvi.posteriors import MeanFieldNormal
from skvi.utils._interrupts import UNLIMITED
from tests.densities import NormalTarget, TwoModes

N_SYSTEMS, PLANNED = 8, 20


@cache
def run(seed, n_draws=None):
    """So coarse a precision that the error never asks for more than the least."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.full((2, 2), 2.0, dtype=torch.float64)
    wide = NormalForm(0.0 * start[0], 1.5 * start[0])
    effort = Effort("a wide normal", N_SYSTEMS, 0, 200, PLANNED)
    asked = n_draws, 4.0, silent, UNLIMITED
    return tempered_sides(TwoModes(), wide, start, effort, generator, *asked)


@pytest.mark.parametrize("seed", range(2))
def test_chains_that_disagree_run_on(seed):
    """Until they agree, or all that was allowed is used, or it would not do.

    Wrong variants: no continuation; one without an end; only the later draws judged.
    """
    sides = run(seed)
    draws = sides.draws
    assert draws.n_sweeps in PLANNED * torch.tensor([1, 2, LONGER])
    agree = sides.rhat <= MAX_RHAT and draws.round_trips >= MIN_TRIPS
    hopeless = draws.n_sweeps * (sides.rhat - 1) / (MAX_RHAT - 1) > LONGER * PLANNED
    rare = draws.n_sweeps * MIN_TRIPS > LONGER * PLANNED * draws.round_trips
    assert agree or hopeless or rare
    assert draws.chains.theta.shape[:2] == (N_SYSTEMS, draws.n_sweeps)
    assert sides.rhat == invariant_rhat(TwoModes(), draws.chains)


def test_some_of_them_did_and_the_draws_stay_together():
    """Weights of the target belong to its draws. Wrong variant: joined in other order.

    With a number of draws that was asked for there is no more.
    """
    all_sides = [run(seed) for seed in range(3)]
    longest = max(all_sides, key=lambda sides: sides.draws.n_sweeps).draws
    assert longest.n_sweeps > PLANNED
    theta = longest.chains.theta
    expected = TwoModes().log_joint(theta.flatten(0, 1)).reshape(theta.shape[:2])
    torch.testing.assert_close(longest.chains.log_joint, expected)
    log_r = longest.ladder.normal.log_prob(theta.flatten(0, 1)).reshape(expected.shape)
    torch.testing.assert_close(longest.log_weights[-1], expected - log_r)
    assert run(0, N_SYSTEMS * PLANNED).draws.n_sweeps == PLANNED


def test_a_path_from_a_factorized_q(make_normal):
    """Twelve correlated dimensions, without a linear predictor.

    Wrong variants: a path from the normal itself, where first chains should have found
    one; a normal that is narrower than the posterior.
    """
    target = NormalTarget(make_normal(12, "full", seed=1, width=0.5))
    posterior = MeanFieldNormal().build(target.layout)
    posterior = posterior.near(make_normal(12, "diag", seed=2, width=0.3))
    generator = torch.Generator().manual_seed(1)
    bounds = bound_evidence(target, posterior, generator, method="tempering")
    assert bounds.reliable, bounds.reason
    assert bounds.method == "tempering"
    low, high = bounds.interval()
    assert low <= target.log_evidence <= high
    assert high - low < 0.6
