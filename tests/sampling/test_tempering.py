"""Ladders of temperatures: moves, particles, chains that exchange places."""

import math

import numpy as np
import pytest
import torch

from skvi._sampling._chains import Positions
from skvi._sampling._particles import (
    LEAST_SWEEPS,
    Ladder,
    ReplicaExchange,
    anneal,
    particle_estimates,
    pooled_scales,
    tune_ladder,
)
from skvi.base import NormalForm
from tests.densities import NormalTarget, TwoModes

pytestmark = pytest.mark.usefixtures("one_thread")


def wide(size=2, width=3.0):
    mean = torch.zeros(size, dtype=torch.float64)
    return NormalForm(mean, torch.full_like(mean, width))


def tempered(target, normal, beta):
    """The normal with density r^(1 - beta) p^beta."""
    precisions = [torch.linalg.inv(n.covariance()) for n in (normal, target.normal)]
    covariance = torch.linalg.inv((1 - beta) * precisions[0] + beta * precisions[1])
    pull = (1 - beta) * precisions[0] @ normal.mean
    mean = covariance @ (pull + beta * precisions[1] @ target.normal.mean)
    return NormalForm(mean, torch.linalg.cholesky(covariance))


def test_moves_leave_their_densities(make_normal, generator, z_score):
    """Each replica at its own temperature. Wrong variants: the force of the joint; the
    energy without the momentum; steps of the energy's end that are whole."""
    target = NormalTarget(make_normal(2, "full", seed=1, width=0.8))
    normal, n = make_normal(2, "full", seed=2), 40_000
    betas = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    theta = []
    for beta in betas:
        eps = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        theta.append(tempered(target, normal, float(beta)).transform(eps))
    position = normal.whiten(torch.cat(theta) - normal.mean)
    replicas = Positions(target, normal, position)
    steps = torch.tensor([1.1, 0.7], dtype=torch.float64).expand(3 * n, 2)
    for _ in range(3):
        accepted = replicas.move(steps, 2, generator, betas.repeat_interleave(n))
    assert 0.3 < float(accepted.mean()) < 0.99
    for beta, moved in zip(betas, replicas.theta.reshape(3, n, 2), strict=True):
        expected = tempered(target, normal, float(beta))
        for k in range(2):
            assert z_score(moved[:, k], float(expected.mean[k])) < 5
            squares = (moved[:, k] - expected.mean[k]).square()
            assert z_score(squares, float(expected.variance[k])) < 5


@pytest.mark.parametrize("n_levels", [1, 3])
def test_particles_are_unbiased(n_levels, make_normal, generator, z_score):
    """E[exp(estimate)] = Z with few particles and a coarse ladder.

    Wrong variants: weights after the move; a move at the next temperature; means of
    logarithms; resampling across populations.
    """
    target = NormalTarget(make_normal(2, "full", seed=1, width=0.8))
    normal = make_normal(2, "diag", seed=2)
    betas = torch.linspace(0, 1, n_levels + 1, dtype=torch.float64) ** 2
    steps = torch.full((n_levels + 1, 2), 0.9, dtype=torch.float64)
    ladder = Ladder(target, normal, betas, steps)
    found = particle_estimates(ladder, 4000, 4, generator)
    assert z_score(torch.exp(found - target.log_evidence), 1.0) < 5
    assert float(found.mean()) < target.log_evidence


def test_chains_exchange_places_between_modes(generator):
    """Modes that no chain of the target leaves get their mass.

    All start in the smaller one. Wrong variants: the sign of the gain; every exchange
    accepted; no fresh draws at the prior.
    """
    target, normal = TwoModes(), wide()
    ladder = tune_ladder(target, normal, generator).ladder
    starts = torch.full((ladder.size, 32, 2), 2 / 3, dtype=torch.float64)
    sampler = ReplicaExchange(ladder, starts, generator).warm_up(60)
    draws = sampler.run(400)
    is_near = (draws.chains.theta[..., 0] > 0).double().mean(1)
    error = float(is_near.std()) / len(is_near) ** 0.5
    assert abs(float(is_near.mean()) - 0.2) < 4 * error < 0.15
    assert draws.round_trips > 5
    log_joint = target.log_joint(draws.chains.theta.flatten(0, 1))
    torch.testing.assert_close(draws.chains.log_joint.flatten(), log_joint)


def test_frozen_after_warm_up(generator):
    """A run does not change the ladder; a deadline ends it early, and the warm-up.

    Wrong variant: half of the warm-up is made however late it is.
    """
    ladder = tune_ladder(TwoModes(), wide(), generator).ladder
    starts = anneal(ladder, 4, generator)
    assert starts.shape == (ladder.size, 4, 2)
    sampler = ReplicaExchange(ladder, starts, generator).warm_up(20)
    before = sampler.ladder
    assert not torch.equal(before.steps, ladder.steps)
    draws = sampler.run(100, deadline=0.0)
    assert sampler.ladder is before
    assert draws.log_weights.shape == (ladder.size, 4, LEAST_SWEEPS)
    late = ReplicaExchange(ladder, starts, generator).warm_up(100, deadline=0.0)
    assert late.is_cut
    assert late.n_sweeps == LEAST_SWEEPS < 20  # few: seconds are kept


def test_steps_are_shared_by_parameters_that_are_alike():
    """Wrong variant: the sum over an orbit and not its mean."""
    squares = torch.tensor([[[4.0, 100.0, 9.0]]], dtype=torch.float64)
    orbits = torch.tensor([0, 0, 1])
    found = pooled_scales(squares, orbits)
    expected = [[52.0**-0.5, 52.0**-0.5, 1 / 3]]
    np.testing.assert_allclose(found, expected)
    # Never wider than r.
    assert float(pooled_scales(0.01 * squares, orbits).max()) == 1.0


def test_density_of_zero_everywhere(generator):
    class Nowhere(TwoModes):
        def log_joint(self, theta, rows=None):
            return 0 * theta.sum(1) - math.inf

    with pytest.raises(ValueError, match="not finite at any draw"):
        tune_ladder(Nowhere(), wide(), generator)
