"""Log-sum-exp and softmax of few classes, and the mixture behind, on dense grids."""

import math

import pytest
import torch

from skvi.expectations import _softmax
from skvi.expectations._conditioning import expect_conditioned
from skvi.expectations._logistic import (
    log_mixture_sigmoid,
)
from skvi.expectations._softmax import log_expect_softmax


def log_sigmoid_on_a_line(mean, std):
    """Log of E sigmoid(f) by the trapezoidal rule in f, of any size; std >= 0.05."""
    lift = mean + std**2
    low = torch.minimum(mean, lift.clamp(max=0)) - 12 * std - 40
    high = torch.maximum(mean, lift.clamp(max=0)) + 12 * std + 40
    ends, step = (float(low.min()), float(high.max())), min(std / 10, 0.1)
    x = torch.arange(*ends, step, dtype=torch.float64)[:, None]
    logs = torch.nn.functional.logsigmoid(x) - 0.5 * ((x - mean) / std) ** 2
    return torch.logsumexp(logs, 0) + math.log(step / std / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("std", [0.0, 0.3, 1.0, 3.0, 10.0, 30.0])
def test_log_sigmoid_keeps_its_digits_in_both_tails(std):
    """Against nodes on the line, to 2e-8 in the logarithm however small it is.

    Wrong variants: no reflection, or only below -variance; the tail without E exp(f).
    """
    below = torch.linspace(-12, 0, 49, dtype=torch.float64) * (std + 4)
    exact = torch.nn.functional.logsigmoid(below)
    exact = log_sigmoid_on_a_line(below, std) if std else exact
    variance = torch.full_like(below, std**2)
    positive, negative = log_mixture_sigmoid(below, variance)
    assert float((positive - exact).abs().max()) < 2e-8
    assert float((negative - torch.log1p(-exact.exp())).abs().max()) < 2e-8
    swapped = log_mixture_sigmoid(-below, variance)
    for found, expected in zip(swapped, (negative, positive), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    # Nothing is lost where the smallest double is too large, and nothing invented.
    far = log_mixture_sigmoid(below[:1] * 1e4, variance)[0]
    assert bool(torch.isfinite(far).all())
    bad = torch.tensor([math.nan, 1.0], dtype=torch.float64)
    assert log_mixture_sigmoid(bad, bad.flip(0))[0].isnan().all()


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


def on_a_grid(mean, covariance, n_line):
    """Expected log-sum-exp, softmax and its products, by a dense product rule."""
    f, log_weights = grid(mean, covariance, n_line)
    weights, p = log_weights.exp(), torch.softmax(f, 1)
    products = p.T @ (weights[:, None] * p)
    return mean[0] + weights @ torch.logsumexp(f, 1), weights @ p, products


@pytest.mark.parametrize(
    ("k", "width", "n_line", "rank"),
    [(3, 0.8, 300, 3), (3, 8.0, 700, 3), (3, 30.0, 2000, 3), (3, 4.0, 700, 1)]
    + [(4, 1.0, 65, 4)],
)
def test_correlated_classes(k, width, n_line, rank):
    """Also where f is wide: the widest class, which differs, has no nodes.

    Wrong variants: the variance of a contrast; E(1 - s) for E(1 - s)^2; classes that
    are left exchanged; nodes around zero and not around the kink; the same nodes where
    f lies nearly on a line.
    """
    generator = torch.Generator().manual_seed(k)
    root, mean = (
        width * torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((3, k, rank), (3, k))
    )
    covariance = root @ root.mT / k + 1e-4 * torch.eye(k)
    value, first, second = expect_conditioned(mean, covariance)
    for i in range(3 if n_line < 1000 else 1):
        exact, p, products = on_a_grid(mean[i], covariance[i], n_line)
        assert float(value[i]) == pytest.approx(float(exact), abs=1e-6)
        assert first[i].numpy() == pytest.approx(p.numpy(), abs=1e-6)
        hessian = (p.diag() - products).numpy()
        assert second[i].numpy() == pytest.approx(hessian, abs=2e-6)
