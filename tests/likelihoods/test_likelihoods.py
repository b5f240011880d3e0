"""Student-t noise and counts: sums, expectations, derivatives, propriety."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import minimize

from skvi.likelihoods import (
    Likelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    StudentTLikelihood,
)
from skvi.losses import BetaLoss, GammaLoss, LogLoss

COUNTS = [
    PoissonLikelihood(),
    NegativeBinomialLikelihood(0.01),
    NegativeBinomialLikelihood(),
    NegativeBinomialLikelihood(4.0),
]
NOISES = [StudentTLikelihood(df, s) for df, s in ((4.0, 1.0), (1.0, 0.3), (50, 2))]
LOSSES = [LogLoss(), BetaLoss(1.5), GammaLoss(1.5)]
every_count = pytest.mark.parametrize("likelihood", COUNTS, ids=repr)
every_noise = pytest.mark.parametrize("likelihood", NOISES, ids=repr)
every_likelihood = pytest.mark.parametrize("likelihood", [*COUNTS, *NOISES], ids=repr)
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)


def as_rows(values):
    return torch.as_tensor(values, dtype=torch.float64)


def column(values):
    return as_rows(values).reshape(1, -1, 1)


def reference(likelihood, f):
    """The distribution of y as scipy has it."""
    if isinstance(likelihood, PoissonLikelihood):
        return stats.poisson(np.exp(f))
    if isinstance(likelihood, NegativeBinomialLikelihood):
        r = 1 / likelihood.dispersion
        return stats.nbinom(r, r / (r + np.exp(f)))
    return stats.t(likelihood.df, f, likelihood.noise_scale)


@every_likelihood
def test_log_prob_is_scipys(likelihood):
    """Wrong variants: the dispersion for its inverse; no Jacobian of the scale."""
    f, y = np.array([-3.0, 0.0, 1.2, 4.0, 13.0]), np.array([0, 2, 1, 60, 440_000])
    law = reference(likelihood, f)
    expected = law.logpdf(y) if isinstance(likelihood, StudentTLikelihood) else None
    expected = law.logpmf(y) if expected is None else expected
    found = likelihood.log_prob(column(f), as_rows(y))[0].numpy()
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-9)


@every_likelihood
def test_derivatives(likelihood):
    """Wrong variant: the curvature of the noise without the squared distance."""
    f, y = column([-2.0, 0.1, 0.9, 3.0]), as_rows([0.0, 2, 5, 20])
    generic = Likelihood.log_prob_derivatives(likelihood, f, y)
    for a, b in zip(likelihood.log_prob_derivatives(f, y), generic, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(likelihood._log_prob_slope(f, y), generic[1])


@every_likelihood
def test_sample(likelihood, generator, z_score):
    """Wrong variant: Gamma-distributed precisions with mean `df`."""
    f = as_rows([-1.0, 0.5, 2.0])
    draws = likelihood.sample(f.expand(50_000, -1)[..., None], generator)
    assert draws.shape == (50_000, 3)
    law = reference(likelihood, f.numpy())
    for point in (0.0, 1.0, 4.0):
        assert z_score((draws <= point).double(), law.cdf(point)) < 5
    if not isinstance(likelihood, StudentTLikelihood):
        torch.testing.assert_close(likelihood.mean(f[None, :, None])[0], f.exp())


# --- integrals of powers ---------------------------------------------------------


@every_noise
@pytest.mark.parametrize("c", [0.8, 1, 1.1, 2, 5])
def test_power_integrals_of_student_t(likelihood, c):
    """Wrong variant: the power of the scale, 1 - c, with the other sign."""
    law = reference(likelihood, 0.0)
    expected = quad(lambda y: law.pdf(y) ** c, -np.inf, np.inf, epsabs=1e-12)[0]
    found = likelihood.log_power_integral(column([0.0, 3.0]), c)
    assert found.exp().numpy() == pytest.approx(expected, rel=1e-7)


def test_power_integrals_that_are_infinite():
    with pytest.raises(ValueError, match=r"must exceed 1. Use a larger power"):
        StudentTLikelihood(1.0, 1.0).log_power_integral(column([0.0]), 0.5)
    with pytest.raises(ValueError, match="up to order 16"):
        PoissonLikelihood().log_power_integral(column([0.0]), 17)


RATES = [-30.0, -0.5, 0.3, 2, 4, 4.8, 5.2, 6, 7]


@every_count
@pytest.mark.parametrize("c", [0.5, 1.1, 3])
def test_power_sums_are_brute_force_sums(likelihood, c):
    """Wrong variants: no half weight at the joint; a fixed window around the mode."""
    found = likelihood.log_power_integral(column(RATES), c)[0]
    for f, actual in zip(RATES, found, strict=True):
        law = reference(likelihood, f)
        y = np.arange(int(law.ppf(1 - 1e-15) / min(c, 1) * 2.5) + 60)
        terms = likelihood.log_prob(column([f]).expand(1, len(y), 1), as_rows(y))
        expected = float(torch.logsumexp(c * terms[0], 0))
        assert float(actual) == pytest.approx(expected, abs=2e-10)


@pytest.mark.parametrize("f", [9.19, 9.23, 13.8, 25.0])
@pytest.mark.parametrize("c", [1.1, 2.0])
def test_power_sums_of_large_rates(f, c):
    """The normal's integral, and continuity where the expansion takes over."""
    found = float(PoissonLikelihood().log_power_integral(column([f]), c))
    normal = 0.5 * (1 - c) * (math.log(2 * math.pi) + f) - 0.5 * math.log(c)
    assert found == pytest.approx(normal + (c - 1 / c) / 24 * math.exp(-f), abs=1e-9)
    wide = float(NegativeBinomialLikelihood(1e-7).log_power_integral(column([9.2]), c))
    poisson = float(PoissonLikelihood().log_power_integral(column([9.2]), c))
    assert wide == pytest.approx(poisson, abs=1e-3)  # dispersion 1e-7 * 10^4


