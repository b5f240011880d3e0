"""Expectations of log priors under normal posteriors, and divergences from them."""

import math

import pytest
import torch

from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence
from skvi.expectations import _log_square
from skvi.priors import ARD, Horseshoe, Laplace, Normal, StudentT
from skvi.priors._heavy_tailed import LogUniform

SPECS = [
    Normal(0.3),
    Laplace(0.3),
    StudentT(),
    StudentT(1.0, 0.3),
    ARD(),
    ARD(0.5, 2.0),
    Horseshoe(),
    Horseshoe(0.03),
    LogUniform(),
]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=repr)


def build(spec, size):
    return spec.build(Layout({"coef": (1, size)}))


@pytest.fixture
def expect(integrate):
    """Expectation of log_prob under N(mean, std^2), on panels that shrink around 0."""

    def run(prior, mean, std):
        low, high = mean - 13 * std, mean + 13 * std
        powers = [sign * 10.0**k for k in range(-24, 12) for sign in (1, -1)]
        edges = [mean + k * std for k in range(-12, 13, 2)] + powers + [0.0]
        inside = [e for e in edges if low < e < high]

        def integrand(t):
            density = torch.exp(-0.5 * ((t - mean) / std) ** 2)
            return prior.log_prob(t[:, None]) * density / (std * math.sqrt(2 * math.pi))

        return float(integrate(integrand, low, *inside, high, n_nodes=60))

    return run


@every_spec
@pytest.mark.parametrize("std", [1e-8, 1e-3, 0.4, 1e4])
def test_expected_log_prob(spec, std, expect):
    """Against quadrature, for every ratio of mean, width and scale.

    Wrong variants: |mean| for E|theta|; variance for std; no tail beyond the last
    node; the mean of lambda left out.
    """
    ratios = torch.tensor([0.0, -0.3, 2.0, 9.0, 28.0, 1e3, -1e6], dtype=torch.float64)
    mean = std * ratios
    prior = build(spec, len(mean))
    actual = prior.expected_log_prob(mean, torch.full_like(mean, std))
    one = build(spec, 1)
    values = [expect(one, float(m), std) for m in mean]
    expected = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@every_spec
def test_one_batch_is_as_good_as_many(spec):
    """Nodes suit all coordinates at once, and large batches are cut."""
    mean = torch.tensor([0.0, 1e-8, 3.0, -1e5, 0.2], dtype=torch.float64)
    std = torch.tensor([1e-6, 1.0, 1e-4, 1e3, 50.0], dtype=torch.float64)
    single = build(spec, 1)
    alone = [single.expected_log_prob(mean[[j]], std[[j]]) for j in range(len(mean))]
    together = build(spec, 5000).expected_log_prob(mean.repeat(1000), std.repeat(1000))
    expected = torch.cat(alone).repeat(1000)
    torch.testing.assert_close(together, expected, rtol=1e-10, atol=1e-10)


@every_spec
def test_derivatives(spec, numeric_gradient, monkeypatch):
    """Finite differences, and Price: d/dvar is half the second derivative in the mean.

    Wrong variant: the scale of LogUniform's unit not detached, or left out.
    """
    moments = torch.tensor([0.3, -1.4, 1e-3, 0.5, 0.2, 2.0], dtype=torch.float64)
    prior = build(spec, 3)

    def value(x):
        return prior.expected_log_prob(x[:3], x[3:].sqrt()).sum()

    def gradient_of(x):
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(value(x), x, create_graph=True)
        return x, gradient

    x, gradient = gradient_of(moments)
    numeric = numeric_gradient(value, moments)
    torch.testing.assert_close(gradient.detach(), numeric, rtol=1e-6, atol=1e-8)
    second = torch.autograd.grad(gradient[:3].sum(), x)[0][:3]
    torch.testing.assert_close(0.5 * second, gradient[3:], rtol=1e-8, atol=1e-10)
    monkeypatch.setattr(_log_square, "KEPT", 0)  # computed again, not kept
    torch.testing.assert_close(gradient_of(moments)[1], gradient)


