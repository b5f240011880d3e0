"""Expectations under normals, by rules and by conditioning."""

import math

import pytest
import torch
from torch.nn.functional import softplus

from skvi.expectations import _rules, _softmax
from skvi.expectations._logistic import (
    expect_softplus,
    log_mixture_sigmoid,
)
from skvi.expectations._rules import normal_rule
from skvi.expectations._softmax import log_expect_softmax


def grid(mean, covariance, n_line, reach=6.5):
    """Differences of f from its first column at nodes, (N, K), and weights, (N,)."""
    k = len(mean)
    z = torch.linspace(-reach, reach, n_line, dtype=torch.float64)
    nodes = torch.cartesian_prod(*[z] * (k - 1)).reshape(-1, k - 1)
    log_weights = torch.log_softmax(-0.5 * nodes.square().sum(1), 0)
    differences = torch.eye(k, dtype=torch.float64)[1:] - torch.eye(k)[:1]
    root = torch.linalg.cholesky(differences @ covariance @ differences.T)
    f = torch.nn.functional.pad(nodes @ root.T + differences @ mean, (1, 0))
    return f, log_weights


@pytest.mark.parametrize(("k", "n_line"), [(2, 2000), (3, 450), (4, 65)])
def test_log_probabilities_of_few_classes(k, n_line):
    """Clear rows and open ones, narrow, wide and correlated.

    Wrong variants: the other classes as if the last one did not exist; classes that are
    left exchanged.
    """
    generator = torch.Generator().manual_seed(k)
    widths = (0.03, 0.4, 1.3, 6.0) if k < 4 else (0.03, 0.4, 1.0)
    for width in widths:
        root = torch.randn(k, k, generator=generator, dtype=torch.float64)
        covariance = width**2 * root @ root.T / k
        mean = (2 * width + 2) * torch.randn(k, generator=generator).double()
        f, log_weights = grid(mean, covariance, n_line, reach=10.0)
        exact = torch.logsumexp(torch.log_softmax(f, 1) + log_weights[:, None], 0)
        found = log_expect_softmax(mean[None], covariance[None])[0]
        tolerance = torch.where(exact > math.log(1e-7), 2e-6, 1e-2)
        assert bool(((found - exact).abs() < tolerance).all())


def test_exponentials_that_overflow_take_logarithms(monkeypatch):
    """Many classes: ratios of exponentials agree with logarithms where both exist.

    Wrong variant: the denominator without the means.
    """
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(4, 6, 6, generator=generator, dtype=torch.float64)
    mean = 3 * torch.randn(4, 6, generator=generator, dtype=torch.float64)
    covariance = root @ root.mT
    ratios = log_expect_softmax(mean, covariance)
    monkeypatch.setattr(_softmax, "MAX_RANGE", 0.0)
    torch.testing.assert_close(log_expect_softmax(mean, covariance), ratios)
    monkeypatch.undo()
    far = log_expect_softmax(1e3 * mean, 1e6 * covariance)
    assert bool(torch.isfinite(far).all())
    torch.testing.assert_close(far.exp().sum(1), torch.ones(4).double())


STDS = [1e-3, 0.05, 0.3, 0.66, 1.0, 1.6, 2.0, 2.5, 2.51, 4.0, 10, 30, 1e3, 1e8]
every_std = pytest.mark.parametrize("std", STDS)
BASE = torch.linspace(-12, 12, 25, dtype=torch.float64)


def logistic_parts(f):
    p = torch.sigmoid(f)
    return torch.stack([softplus(f, threshold=40), p, p * torch.sigmoid(-f)])


def reference(mean, std, integrate):
    """Expected softplus, sigmoid and sigmoid' for every mean, of shape (3, n).

    Narrow rows integrate in z; wide rows take the ramp and the step in closed form
    and integrate what remains, which lives near 0, in f.
    """
    root = math.sqrt(2 * math.pi)
    if std <= 1:
        return integrate(
            lambda z: (
                logistic_parts(mean[:, None] + std * z) * torch.exp(-z * z / 2) / root
            ),
            -12,
            0,
            12,
        )
    u = mean / std
    step = torch.special.ndtr(u)
    ramp = mean * step + std * torch.exp(-u * u / 2) / root

    def density(f):
        return torch.exp(-0.5 * ((f - mean[:, None]) / std) ** 2) / (std * root)

    def remainder(f):
        up, down, p = density(f), density(-f), torch.sigmoid(-f)
        both, odd = up + down, up - down
        parts = [both * torch.log1p(torch.exp(-f)), -odd * p, both * p * (1 - p)]
        return torch.stack(parts)

    closed = torch.stack([ramp, step, torch.zeros_like(mean)])
    return closed + integrate(remainder, 0, 3, 10, 50)


def rows(std):
    mean = torch.cat([BASE, BASE * max(std, 1) / 4])
    return mean, torch.full_like(mean, std)


@every_std
def test_expect_softplus(std, integrate):
    """Every spread: about 1e-7 nat, and 1e-8 with twice the nodes.

    Wrong variants: one rule for all spreads; the variance where std belongs.
    """
    mean, scale = rows(std)
    expected = reference(mean, std, integrate)
    for refine, tolerance in [(1, 3e-7), (2, 1e-8)]:
        values = expect_softplus(mean, scale, refine)
        for actual, exact in zip(values, expected, strict=True):
            torch.testing.assert_close(actual, exact, rtol=1e-14, atol=tolerance)
    actual = log_mixture_sigmoid(mean, scale.square())[0].exp()
    torch.testing.assert_close(actual, expected[1], rtol=0, atol=1e-8)


@pytest.mark.parametrize("spread", [0, 0.05, 0.2, 0.3, 0.5, 0.6, 1, 7, 80, 1e6])
@pytest.mark.parametrize("refine", [1, 2])
def test_normal_rule_integrates_polynomials(spread, refine):
    """Total 1, symmetric, second moment 1 and fourth 3 (unless f is fixed)."""
    nodes, weights = normal_rule(spread, refine)
    assert float(weights.sum()) == pytest.approx(1, abs=1e-14)
    torch.testing.assert_close(nodes, -nodes.flip(0))
    torch.testing.assert_close(weights, weights.flip(0))
    moments = [float(weights @ nodes**k) for k in (2, 4)]
    expected = (1, 3) if spread else (0, 0)
    assert moments == pytest.approx(expected, abs=1e-6)
    assert len(nodes) <= refine * _rules.MAX_NODES + 2