@every_count
@pytest.mark.parametrize("c", [1.1, 3.0])
def test_power_sums_are_differentiable(likelihood, c):
    """Twice in f. Wrong variant: nodes that follow f and are not detached."""
    f = column(RATES[1:]).requires_grad_()
    value = likelihood.log_power_integral(f, c)
    (slope,) = torch.autograd.grad(value.sum(), f, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), f)
    step = 1e-3
    exact = [
        likelihood._log_power_sum(f.detach()[..., 0] + h, c) for h in (-step, step)
    ]
    middle = likelihood._log_power_sum(f.detach()[..., 0], c)
    numeric = (exact[1] - exact[0]) / (2 * step)
    torch.testing.assert_close(slope[..., 0].detach(), numeric, rtol=1e-5, atol=2e-6)
    numeric = (exact[1] - 2 * middle + exact[0]) / step**2
    torch.testing.assert_close(bend[..., 0], numeric, rtol=1e-3, atol=2e-4)


def test_learned_dispersion_has_a_gradient():
    """Wrong variant: the tabulated sum, which does not know the dispersion."""
    spec, f = NegativeBinomialLikelihood("learn"), column([0.3, 2.0, 5.0])
    y = as_rows([1.0, 0.0, 200.0])

    def total(hyper):
        return GammaLoss(1.5)(spec.bind(hyper), f, y).sum()

    hyper = as_rows([-0.4]).requires_grad_()
    (slope,) = torch.autograd.grad(total(hyper), hyper)
    numeric = (total(hyper.detach() + 1e-5) - total(hyper.detach() - 1e-5)) / 2e-5
    assert float(slope) == pytest.approx(float(numeric), rel=1e-6)
    assert spec.learned == ("dispersion",)
    assert spec.initial_hyper(as_rows([0.0, 0, 4, 8])).shape == (1,)
    with pytest.raises(ValueError, match="no value before a fit"):
        spec.log_prob(f, y)