@every_spec
@pytest.mark.parametrize("kind", ["diag", "full"])
@pytest.mark.parametrize("width", [0.03, 1.0])  # narrow: -log prior is not convex
def test_kl_terms(spec, kind, width, make_normal, numeric_gradient):
    """Derivatives of the divergence in mean and variances, at a low weight.

    Wrong variant: the positive stand-in of the curvature in the precision's gradient.
    """
    q, prior = make_normal(3, kind, width=width), build(spec, 3)
    terms = KLDivergence(weight=0.7).terms(q, prior)
    covariance = q.covariance()

    def value(x):
        scale = torch.linalg.cholesky(covariance + width**2 * torch.diag(x[3:]))
        scale = scale.diagonal() if kind == "diag" else scale
        normal = NormalForm(q.mean + width * x[:3], scale)
        return KLDivergence(weight=0.7).closed_form(normal, prior)

    numeric = numeric_gradient(value, torch.zeros(6, dtype=torch.float64))
    by_mean = width * terms.gradient
    torch.testing.assert_close(by_mean, numeric[:3], rtol=1e-6, atol=1e-8)
    pull = terms.precision_gradient
    pull = pull if pull.ndim == 1 else pull.diagonal()
    by_variance = 0.5 * width**2 * pull
    torch.testing.assert_close(by_variance, numeric[3:], rtol=1e-6, atol=1e-7)
    assert (terms.curvature >= 0).all()


def test_student_t_is_normal_in_the_limit():
    # Wrong variant: a kernel that loses its digits for many degrees of freedom.
    moments = torch.tensor([[0.3, -2.0], [1.0, 0.1]], dtype=torch.float64)
    q = NormalForm(*moments)
    expected = KLDivergence().terms(q, build(Normal(0.7), 2))
    actual = KLDivergence().terms(q, build(StudentT(1e10, 0.7), 2))
    for name in ("value", "gradient", "curvature", "precision_gradient"):
        torch.testing.assert_close(
            getattr(actual, name), getattr(expected, name), rtol=1e-8, atol=1e-8
        )


def test_constant_of_log_uniform():
    """Its KL is 0 for a normal around 0, positive else, and without a unit."""
    prior = build(LogUniform(), 1)

    def kl(mean, std):
        moments = torch.tensor([[mean], [std]], dtype=torch.float64)
        normal = NormalForm(*moments)
        return float(KLDivergence().closed_form(normal, prior))

    assert kl(0.0, 0.01) == pytest.approx(0, abs=1e-11)
    assert 0 < kl(0.1, 1.0) < kl(1.0, 1.0) < kl(100.0, 1.0)
    assert kl(3e5, 1e5) == pytest.approx(kl(3.0, 1.0), abs=1e-11)
    # Far from 0 it is the log of |mean| / std, plus the constant.
    assert kl(1e6, 1.0) - kl(1e5, 1.0) == pytest.approx(math.log(10), abs=1e-9)


def test_expected_precision(integrate):
    """Against quadrature. Wrong variant: the precision at the posterior mean."""
    spec = ARD(0.5, 2.0)
    for mean, std in [(0.0, 1.0), (3.0, 0.2), (-1.0, 30.0)]:

        def integrand(t, mean=mean, std=std):
            density = torch.exp(-0.5 * ((t - mean) / std) ** 2)
            precision = (0.5 + 0.5) / (2.0 + t.square() / 2)
            return precision * density / (std * math.sqrt(2 * math.pi))

        edges = mean - 12 * std, mean - std, 0.0, mean + std, mean + 12 * std
        expected = float(integrate(integrand, *edges))
        actual = spec.expected_precision([[mean]], [[std]])
        assert actual.shape == (1, 1)
        assert float(actual[0, 0]) == pytest.approx(expected, rel=1e-9)
    wide = ARD().expected_precision([0.0, 5.0], [1e-9, 0.1])
    assert wide[0] == pytest.approx(0.5e6, rel=1e-5)
    assert wide[1] == pytest.approx(1 / 25, rel=2e-3)


def test_ten_thousand_parameters_in_one_call(generator):
    mean = torch.randn(10_000, generator=generator, dtype=torch.float64)
    prior = build(Horseshoe(), 10_000)
    values = prior.expected_log_prob(mean, torch.full_like(mean, 1e-3))
    assert torch.isfinite(values).all()
    for extreme in (0.0, math.inf):
        strange = prior.expected_log_prob(mean, torch.full_like(mean, extreme))
        assert strange.shape == mean.shape
