"""Diagnostics against theory: exact Pareto tails, autoregressive chains."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm, rankdata

from skvi._sampling._importance import (
    disagreement,
    effective_sample_size,
    khat_limit,
    pareto_khat,
    split_rhat,
)
from tests.references import make_rhat


def uniform(generator, *shape):
    return 1 - torch.rand(*shape, generator=generator, dtype=torch.float64)


def tail_size(n_draws):
    return math.ceil(min(0.2 * n_draws, 3 * math.sqrt(n_draws)))


@pytest.mark.parametrize("n_draws", [400, 10_000])
@pytest.mark.parametrize("k", [0.1, 0.3, 0.5, 0.7, 1.0, 1.5])
def test_khat_recovers_exact_pareto_tails(k, n_draws, generator):
    """Weights u^-k have shape k beyond every cut-off.

    The estimate has standard deviation (1 + k) / sqrt(M) for a tail of M weights, and
    is drawn to 1/2 by a prior worth 10 weights. Wrong variants: -k; the cut-off left
    in the tail, or not subtracted; the prior's weight forgotten or doubled.
    """
    m, n_replicates = tail_size(n_draws), 60
    estimates = torch.tensor(
        [
            pareto_khat(-k * uniform(generator, n_draws).log())
            for _ in range(n_replicates)
        ]
    )
    expected = (m * k + 5) / (m + 10)
    sd = (1 + k) / math.sqrt(m) * m / (m + 10)
    # The bias of the estimate itself is of order 1 / M.
    tolerance = 5 * sd / math.sqrt(n_replicates) + 1.5 / m
    assert float(estimates.mean()) == pytest.approx(expected, abs=tolerance)
    assert float(estimates.std()) == pytest.approx(sd, rel=0.5)


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


@pytest.mark.parametrize(
    ("quantile", "k"),
    [
        (lambda u: -u.log(), 0.0),  # exponential
        (lambda u: 1 - u, -1.0),  # uniform: a bounded tail
        (lambda u: (1 - u).sqrt(), -1.0),
        (lambda u: 1 - u.sqrt(), -0.5),
    ],
    ids=["exponential", "uniform", "power", "triangle"],
)
def test_khat_of_light_tails(quantile, k, generator):
    m = tail_size(20_000)
    estimates = torch.tensor(
        [pareto_khat(quantile(uniform(generator, 20_000)).log()) for _ in range(20)]
    )
    expected = (m * k + 5) / (m + 10)
    assert float(estimates.mean()) == pytest.approx(expected, abs=0.05)


def test_khat_ignores_the_scale_of_the_weights(generator):
    # Wrong variant: exp before the largest log weight is subtracted.
    log_weights = -0.6 * uniform(generator, 2000).log()
    khat = pareto_khat(log_weights)
    for shift in (-5000.0, 3.0, 5000.0):
        assert pareto_khat(log_weights + shift) == pytest.approx(khat, abs=1e-6)
    shuffled = log_weights[torch.randperm(2000, generator=generator)]
    assert pareto_khat(shuffled) == khat
    assert pareto_khat(log_weights.float()) == pytest.approx(khat, abs=1e-3)


def test_khat_where_it_cannot_be_known():
    some = torch.linspace(0, 1, 100, dtype=torch.float64)
    assert pareto_khat(torch.zeros(100)) == -math.inf
    assert pareto_khat(some[:20]) == math.inf
    assert math.isfinite(pareto_khat(some[:21]))
    for bad in (math.nan, math.inf):
        assert pareto_khat(torch.cat([some, torch.tensor([bad]).double()])) == math.inf
    assert pareto_khat(torch.full((100,), -math.inf)) == math.inf
    few_zeros = torch.cat([some, torch.full((5,), -math.inf).double()])
    assert math.isfinite(pareto_khat(few_zeros))


def test_khat_of_one_dominating_weight():
    """All others negligible: the worst there is, never a good k."""
    for gap in (20.0, 800.0):
        log_weights = torch.linspace(0, 0.1, 1000, dtype=torch.float64)
        log_weights[500] = gap
        assert pareto_khat(log_weights) > 0.7


@pytest.mark.parametrize(
    ("n_draws", "limit"),
    [(2, 0.0397), (100, 0.5), (1000, 2 / 3), (2200, 0.7), (10**6, 0.7)],
)
def test_khat_limit(n_draws, limit):
    assert khat_limit(n_draws) == pytest.approx(limit, abs=2e-3)


def autoregressive(generator, rho, n_chains, n_iter, m=1):
    """Stationary AR(1) chains with unit variance."""
    noise = torch.randn(n_iter, n_chains, m, generator=generator, dtype=torch.float64)
    chain = [noise[0]]
    for eps in noise[1:]:
        chain.append(rho * chain[-1] + math.sqrt(1 - rho**2) * eps)
    return torch.stack(chain, 1)


def test_rhat_is_its_definition(generator):
    """Normal scores of ranks in halves of chains, and of folded values; the worst one.

    Wrong variants: whole chains; the values themselves; no folding; no shared ranks.
    """
    values = autoregressive(generator, 0.8, 4, 11, 3)
    values[1, 3], values[..., 2] = values[1, 2], values[..., 2].exp() ** 3
    values[:2, :, 1] *= 4  # of the same location, and another width
    worst = 0.0
    for j in range(3):
        halves = np.array([v[s, j] for v in values for s in (slice(5), slice(6, 11))])
        for found in (halves, np.abs(halves - np.median(halves))):
            scores = norm.ppf((rankdata(found).reshape(8, 5) - 3 / 8) / (40 + 1 / 4))
            within, between = scores.var(1, ddof=1).mean(), scores.mean(1).var(ddof=1)
            worst = max(worst, math.sqrt(4 / 5 + between / within))
    assert split_rhat(values) == pytest.approx(worst, rel=1e-12)


@pytest.mark.parametrize("name", make_rhat.chains())
def test_rhat_is_that_of_arviz(name):
    """Wrong variants: the values without ranks; no folding; ties in order."""
    values = torch.from_numpy(make_rhat.chains()[name])[..., None]
    expected = make_rhat.load()["rhat"][name]
    assert split_rhat(values) == pytest.approx(expected, rel=1e-9)


def test_rhat_tells_agreement_from_disagreement(generator):
    agree = torch.randn(16, 400, 2, generator=generator, dtype=torch.float64)
    # Its distance from 1 is of order 1 / n_iter; 0.01 is ten times that.
    assert abs(split_rhat(agree) - 1) < 0.01
    apart = agree.clone()
    apart[:8, :, 1] += 3  # one quantity, half of the chains
    assert split_rhat(apart) > 1.5
    drift = agree + torch.linspace(0, 4, 400, dtype=torch.float64)[:, None]
    assert split_rhat(drift) > 1.3  # within chains: only halves show it
    assert abs(split_rhat(1e6 * agree - 1e9) - split_rhat(agree)) < 1e-4


def test_one_of_many_chains_that_is_far_away(generator):
    """Wrong variant: ranks alone, which do not tell how far."""
    values = torch.randn(64, 200, 1, generator=generator, dtype=torch.float64)
    assert disagreement(values) < 1.02
    values[5] += 30
    assert split_rhat(values) < 1.1  # at any distance
    assert disagreement(values) > 1.5


def test_rhat_where_it_cannot_be_known():
    stuck = torch.arange(4, dtype=torch.float64)[:, None, None].expand(4, 10, 1)
    assert split_rhat(stuck) > 1e6
    assert split_rhat(torch.zeros(4, 3, 1)) == math.inf
    nan = torch.zeros(4, 10, 1)
    nan[0, 0] = math.nan
    assert split_rhat(nan) == math.inf


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


def test_ess_of_each_quantity(generator):
    slow, fast = (autoregressive(generator, rho, 200, 100) for rho in (0.95, 0.0))
    values = torch.cat([slow, fast], 2)
    both = effective_sample_size(values)
    torch.testing.assert_close(both[:1], effective_sample_size(slow))
    assert float(both[1]) > 10 * float(both[0])
    torch.testing.assert_close(effective_sample_size(5 * values - 3), both)
    # Chains that never move are worth one draw each, at most.
    stuck = torch.randn(200, 1, 1, generator=generator).expand(200, 100, 1)
    assert float(effective_sample_size(stuck)) == pytest.approx(200, rel=0.02)
