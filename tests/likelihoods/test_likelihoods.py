"""Student-t noise and counts: sums, expectations, derivatives, propriety."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
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


# --- integrals of powers ---------------------------------------------------------


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


# --- expectations ----------------------------------------------------------------

MEANS = [-4.0, 0.2, 1.0, 3.0, 5.0]
TARGETS = [0.0, 0.0, 7.0, 15.0, 150.0]


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
def test_proper_for_mean_and_dispersion(loss):
    """Counts of mean 3 and dispersion 0.7. Wrong variants: as for the normal."""
    spec, y = NegativeBinomialLikelihood("learn"), np.arange(300.0)
    mass = as_rows(reference(NegativeBinomialLikelihood(0.7), math.log(3)).pmf(y))
    found = minimizer(loss, spec.bind, as_rows(y), mass, [0.7, 0.0])
    assert found == pytest.approx([math.log(3), math.log(0.7)], abs=1e-5)


@every_likelihood
@pytest.mark.parametrize("robust", [BetaLoss, GammaLoss])
def test_robust_losses_tend_to_the_log_loss(likelihood, robust):
    """Gradients in f, linearly in order - 1. Wrong variant: a constant slope left."""
    y, f = as_rows([0.0, 2, 5, 20]), column([-2.0, 0.1, 0.9, 3.0]).requires_grad_()
    (limit,) = torch.autograd.grad(LogLoss()(likelihood, f, y).sum(), f)
    (slope,) = torch.autograd.grad(robust(1 + 1e-6)(likelihood, f, y).sum(), f)
    torch.testing.assert_close(slope, limit, rtol=1e-4, atol=1e-4)
