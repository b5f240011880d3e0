"""Losses and likelihoods: normalization, expectations, derivatives, propriety."""

import math

import pytest
import torch
from scipy.optimize import minimize, minimize_scalar

from skvi.likelihoods import (
    BernoulliLikelihood,
    GaussianLikelihood,
    Likelihood,
)
from skvi.losses import BetaLoss, GammaLoss, LogLoss, Loss

# Others: tests/linear_model, tests/likelihoods.
LIKELIHOODS = [BernoulliLikelihood(), GaussianLikelihood(1.0), GaussianLikelihood(0.3)]
LOSSES = [
    *(LogLoss(), BetaLoss(1.01), BetaLoss(2.0)),
    *(GammaLoss(), GammaLoss(1.01)),
]
every_likelihood = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
every_std = pytest.mark.parametrize("std", [0.0, 1e-3, 0.6, 4.0, 1e3])

F = torch.tensor([-30.0, -2.0, -0.1, 0.0, 0.7, 3.0, 12.0], dtype=torch.float64)


def over_targets(likelihood, function, f, integrate):
    """Integrate (or sum) a function of (f, y) over every target y, for scalar f."""
    if isinstance(likelihood, BernoulliLikelihood):
        values = [function(f.reshape(1, 1, 1), torch.tensor([y])) for y in (0.0, 1.0)]
        return float(sum(values))
    width = 14 * likelihood.noise_scale

    def integrand(y):
        return function(f.reshape(1, 1, 1).expand(1, len(y), 1), y)[0]

    return float(integrate(integrand, f - width, f, f + width))


def some_targets(likelihood, f):
    if isinstance(likelihood, BernoulliLikelihood):
        return (torch.arange(len(f)) % 2).to(f.dtype)
    return 0.5 * f - 0.2


@every_likelihood
@pytest.mark.parametrize("c", [0.5, 1, 1.5, 3])
def test_log_power_integral(likelihood, c, integrate):
    # Wrong variants: (c - 1) for (1 - c); + log(c)/2 for the normal.
    value = likelihood.log_power_integral(F[None, :, None], c)[0]
    for f, actual in zip(F, value, strict=True):

        def power(f, y):
            return torch.exp(c * likelihood.log_prob(f, y))

        expected = math.log(over_targets(likelihood, power, f, integrate))
        assert float(actual) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@every_likelihood
def test_mean_and_sample(likelihood, integrate, generator, z_score):
    f = F[1:-1]
    mean = likelihood.mean(f[None, :, None])[0]
    draws = likelihood.sample(f.expand(100_000, -1)[..., None], generator)
    squares = []
    for one, actual in zip(f, mean, strict=True):
        moments = [
            over_targets(
                likelihood,
                lambda f, y, k=k: likelihood.log_prob(f, y).exp() * y**k,
                one,
                integrate,
            )
            for k in (1, 2)
        ]
        assert float(actual) == pytest.approx(moments[0], rel=1e-10, abs=1e-12)
        squares.append(moments[1])
    assert z_score(draws, mean) < 5
    # Wrong variant: noise variance for the scale, wherever it is not 1.
    assert z_score(draws**2, torch.tensor(squares)) < 5


