"""Quadrature rules against dense references, and the claims in their docstrings."""

import math

import pytest
import torch
from torch.nn.functional import softplus

from skvi.expectations import _rules
from skvi.expectations._logistic import (
    expect_sigmoid_power,
    expect_softplus,
    log_mixture_sigmoid,
)
from skvi.expectations._rules import normal_rule

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


def test_both_forms_of_the_reference_agree(integrate):
    nodes = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    weights = torch.exp(-nodes * nodes / 2)
    for std in (1.001, 4):
        dense = logistic_parts(BASE[:, None] + std * nodes) @ (weights / weights.sum())
        wide = reference(BASE, std, integrate)
        torch.testing.assert_close(wide, dense, rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize("std", [1e-3, 0.3, 1.0, 1.21, 2.0, 10.0, 300.0, 1e6])
@pytest.mark.parametrize("c", [0.05, 1.0, 2.5])
def test_expect_sigmoid_power(std, c, expect_normal):
    """sigmoid^c and its derivatives, at every spread.

    Wrong variants: c sigmoid^c for its derivative; the step's density of another c.
    """
    mean = torch.tensor([-9.0, -1.0, 0.4, 5.0], dtype=torch.float64) * max(std / 4, 1)

    def parts(f):
        value, q = torch.sigmoid(f) ** c, torch.sigmoid(-f)
        return torch.stack([value, c * value * q, c * value * q * ((c + 1) * q - 1)])

    panels = (-800, -100, -20, -5, 0, 5, 20, 100, 800)
    exact = torch.stack([expect_normal(parts, m, std, *panels) for m in mean], 1)
    for refine, tolerance in [(1, 1e-6), (2, 1e-7)]:
        actual = expect_sigmoid_power(mean, torch.full_like(mean, std), c, refine)
        torch.testing.assert_close(torch.stack(actual), exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("n_narrow", [0, 40])
def test_rows_of_every_width_together(n_narrow, integrate):
    """Each row is right whatever the others are, be few of them wide or many."""
    std = torch.tensor(STDS + n_narrow * [1.0], dtype=torch.float64)
    mean = torch.linspace(-3, 3, len(std), dtype=torch.float64)
    mixed = expect_softplus(mean, std)
    for i, (m, s) in enumerate(zip(mean, std, strict=True)):
        expected = reference(m[None], float(s), integrate)[:, 0]
        actual = torch.stack([part[i] for part in mixed])
        torch.testing.assert_close(actual, expected, rtol=1e-14, atol=3e-7)


def test_zero_spread_is_the_function_itself():
    for spread in (torch.zeros(25).double(), torch.full((25,), 1e-300).double()):
        values = torch.stack(expect_softplus(BASE, spread))
        torch.testing.assert_close(values, logistic_parts(BASE), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("n_nodes", "limit"), _rules._HERMITE)
def test_hermite_limits(n_nodes, limit, integrate):
    """The table claims 1e-9, and is not wasteful: at 1.5 times the spread it fails."""
    mean = torch.linspace(-12, 12, 481, dtype=torch.float64)
    errors = []
    for std in (limit, 1.5 * limit):
        nodes, weights = _rules.hermite_rule(n_nodes)
        values = logistic_parts(mean[:, None] + std * nodes) @ weights
        errors.append(float((values - reference(mean, std, integrate)).abs().max()))
    assert errors[0] < 1e-9 < errors[1]


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


@pytest.mark.parametrize("spread", [0.06, 0.3, 0.6, 0.7, 1.0, 2.0, 5.0, 30, 100])
def test_normal_rule_is_fine_enough(spread, integrate):
    # Wrong variant: 20 Gauss-Hermite nodes for every spread.
    mean, _ = rows(spread)
    exact = reference(mean, spread, integrate)
    errors = []
    for nodes, weights in [normal_rule(spread), _rules.hermite_rule(20)]:
        values = logistic_parts(mean[:, None] + spread * nodes) @ weights
        errors.append(float((values - exact).abs().max()))
    assert errors[0] < 2e-7
    assert spread < 5 or errors[1] > 1e-4
