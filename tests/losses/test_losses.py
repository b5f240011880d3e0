"""Losses, built in and given."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.preprocessing import StandardScaler

from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import (
    BernoulliLikelihood,
    GaussianLikelihood,
    Likelihood,
)
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import BetaLoss, GammaLoss, LogLoss, Loss, RegularizedLoss
from skvi.losses._callable import CallableLoss
from skvi.neural_network import BayesianMLPRegressor

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


def some_targets(likelihood, f):
    if isinstance(likelihood, BernoulliLikelihood):
        return (torch.arange(len(f)) % 2).to(f.dtype)
    return 0.5 * f - 0.2


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


ORDERS = [1.1, 2, 3]
PROPER = [LogLoss(), *map(BetaLoss, ORDERS), *map(GammaLoss, ORDERS)]


def best_log_odds(loss, p):
    """Population minimizer over f for Bernoulli data with P(y = 1) = p."""
    y = torch.tensor([0.0, 1.0], dtype=torch.float64)
    prob = torch.tensor([1 - p, p], dtype=torch.float64)

    def risk(f):
        rows = torch.full((1, 2, 1), float(f), dtype=torch.float64)
        return float(loss(BernoulliLikelihood(), rows, y)[0] @ prob)

    return minimize_scalar(risk, bounds=(-8, 8), options={"xatol": 1e-9}).x


@pytest.mark.parametrize("p", [0.1, 0.8])
@pytest.mark.parametrize("loss", PROPER, ids=repr)
def test_losses_are_proper_for_classes(loss, p):
    expected = math.log(p / (1 - p))
    assert best_log_odds(loss, p) == pytest.approx(expected, abs=1e-5)


def absolute(f, y):
    return (f - y).abs()


def hinge(f, y):
    return torch.relu(1 - (2 * y - 1) * f)


def smooth(f, y):
    return torch.cos(f - y)


def as_rows(values):
    return torch.as_tensor(values, dtype=torch.float64)


def normal_pdf(x):
    return math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def normal_cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


def expected_ramp(m, s):
    """E max(g, 0), and its first two derivatives in m, of g ~ N(m, s^2)."""
    u = m / s
    value = m * normal_cdf(u) + s * normal_pdf(u)
    return np.array([value, normal_cdf(u), normal_pdf(u) / s])


def expected_absolute(m, s, y):
    up, down = expected_ramp(m - y, s), expected_ramp(y - m, s)
    return up + down * [1, -1, 1]


def expected_hinge(m, s, y):
    sign = 2 * y - 1
    return expected_ramp(1 - sign * m, s) * [1, -sign, 1]


def expected_cosine(m, s, y):
    return math.exp(-0.5 * s * s) * np.array(
        [math.cos(m - y), -math.sin(m - y), -math.cos(m - y)]
    )


EXACT = {absolute: expected_absolute, hinge: expected_hinge, smooth: expected_cosine}
by_name = {"ids": lambda value: getattr(value, "__name__", str(value))}


@pytest.mark.parametrize("std", [1e-3, 0.03, 0.5, 3.0])
@pytest.mark.parametrize("function", EXACT, **by_name)
def test_expectations_of_kinks(function, std):
    """Closed forms: 1e-5 of the kink's width. The derivatives are Stein's identities.

    Wrong variants: autograd through the kink (a curvature of 0); z^2 for z^2 - 1;
    forty nodes (wrong by 1e-2).
    """
    mean, y = as_rows([-1.0, 0.2, 0.9, 1.0, 4.0]), as_rows([0.0, 0, 1, 1, 0])
    spread = torch.full_like(mean, std)
    found = CallableLoss(function).expected(BernoulliLikelihood(), mean, spread, y)
    for i, (m, t) in enumerate(zip(mean, y, strict=True)):
        expected = EXACT[function](float(m), std, float(t))
        actual = np.array([float(part[i]) for part in found])
        assert actual[0] == pytest.approx(expected[0], abs=1e-5 * max(std, 0.01))
        assert actual[1] == pytest.approx(expected[1], abs=2e-5)
        assert actual[2] == pytest.approx(expected[2], abs=2e-5 / std)


X, Y = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X)[:, :4]


def test_what_functions_cannot_do():
    x, y = load_iris(return_X_y=True)
    with pytest.raises(IncompatibleComponentsError, match="to be integrated over"):
        BayesianLogisticRegression(loss=lambda f, y: f.sum(-1), prior="normal").fit(
            x, y
        )
    with pytest.raises(IncompatibleComponentsError, match="a loss that depends on"):
        BayesianMLPRegressor(
            skip_connection=False,
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            loss=absolute,
            max_iter=1,
        ).fit(x, y)
    with pytest.raises(ValueError, match=r"give an instance, BetaLoss\(\)"):
        BayesianLogisticRegression(loss=BetaLoss, prior="normal").fit(X, Y)
    with pytest.raises(ValueError, match="one number for each draw and row"):
        BayesianLogisticRegression(loss=lambda f, y: f.sum(), prior="normal").fit(X, Y)
    with pytest.raises(ValueError, match="not finite"):
        BayesianLogisticRegression(loss=lambda f, y: f.log(), prior="normal").fit(X, Y)
    with pytest.raises(ValueError, match="'loss' parameter"):
        BayesianLogisticRegression(loss=3, prior="normal").fit(X, Y)


# --- penalties -------------------------------------------------------------------


def test_a_penalty_is_added():
    """Wrong variant: the penalty counted twice, or with the other sign."""
    likelihood, y = GaussianLikelihood(1.0), as_rows([0.3, -1.0])
    f = as_rows([[0.1, 0.4]])[..., None]
    loss = RegularizedLoss(BetaLoss(1.5), penalty=lambda f, y: 3 * f.square())
    expected = BetaLoss(1.5)(likelihood, f, y) + 3 * f[..., 0].square()
    torch.testing.assert_close(loss(likelihood, f, y), expected)
    mean, std = f[0, :, 0], as_rows([0.5, 2.0])
    found = loss.expected(likelihood, mean, std, y)
    plain = BetaLoss(1.5).expected(likelihood, mean, std, y)
    added = [3 * (mean**2 + std**2), 6 * mean, 6 + 0 * mean]
    for a, b, c in zip(found, plain, added, strict=True):
        torch.testing.assert_close(a, b + c, rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(
        RegularizedLoss()(likelihood, f, y), LogLoss()(likelihood, f, y)
    )
