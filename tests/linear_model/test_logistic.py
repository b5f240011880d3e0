"""`BayesianLogisticRegression`: weights, predictions and draws against references."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import norm

from skvi.base import NormalForm
from skvi.linear_model import BayesianLogisticRegression
from skvi.linear_model._coefficients import NormalCoefficients
from skvi.priors import Normal
from tests.reference import Problem, real_data, synthetic_data


@pytest.fixture
def data():
    X, y = real_data("virginica")
    return X.copy(), y.copy()


def fit(data, weight=None, **parts):
    return BayesianLogisticRegression(**{"prior": "normal", **parts}).fit(
        *data, sample_weight=weight
    )


def test_fractional_weights_are_powers(data):
    """A weight of w is the likelihood to the power w; against the reference."""
    weight = np.linspace(0.1, 1.9, len(data[1]))
    model = fit(data, weight, tol=1e-10, intercept_prior="normal")
    center = np.average(data[0], axis=0, weights=weight)
    problem = Problem(data[0] - center, data[1], w=weight)
    value, mean, _ = problem.optimum(full_rank=True)
    assert model.lower_bound_ == pytest.approx(-value, abs=1e-4)
    middle = model.intercept_ + model.coef_[0] @ center
    shift = np.append(model.coef_[0], middle) - mean
    assert np.abs(shift).max() < 1e-3
    half = fit(data, 0.5)
    assert np.array_equal(fit(data, np.full(100, 0.5)).coef_, half.coef_)


@pytest.mark.parametrize(
    ("scale", "posterior"), [(1.0, "mean_field"), (30.0, "full_rank")]
)
def test_probabilities_are_posterior_averages(scale, posterior):
    """Against adaptive quadrature to 1e-6 and against 10^5 posterior draws.

    Wrong variants: the plug-in probability at the mean; the variance without the
    intercept's.
    """
    X, y = synthetic_data("nearly_separable")
    model = fit((X, y), prior=Normal(scale), posterior=posterior)
    X = X[:8]
    p = model.predict_proba(X)
    assert p.sum(1) == pytest.approx(1, abs=1e-12)
    draws = model.sample_posterior(100_000, random_state=0)
    f = draws["coef"][:, 0] @ X.T + draws["intercept"]
    error = expit(f).std(0) / 100_000**0.5
    assert np.all(np.abs(p[:, 1] - expit(f).mean(0)) < 5 * error + 1e-7)
    A = np.column_stack([X, np.ones(len(X))])
    normal = model.posterior_.as_normal()
    mean, cov = A @ normal.mean.numpy(), normal.covariance().numpy()
    for m, s, value in zip(mean, np.sqrt(np.diag(A @ cov @ A.T)), p[:, 1], strict=True):
        points = np.array([-6, 0, 6, m - 3 * s, m, m + 3 * s])
        points = np.sort(points[np.abs(points - m) < 12 * s])
        exact = quad(
            lambda f, m=m, s=s: expit(f) * norm.pdf(f, m, s),
            m - 12 * s, m + 12 * s, points=points, limit=500, epsabs=1e-10,
        )[0]  # fmt: skip
        assert value == pytest.approx(exact, abs=1e-6)
    sure = model.predict_log_proba(X).min(1) < -30
    odds = model.decision_function(X)
    assert expit(odds) == pytest.approx(p[:, 1], abs=1e-12)
    assert expit(-odds[~sure]) == pytest.approx(p[~sure, 0], rel=1e-9)
    assert np.array_equal(model.predict(X), model.classes_[(odds > 0).astype(int)])


@pytest.mark.parametrize("spread", [0.3, 5.0, 200.0])
def test_log_probabilities_of_labels_that_are_far_off(spread):
    """Down to exp(-700), where a probability itself still has digits to lose.

    The integrand has its mode far from the mean of f. Wrong variants: the logarithm
    of a probability that has underflown; nodes around the mean only.
    """
    X, y = synthetic_data("tiny")
    parts = {"posterior": "mean_field", "fit_intercept": False}
    model = fit((X[:, :1], y), **parts)
    for shift in (0, 2, 5, 9, 15, 30):
        m = -shift * spread
        normal = NormalForm(*torch.tensor([[m], [spread]]).double())
        model._coefficients = NormalCoefficients.of(model._model, normal)
        no, yes = model.predict_log_proba([[1.0]])[0]
        f = np.linspace(m - 40 * spread, max(m + 40 * spread, 60), 200_001)
        log_q = norm.logpdf(f, m, spread) + np.log(f[1] - f[0])
        assert yes == pytest.approx(logsumexp(log_q + log_expit(f)), abs=1e-3)
        assert no == pytest.approx(logsumexp(log_q + log_expit(-f)), abs=1e-6)


def test_log_density_is_that_of_the_labels(data):
    """Wrong variant: the other class's column."""
    X, y = data
    names = np.array(["b", "a"])[y]
    model = fit((X, names))
    p = model.predict_proba(X)
    expected = np.log(np.where(names == "a", p[:, 0], p[:, 1]))
    assert model.predict_log_density(X, names) == pytest.approx(expected)
    assert np.isfinite(model.predict_log_proba(1e6 * X)).all()
    with pytest.raises(ValueError, match="not in the fit"):
        model.predict_log_density(X, y)
    with pytest.raises(ValueError, match="100 rows, but y has 99"):
        model.predict_log_density(X, names[1:])


@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
def test_posterior_draws_have_its_moments(data, z_score, posterior):
    model = fit(data, posterior=posterior)
    draws = model.sample_posterior(50_000, random_state=1)
    assert draws["coef"].shape == (50_000, 1, 4)
    assert draws["intercept"].shape == (50_000, 1)
    theta = np.hstack([draws["coef"][:, 0], draws["intercept"]])
    mean = np.append(model.coef_[0], model.intercept_)
    std = np.append(model.coef_std_[0], model.intercept_std_)
    assert z_score(theta, mean) < 5
    centered = theta - mean
    cov = model.posterior_.as_normal().covariance()
    assert np.diag(cov) == pytest.approx(std**2)
    assert z_score(centered[:, :, None] * centered[:, None], cov) < 5
    again = model.sample_posterior(50_000, random_state=1)
    assert np.array_equal(again["coef"], draws["coef"])
    assert "intercept" not in fit(data, fit_intercept=False).sample_posterior()