@every_likelihood
def test_log_prob_derivatives(likelihood):
    # Wrong variant: the sign of the label left out of the first derivative.
    y, step, f = some_targets(likelihood, F), 1e-4, F[None, :, None]
    value, first, second = likelihood.log_prob_derivatives(f, y)
    base = Likelihood.log_prob_derivatives(likelihood, f, y)
    for actual, generic in zip((value, first, second), base, strict=True):
        torch.testing.assert_close(actual, generic, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(likelihood._log_prob_slope(f, y), first)
    up, down = likelihood.log_prob(f + step, y), likelihood.log_prob(f - step, y)
    torch.testing.assert_close((up - down) / (2 * step), first, rtol=5e-6, atol=1e-8)
    curvature = (up - 2 * value + down) / step**2
    torch.testing.assert_close(curvature, second, rtol=1e-4, atol=2e-6)  # rounding


def expected_by_quadrature(loss, likelihood, mean, std, y, expect_normal):
    rows = []
    for m, s, target in zip(mean, std, y, strict=True):
        if s == 0:
            rows.append(loss(likelihood, m.reshape(1, 1, 1), target[None])[0, 0])
        else:
            rows.append(
                expect_normal(
                    lambda t, v=target: loss(likelihood, t[:, None, None], v[None])[
                        :, 0
                    ],
                    m,
                    s,
                    *(-1000, -60, -8, -2, 0, 2, 8, 60, 1000),
                )
            )
    return torch.stack(rows)


@every_loss
@every_likelihood
@every_std
def test_expected_loss(loss, likelihood, std, expect_normal):
    """The value against quadrature, and the two derivative identities.

    Wrong variants: the second derivative in the variance without its factor 2; the
    sign of the slope for y = 0; too few nodes for the spread, or for the noise scale.
    """
    mean, y = F[1:], some_targets(likelihood, F[1:])
    std = std * torch.linspace(0.5, 1, len(mean), dtype=torch.float64)

    def expected(mean, std, refine=1):
        return loss.expected(likelihood, mean, std, y, refine)

    value, first, second = expected(mean, std)
    reference = expected_by_quadrature(loss, likelihood, mean, std, y, expect_normal)
    torch.testing.assert_close(value, reference, rtol=1e-8, atol=3e-7)
    for a, b in zip(expected(mean, std, 2), (value, first, second), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=3e-7)
    step = 1e-3
    slope = (expected(mean + step, std)[0] - expected(mean - step, std)[0]) / (2 * step)
    torch.testing.assert_close(first, slope, rtol=1e-5, atol=3e-6)
    if bool((std > 0.1).all()):
        up, down = [expected(mean, (std**2 + h).sqrt())[0] for h in (step, -step)]
        torch.testing.assert_close(second, (up - down) / step, rtol=1e-4, atol=1e-5)


@every_loss
@every_likelihood
def test_generic_expected_loss(loss, likelihood):
    """What a user's loss inherits."""
    mean, y = F[1:-1], some_targets(likelihood, F[1:-1])
    std = torch.linspace(0.1, 2, len(mean), dtype=torch.float64)
    generic = Loss.expected(loss, likelihood, mean, std, y)
    for a, b in zip(loss.expected(likelihood, mean, std, y), generic, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=2e-4)


def test_log_loss_is_the_negative_log_density():
    # Wrong variant: the sign.
    likelihood, y = GaussianLikelihood(2.0), torch.tensor([1.0]).double()
    value = LogLoss()(likelihood, torch.tensor([[[0.4]]]).double(), y)
    assert float(value) == pytest.approx(
        0.5 * 0.3**2 + math.log(2 * (2 * math.pi) ** 0.5)
    )


@every_likelihood
@pytest.mark.parametrize("beta", [1.01, 1.5, 2, 3.5])
def test_beta_loss_is_its_definition(likelihood, beta, integrate):
    f, y = F[3:], some_targets(likelihood, F[3:])
    value = BetaLoss(beta)(likelihood, f[None, :, None], y)[0]
    density = likelihood.log_prob(f[None, :, None], y)[0].exp()

    def power(f, y):
        return likelihood.log_prob(f, y).exp() ** beta

    integrals = [over_targets(likelihood, power, one, integrate) for one in f]
    expected = torch.tensor(integrals, dtype=f.dtype) / beta - density ** (beta - 1) / (
        beta - 1
    )
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


@every_likelihood
@pytest.mark.parametrize("gamma", [1.01, 1.5, 2, 3.5])
def test_gamma_loss_is_its_definition(likelihood, gamma, integrate):
    """Wrong variants: the sign of the normalizer; gamma for its inverse in it."""
    f, y = F[3:], some_targets(likelihood, F[3:])
    value = GammaLoss(gamma)(likelihood, f[None, :, None], y)[0]
    density = likelihood.log_prob(f[None, :, None], y)[0].exp()

    def power(f, y):
        return likelihood.log_prob(f, y).exp() ** gamma

    integrals = [over_targets(likelihood, power, one, integrate) for one in f]
    integrals = torch.tensor(integrals, dtype=f.dtype)
    expected = density ** (gamma - 1) / integrals ** ((gamma - 1) / gamma)
    expected = -gamma / (gamma - 1) * expected
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


@every_likelihood
@pytest.mark.parametrize("order", [30.0, 1e4])
def test_large_orders_stay_finite(likelihood, order):
    """Wrong variant: the power and its normalizer exponentiated one by one."""
    y, f = some_targets(likelihood, F), F[None, :, None].clone().requires_grad_()
    value = GammaLoss(order)(likelihood, f, y)
    (slope,) = torch.autograd.grad(value.sum(), f)
    assert bool(torch.isfinite(value).all() & torch.isfinite(slope).all())
    std = torch.full_like(F, 0.4)
    for part in GammaLoss(order).expected(likelihood, F, std, y):
        assert bool(torch.isfinite(part).all())


@every_likelihood
@pytest.mark.parametrize("robust", [BetaLoss, GammaLoss])
def test_robust_losses_tend_to_the_log_loss(likelihood, robust):
    """The gradient in f is that of the log loss in the limit, linearly in order - 1."""
    y, f = some_targets(likelihood, F), F[None, :, None].clone().requires_grad_()
    (limit,) = torch.autograd.grad(LogLoss()(likelihood, f, y).sum(), f)
    # p^(beta - 1) differs from 1 by (beta - 1) log p.
    size = 1 + float(likelihood.log_prob(f.detach(), y).abs().max())
    for delta in (1e-5, 1e-8):
        (slope,) = torch.autograd.grad(robust(1 + delta)(likelihood, f, y).sum(), f)
        tolerance = 2 * delta * size
        torch.testing.assert_close(slope, limit, rtol=tolerance, atol=tolerance)


class WrongSign(BetaLoss):
    """The normalizer is added where it belongs subtracted, and the other way round."""

    def __call__(self, likelihood, f, y):
        integral = likelihood.log_power_integral(f, self.beta).exp() / self.beta
        return super().__call__(likelihood, f, y) - 2 * integral


class NoNormalizer(BetaLoss):
    def __call__(self, likelihood, f, y):
        integral = likelihood.log_power_integral(f, self.beta).exp() / self.beta
        return super().__call__(likelihood, f, y) - integral


class WrongGammaSign(GammaLoss):
    """The sign of a known library."""

    def __call__(self, likelihood, f, y):
        log_norm = likelihood.log_power_integral(f, self.gamma)
        factor = torch.exp(2 * (self.gamma - 1) / self.gamma * log_norm)
        return super().__call__(likelihood, f, y) * factor


ORDERS = [1.1, 2, 3]
PROPER = [LogLoss(), *map(BetaLoss, ORDERS), *map(GammaLoss, ORDERS)]
IMPROPER = [WrongSign(1.5), NoNormalizer(1.5), WrongGammaSign(1.5)]


def best_log_odds(loss, p):
    """Population minimizer over f for Bernoulli data with P(y = 1) = p."""
    y = torch.tensor([0.0, 1.0], dtype=torch.float64)
    prob = torch.tensor([1 - p, p], dtype=torch.float64)

    def risk(f):
        rows = torch.full((1, 2, 1), float(f), dtype=torch.float64)
        return float(loss(BernoulliLikelihood(), rows, y)[0] @ prob)

    return minimize_scalar(risk, bounds=(-8, 8), options={"xatol": 1e-9}).x


def best_normal(loss, integrate):
    """Population minimizer over mean and noise scale for N(0, 1) data."""

    def risk(parameters):
        likelihood = GaussianLikelihood(math.exp(parameters[1]))

        def integrand(y):
            f = torch.full((1, len(y), 1), float(parameters[0]), dtype=torch.float64)
            density = torch.exp(-0.5 * y**2) / math.sqrt(2 * math.pi)
            return loss(likelihood, f, y)[0] * density

        return float(integrate(integrand, -10, 0, 10, n_nodes=200))

    bounds = [(-2, 2), (-1.5, 1.5)]
    fit = minimize(risk, [0.5, 0.4], bounds=bounds, tol=1e-13, method="L-BFGS-B")
    return fit.x[0], math.exp(fit.x[1])


@pytest.mark.parametrize("p", [0.1, 0.8])
@pytest.mark.parametrize("loss", PROPER, ids=repr)
def test_losses_are_proper_for_classes(loss, p):
    expected = math.log(p / (1 - p))
    assert best_log_odds(loss, p) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("loss", PROPER, ids=repr)
def test_losses_are_proper_for_a_normal_with_its_noise(loss, integrate):
    """N(0, 1) data give mean 0 and noise scale 1."""
    assert best_normal(loss, integrate) == pytest.approx((0, 1), abs=1e-4)


@pytest.mark.parametrize("loss", IMPROPER, ids=repr)
def test_propriety_tells_wrong_normalizers_apart(loss, integrate):
    assert abs(best_log_odds(loss, 0.3) - math.log(3 / 7)) > 0.1
    assert abs(best_normal(loss, integrate)[1] - 1) > 0.1


def test_bernoulli_far_out():
    # Wrong variants: log(sigmoid(f)); logaddexp, which has no second derivative.
    f = torch.tensor([-800.0, 800.0], dtype=torch.float64)[None, :, None]
    likelihood, y = BernoulliLikelihood(), torch.ones(2, dtype=torch.float64)
    torch.testing.assert_close(
        likelihood.log_prob(f, y)[0], torch.tensor([-800.0, 0]).double()
    )
    mean = f[0, :, 0]
    for loss in LOSSES:
        for part in loss.expected(likelihood, mean, torch.ones_like(mean), y):
            assert bool(torch.isfinite(part).all())
    assert float(likelihood.log_power_integral(f, 1.5).abs().max()) < 1e-12


@pytest.mark.parametrize(
    "spec",
    [BetaLoss(1), BetaLoss(0.5), GammaLoss(1), GammaLoss(-1), GaussianLikelihood(0)],
)
def test_bad_parameters(spec):
    with pytest.raises(ValueError, match=r"must be a float in the range \("):
        spec.validate()
