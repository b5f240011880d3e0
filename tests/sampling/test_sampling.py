"""Mixtures as proposals, chains and tempering."""

import math

import pytest
import torch

from skvi._sampling._chains import Positions
from skvi._sampling._importance import StudentT as StudentProposal
from skvi._sampling._importance import (
    adapt_mixture,
    effective_sample_size,
    pareto_khat,
    split_rhat,
)
from skvi._sampling._particles import (
    Ladder,
    ReplicaExchange,
    particle_estimates,
    tune_ladder,
)
from skvi.base import Layout, NormalForm
from skvi.targets import Target
from tests.densities import NormalTarget, TwoModes
from tests.references import make_rhat


def uniform(generator, *shape):
    return 1 - torch.rand(*shape, generator=generator, dtype=torch.float64)


def tail_size(n_draws):
    return math.ceil(min(0.2 * n_draws, 3 * math.sqrt(n_draws)))


@pytest.mark.parametrize("k", [0.2, 0.7, 1.5])
@pytest.mark.parametrize("n_draws", [40, 1000])
def test_khat_is_its_definition(k, n_draws, generator):
    """Zhang and Stephens (2009), written as loops, on the tail above the cut-off.

    Wrong variants: the prior's 10 weights at 1/2 left out; the cut-off itself in the
    tail; another grid.
    """
    weights = sorted((uniform(generator, n_draws) ** -k).tolist(), reverse=True)
    m = tail_size(n_draws)
    x = sorted((w - weights[m]) / weights[0] for w in weights[:m])
    n_grid = 30 + math.isqrt(m)
    quartile = x[math.floor(m / 4 + 0.5) - 1]
    thetas, scores = [], []
    for j in range(1, n_grid + 1):
        theta = 1 / x[-1] + (1 - math.sqrt(n_grid / (j - 0.5))) / (3 * quartile)
        shape = sum(math.log1p(-theta * v) for v in x) / m
        thetas.append(theta)
        scores.append(m * (math.log(-theta / shape) - shape - 1))
    odds = [math.exp(s - max(scores)) for s in scores]
    theta = sum(t * o for t, o in zip(thetas, odds, strict=True)) / sum(odds)
    shape = sum(math.log1p(-theta * v) for v in x) / m
    actual = pareto_khat(torch.tensor(weights, dtype=torch.float64).log())
    assert actual == pytest.approx((m * shape + 5) / (m + 10), abs=1e-8)


def autoregressive(generator, rho, n_chains, n_iter, m=1):
    """Stationary AR(1) chains with unit variance."""
    noise = torch.randn(n_iter, n_chains, m, generator=generator, dtype=torch.float64)
    chain = [noise[0]]
    for eps in noise[1:]:
        chain.append(rho * chain[-1] + math.sqrt(1 - rho**2) * eps)
    return torch.stack(chain, 1)


@pytest.mark.parametrize("name", make_rhat.chains())
def test_rhat_is_that_of_arviz(name):
    """Wrong variants: the values without ranks; no folding; ties in order."""
    values = torch.from_numpy(make_rhat.chains()[name])[..., None]
    expected = make_rhat.load()["rhat"][name]
    assert split_rhat(values) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rho", [-0.4, 0.0, 0.5, 0.9])
def test_ess_of_autoregressive_chains(rho, generator):
    """Against the exact variance of the mean of n steps of an AR(1) chain.

    Wrong variants: chains counted as draws; the variance for a ratio of variances.
    """
    n_chains, n = 1500, 100
    values = autoregressive(generator, rho, n_chains, n, 2)
    lags = torch.arange(1, n, dtype=torch.float64)
    variance_of_mean = float(1 + 2 * ((1 - lags / n) * rho**lags).sum()) / n
    expected = min(n_chains / variance_of_mean, n_chains * n)
    # A variance from m chains has the relative standard deviation sqrt(2 / (m - 1)).
    tolerance = 5 * math.sqrt(2 / (n_chains - 1)) * expected
    for ess in effective_sample_size(values).tolist():
        assert ess == pytest.approx(expected, abs=tolerance)
        assert ess <= n_chains * n


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class Bimodal(Target):
    """A narrow normal with 30 % of the mass, and a wide one far from it."""

    layout = Layout({"coef": (1, 1)})
    parts = (
        NormalForm(torch.zeros(1).double(), torch.full((1,), 0.01).double()),
        NormalForm(torch.full((1,), 8.0).double(), torch.ones(1).double()),
    )
    log_weights = torch.tensor([0.3, 0.7]).double().log()

    @classmethod
    def parts_as_proposals(cls):
        return [StudentProposal(part, 5) for part in cls.parts]

    def log_joint(self, theta, rows=None):
        terms = torch.stack([part.log_prob(theta) for part in self.parts], 1)
        return torch.logsumexp(terms + self.log_weights, 1)


def test_the_mixtures_weights_are_found():
    """The weight of each mode is the fraction of its mass.

    Wrong variant: draws count equally, whatever their importance.
    """
    components = Bimodal.parts_as_proposals()
    mixture, pilot = adapt_mixture(Bimodal(), components, generator())
    assert float(mixture.weights[0]) == pytest.approx(0.3, abs=0.03)
    assert pilot.log_weights.exp().mean() == pytest.approx(1, abs=0.05)


on_one_thread = pytest.mark.usefixtures("one_thread")


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


@on_one_thread
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


@on_one_thread
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


@on_one_thread
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