def test_learned_scale_of_student_t():
    spec = StudentTLikelihood(3.0, noise_scale="learn")
    bound = spec.bind(as_rows([math.log(0.3)]))
    f, y = column([0.0, 1.0]), as_rows([0.5, 9.0])
    expected = StudentTLikelihood(3.0, 0.3).log_prob(f, y)
    torch.testing.assert_close(bound.log_prob(f, y), expected)
    assert bound.df == 3.0
    assert spec.noise_scale == "learn"


# --- expectations ----------------------------------------------------------------

MEANS = [-4.0, 0.2, 1.0, 3.0, 5.0]
TARGETS = [0.0, 0.0, 7.0, 15.0, 150.0]


@every_loss
@every_likelihood
@pytest.mark.parametrize("std", [0.0, 1e-3, 2.0])
def test_expected_loss(likelihood, loss, std, expect_normal):
    """Against quadrature; both derivatives against differences of the value.

    Wrong variants: nodes in units of the prior's spread for y = 150, whose peak is
    narrow; the curvature of exp without the squared slope; rows beyond the zoom.
    """
    mean, y = as_rows(MEANS), as_rows(TARGETS)
    spread = std * torch.linspace(0.5, 1, len(mean), dtype=torch.float64)

    def expected(m, s, refine=1):
        return loss.expected(likelihood, m, s, y, refine)

    value, first, second = expected(mean, spread)
    for m, s, t, actual in zip(mean, spread, y, value, strict=True):

        def row(f, t=t):
            return loss(likelihood, f[:, None, None], t[None])[:, 0]

        exact = row(m[None]) if std == 0 else None
        if exact is None:
            kinks = [float(m + k * s) for k in range(-8, 9, 2)]
            exact = expect_normal(row, m, s, *kinks)
        assert float(actual) == pytest.approx(float(exact), rel=1e-8, abs=2e-8)
    for a, b in zip(expected(mean, spread, 2), (value, first, second), strict=True):
        # Expectations of softplus, exact to 1e-7, are multiplied by 1 / dispersion.
        size = 1 + 1 / getattr(likelihood, "dispersion", 1)
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7 * size)
    step = 1e-4
    up, down = (expected(mean + h, spread)[0] for h in (step, -step))
    rough = 1e-4 if loss.is_log_loss else 3e-6  # rounding: values near 1e3
    torch.testing.assert_close(first, (up - down) / (2 * step), rtol=1e-5, atol=rough)
    if std > 0.1:
        step = 1e-3
        up, down = (expected(mean, (spread**2 + h).sqrt())[0] for h in (step, -step))
        torch.testing.assert_close(second, (up - down) / step, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("likelihood", [*COUNTS[1:], *NOISES], ids=repr)
@every_loss
def test_wide_posteriors(likelihood, loss, integrate):
    """Against panels that narrow around the target. Wrong variant: nodes in steps of
    the posterior's standard deviation."""
    std, targets = 30.0, [0.0, 3.0, 90.0]
    means = [-3.0, 0.5, 4.0]
    mean, y = as_rows(means), as_rows(targets)
    found = loss.expected(likelihood, mean, torch.full_like(mean, std), y)[0]
    for m, t, actual in zip(means, y, found, strict=True):

        def integrand(f, m=m, t=t):
            density = torch.exp(-0.5 * ((f - m) / std) ** 2) / math.sqrt(2 * math.pi)
            return loss(likelihood, f[:, None, None], t[None])[:, 0] * density / std

        near = [c + k for c in (0.0, float(t), math.log(t + 1)) for k in range(-8, 9)]
        edges = np.linspace(m - 9 * std, m + 9 * std, 28).tolist() + near
        exact = integrate(integrand, *edges, n_nodes=60)
        assert float(actual) == pytest.approx(float(exact), rel=1e-6, abs=1e-6)


def test_expected_rate_is_that_of_a_lognormal():
    """Wrong variant: exp(m) for exp(m + v / 2)."""
    value = LogLoss().expected(
        PoissonLikelihood(), as_rows([1.0]), as_rows([0.5]), as_rows([0.0])
    )
    for part in value:
        assert float(part) == pytest.approx(math.exp(1.125))


@every_count
@every_loss
def test_counts_far_out(likelihood, loss):
    """No NaN anywhere. Wrong variant: exp(f) beyond 709."""
    f = column([-1000.0, -100, 100, 800]).requires_grad_()
    y = as_rows([0.0, 3, 1e6, 2])
    value = loss(likelihood, f, y)
    (slope,) = torch.autograd.grad(value.sum(), f)
    assert bool(torch.isfinite(value).all() & torch.isfinite(slope).all())
    mean = f.detach()[0, :, 0]
    for part in loss.expected(likelihood, mean, torch.ones_like(mean), y):
        assert bool(torch.isfinite(part).all())


# --- propriety -------------------------------------------------------------------


def minimizer(loss, build, y, mass, start):
    """Population minimizer over f and the logarithm of a second parameter."""

    def risk(parameters):
        leaf = as_rows(parameters).requires_grad_()
        likelihood = build(leaf[1:])
        f = leaf[0].reshape(1, 1, 1)
        value = loss(likelihood, f, y)[0] @ mass
        (slope,) = torch.autograd.grad(value, leaf)
        return value.item(), slope.numpy()

    fit = minimize(risk, start, jac=True, method="BFGS", options={"gtol": 1e-8})
    return fit.x


PROPER = [LogLoss(), *map(BetaLoss, (1.1, 1.5)), *map(GammaLoss, (1.1, 1.5, 2))]
every_proper = pytest.mark.parametrize("loss", PROPER, ids=repr)


@every_proper
def test_proper_for_counts(loss):
    """Poisson counts with rate 3. Wrong variant: the sum replaced by an integral."""
    y = as_rows(np.arange(60.0))
    mass = as_rows(stats.poisson(3.0).pmf(np.arange(60)))
    found = minimizer(loss, lambda _: PoissonLikelihood(), y, mass, [0.3])
    assert found[0] == pytest.approx(math.log(3), abs=1e-6)


@every_proper
def test_proper_for_mean_and_dispersion(loss):
    """Counts of mean 3 and dispersion 0.7. Wrong variants: as for the normal."""
    spec, y = NegativeBinomialLikelihood("learn"), np.arange(300.0)
    mass = as_rows(reference(NegativeBinomialLikelihood(0.7), math.log(3)).pmf(y))
    found = minimizer(loss, spec.bind, as_rows(y), mass, [0.7, 0.0])
    assert found == pytest.approx([math.log(3), math.log(0.7)], abs=1e-5)


@every_proper
def test_proper_for_location_and_scale(loss):
    """Student-t data. Wrong variant: the integral without the power of the scale."""
    t, w = np.polynomial.legendre.leggauss(200)
    y = 1.3 * np.sinh(6 * t)  # far into the tails
    mass = w * 7.8 * np.cosh(6 * t) * stats.t(4, 0, 1.3).pdf(y)
    spec = StudentTLikelihood(4.0, noise_scale="learn")
    found = minimizer(loss, spec.bind, as_rows(y), as_rows(mass), [0.2, 0.0])
    assert found == pytest.approx([0, math.log(1.3)], abs=1e-5)


@every_likelihood
@pytest.mark.parametrize("robust", [BetaLoss, GammaLoss])
def test_robust_losses_tend_to_the_log_loss(likelihood, robust):
    """Gradients in f, linearly in order - 1. Wrong variant: a constant slope left."""
    y, f = as_rows([0.0, 2, 5, 20]), column([-2.0, 0.1, 0.9, 3.0]).requires_grad_()
    (limit,) = torch.autograd.grad(LogLoss()(likelihood, f, y).sum(), f)
    (slope,) = torch.autograd.grad(robust(1 + 1e-6)(likelihood, f, y).sum(), f)
    torch.testing.assert_close(slope, limit, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "spec",
    [
        StudentTLikelihood(0.0),
        StudentTLikelihood(noise_scale=0),
        NegativeBinomialLikelihood(0.0),
    ],
)
def test_bad_parameters(spec):
    with pytest.raises(ValueError, match=r"must be a float in the range \("):
        spec.validate()
