"""Losses written as functions, and penalties."""

import math

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.preprocessing import StandardScaler

from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood, PoissonLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import BetaLoss, LogLoss, RegularizedLoss
from skvi.losses._callable import CallableLoss
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor


def absolute(f, y):
    return (f - y).abs()


def hinge(f, y):
    return torch.relu(1 - (2 * y - 1) * f)


def smooth(f, y):
    return torch.cos(f - y)


def brier(f, y):
    return (torch.sigmoid(f) - y).square()


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


def test_smooth_functions_agree_with_the_built_in_loss():
    """Wrong variants: the sign of the first identity; a stop before it is stable."""
    likelihood, y = PoissonLikelihood(), as_rows([0.0, 3, 11])
    loss = CallableLoss(lambda f, t: f.exp() - t * f + torch.lgamma(t + 1))
    mean, std = as_rows([-0.5, 1.0, 2.2]), as_rows([0.4, 0.05, 0.8])
    exact = LogLoss().expected(likelihood, mean, std, y)
    for a, b in zip(loss.expected(likelihood, mean, std, y), exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-6)


def test_at_a_point():
    """The value itself, and derivatives of the smoothed function, without NaN."""
    y, zero = as_rows([0.0, 1.0]), torch.zeros(2, dtype=torch.float64)
    value, first, second = CallableLoss(absolute).expected(None, y + 1.0, zero, y)
    torch.testing.assert_close(value, as_rows([1.0, 1.0]))
    torch.testing.assert_close(first, as_rows([1.0, 1.0]))
    torch.testing.assert_close(second, zero, atol=1e-6, rtol=0)


X, Y = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X)[:, :4]


@pytest.mark.parametrize("posterior", ["full_rank", "mean_field"])
def test_the_log_loss_as_a_function(posterior):
    """The same posterior as with the built-in loss. Wrong variant: y coded as -1, 1."""

    def log_loss(f, y):
        return torch.nn.functional.softplus((1 - 2 * y) * f)

    fits = [
        BayesianLogisticRegression(loss=loss, posterior=posterior, prior="normal").fit(
            X, Y
        )
        for loss in ("log", log_loss)
    ]
    assert fits[1].coef_ == pytest.approx(fits[0].coef_, abs=1e-3)
    assert fits[1].coef_std_ == pytest.approx(fits[0].coef_std_, rel=1e-3)
    assert fits[1].objective_value_ == pytest.approx(fits[0].lower_bound_, abs=1e-4)


@pytest.mark.parametrize(
    "loss", [hinge, pytest.param(brier, marks=pytest.mark.slow)], **by_name
)
def test_gibbs_posteriors_of_classifiers(loss):
    """A converged optimum that draws confirm: no neighbor is better.

    Wrong variant: curvatures from autograd, with which the fit stops at the prior.
    """
    model = BayesianLogisticRegression(
        loss=loss, prior="normal", intercept_prior="normal"
    ).fit(X, Y)
    assert model.converged_
    assert model.score(X, Y) > 0.88
    assert isinstance(model.loss_function_, CallableLoss)
    generator = torch.Generator().manual_seed(0)
    draw = model.posterior_.draw(4000, generator)
    theta, log_q = draw.theta, draw.log_q
    f = theta[:, :4] @ torch.from_numpy(X).T + theta[:, 4:]
    losses = loss(f, torch.from_numpy(Y).double()).sum(1)
    values = losses + log_q + 0.5 * (theta.square() + math.log(2 * math.pi)).sum(1)
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) + model.objective_value_) < 5 * error


@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
def test_gibbs_posterior_of_a_regressor():
    """Least absolute deviations: gross outliers do not move the median."""
    x, y = load_diabetes(return_X_y=True)
    x, y = x[:, :2] * 20, y / 75 - 2
    y[:40] = 1e3
    model = BayesianMLPRegressor(
        skip_connection=False,
        likelihood=GaussianLikelihood(1.0),
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        loss=absolute,
        hidden_layer_sizes=(),
        normalize_y=False,
        max_iter=100,
        random_state=0,
    ).fit(x, y)
    residual = y - model.predict(x)
    assert abs(np.median(residual)) < 0.1
    assert np.abs(model.predict(x)).max() < 3


def test_what_functions_cannot_do():
    x, y = load_iris(return_X_y=True)
    with pytest.raises(IncompatibleComponentsError, match="cannot be integrated"):
        BayesianLogisticRegression(loss=lambda f, y: f.sum(-1), prior="normal").fit(
            x, y
        )
    with pytest.raises(IncompatibleComponentsError, match="nothing to learn from"):
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


@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
def test_several_classes_in_a_network():
    x, y = load_iris(return_X_y=True)

    def margin(f, codes):
        own = f.gather(2, codes.long().expand(len(f), -1)[..., None])
        return torch.relu(1 + f - own).sum(2) - 1

    model = BayesianMLPClassifier(
        skip_connection=False,
        divergence="kl",
        posterior="mean_field",
        loss=margin,
        hidden_layer_sizes=(),
        max_iter=30,
        random_state=0,
    )
    x = StandardScaler().fit_transform(x)
    assert model.fit(x, y).score(x, y) > 0.9


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


def test_a_penalty_acts_on_predictions():
    """A quadratic penalty is a second, normal observation of every f at 0."""
    loss = RegularizedLoss(penalty=lambda f, y: 0.5 * f.square() / 0.1)
    free = BayesianLogisticRegression(prior="normal").fit(X, Y)
    held = BayesianLogisticRegression(loss=loss, prior="normal").fit(X, Y)
    assert held.converged_
    assert np.abs(held.decision_function(X)).max() < 2
    assert np.abs(free.decision_function(X)).max() > 5
    assert clone(held).loss.penalty is loss.penalty
    nested = BayesianLogisticRegression(
        loss=RegularizedLoss(BetaLoss(), hinge), prior="normal"
    )
    nested.set_params(loss__loss__beta=1.4).fit(X, Y)
    assert nested.loss_function_.loss.beta == 1.4
    with pytest.raises(ValueError, match="'beta' parameter"):
        BayesianLogisticRegression(
            loss=RegularizedLoss(BetaLoss(0.5)), prior="normal"
        ).fit(X, Y)
