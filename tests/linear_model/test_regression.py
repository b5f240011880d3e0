"""`BayesianLinearRegression`: against scikit-learn, closed forms and the literature."""

import pickle

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skvi.exceptions import NoOptimumError
from skvi.linear_model import BayesianLinearRegression
from skvi.losses import BetaLoss
from skvi.priors import GammaHyperprior, Normal

MODEL = BayesianLinearRegression
PROPER = {"prior": Normal(GammaHyperprior(2.0, 1.0))}
FIXED = {"noise_scale": 0.8, "prior": Normal(1.5)}


def make_data(n=30, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 3
    y = X @ rng.standard_normal(d) + 7 + 0.8 * rng.standard_normal(n)
    return X, y


def exact(X, y, scale, noise, fit_intercept, normalize_y):
    """Posterior of coef and raw intercept, and log evidence, by dense algebra.

    The prior of the intercept has the root mean square of the target.
    """
    center = X.mean(0) if fit_intercept else 0.0
    shift = y.mean() if fit_intercept and normalize_y else 0.0
    unit = np.sqrt(((y - shift) ** 2).mean()) if normalize_y else 1.0
    A, prior = X - center, np.full(X.shape[1], (scale * unit) ** 2)
    if fit_intercept:
        A = np.column_stack([A, np.ones(len(y))])
        prior = np.append(prior, ((y - shift) ** 2).mean())
    evidence = stats.multivariate_normal.logpdf(
        y - shift, np.zeros(len(y)), prior * A @ A.T + noise**2 * np.eye(len(y))
    )
    covariance = np.linalg.inv(A.T @ A / noise**2 + np.diag(1 / prior))
    mean = covariance @ A.T @ (y - shift) / noise**2
    return mean, covariance, evidence, center, shift


@pytest.mark.parametrize(
    ("shape", "fit_intercept", "normalize_y"),
    [((30, 4), True, True), ((30, 4), False, False), ((6, 9), True, False)],
)
def test_conjugate_fit_is_exact(shape, fit_intercept, normalize_y):
    """Posterior and evidence to 1e-8 relative.

    Wrong variants: the Jacobian of the standardization left out; a noise scale in
    units of the standardized target; rows n - 1 for n.
    """
    X, y = make_data(*shape)
    parts = {"fit_intercept": fit_intercept, "normalize_y": normalize_y}
    model = MODEL(**FIXED, **parts).fit(X, y)
    mean, covariance, evidence, center, shift = exact(X, y, 1.5, 0.8, **parts)
    d, rel = X.shape[1], {"rel": 1e-8, "abs": 1e-10}
    assert model.coef_ == pytest.approx(mean[:d], **rel)
    assert model.sigma_ == pytest.approx(covariance[:d, :d], **rel)
    assert model.coef_std_ == pytest.approx(np.sqrt(np.diag(covariance))[:d], **rel)
    assert model.lower_bound_ == pytest.approx(evidence, rel=1e-8)
    bounds = model.evidence_bounds(X, y)
    assert (bounds.method, bool(bounds.plug_in)) == ("exact", fit_intercept)
    assert bounds.lower == bounds.upper == pytest.approx(evidence, rel=1e-8)
    if fit_intercept:
        at_zero = np.append(-center, 1.0)
        assert model.intercept_ == pytest.approx(at_zero @ mean + shift, **rel)
        variance = at_zero @ covariance @ at_zero
        assert model.intercept_std_ == pytest.approx(variance**0.5, **rel)
    new = X[:3] * 1.7
    A = new - center
    A = np.column_stack([A, np.ones(3)]) if fit_intercept else A
    f, cov = model.predict(new, return_cov=True)
    expected = A @ covariance @ A.T + 0.64 * np.eye(3)
    assert f == pytest.approx(A @ mean + shift, **rel)
    assert cov == pytest.approx(expected, **rel)
    std = model.predict(new, return_std=True)[1]
    assert std == pytest.approx(np.sqrt(np.diag(expected)), **rel)
    assert model.lambda_ * np.sqrt(1 / model.lambda_) ** 2 == pytest.approx(1)


def test_several_targets():
    X, y = make_data()
    Y = np.column_stack([y, y**2, -y])
    model = MODEL(**PROPER, random_state=0).fit(X, Y)
    parts = [MODEL(**PROPER).fit(X, column) for column in Y.T]
    for name in ("coef_", "intercept_", "noise_scale_", "alpha_", "lambda_"):
        expected = np.stack([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(model, name), expected)
    assert model.coef_.shape == (3, 4)
    assert model.sigma_.shape == (3, 4, 4)
    total = sum(part.lower_bound_ for part in parts)
    assert model.lower_bound_ == pytest.approx(total, rel=1e-12)
    assert len(model.loss_curve_) == model.n_iter_
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == Y.shape
    np.testing.assert_array_equal(mean[:, 1], parts[1].predict(X))
    assert model.predict(X[:5], return_cov=True)[1].shape == (5, 5, 3)
    assert model.predict_interval(X).shape == (30, 2, 3)
    assert model.sample_y(X, 7, random_state=0).shape == (30, 3, 7)
    assert model.sample_posterior(7)["coef"].shape == (7, 3, 4)
    assert model.sample_function()(X).shape == (30, 3)
    density = sum(p.predict_log_density(X, c) for p, c in zip(parts, Y.T, strict=True))
    assert model.predict_log_density(X, Y) == pytest.approx(density)
    bounds = model.evidence_bounds(X, Y)
    each = [p.evidence_bounds(X, c) for p, c in zip(parts, Y.T, strict=True)]
    assert bounds.lower == pytest.approx(sum(b.lower for b in each))
    assert bounds.estimate == pytest.approx(model.lower_bound_, abs=1e-7)
    with pytest.raises(ValueError, match="had 3 targets; got 2"):
        model.predict_log_density(X, Y[:, :2])
    assert pickle.loads(pickle.dumps(model)).predict(X).shape == (30, 3)
    again = model.set_params(warm_start=True).fit(X, Y)
    assert again.n_iter_ <= 3
    assert MODEL().fit(X, Y[:, :1]).predict(X).shape == (30, 1)
    assert not hasattr(model.fit(X, y), "outputs_")
    assert model.coef_.shape == (4,)


@pytest.mark.parametrize(
    ("prior", "noise_scale"), [("normal", "learn"), ("hierarchical", "hyperprior")]
)
def test_exactly_fitted_rows_are_an_error_with_a_robust_loss(prior, noise_scale):
    """Wrong variant: the hyperprior of the noise stops it at 2e-5: "converged"."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 2))
    y = np.where(rng.random(100) < 0.6, 1.0, 1 + 2 * rng.standard_normal(100))
    parts = {"loss": BetaLoss(1.5), "prior": prior, "noise_scale": noise_scale}
    with pytest.raises(NoOptimumError, match="fitted exactly"):
        MODEL(**parts).fit(X, y)
    if noise_scale == "learn":
        with pytest.raises(NoOptimumError, match="fitted exactly"):
            MODEL(**parts, solver="stochastic").fit(X, y)


@pytest.mark.parametrize("divergence", ["jeffreys", "renyi"])
def test_every_divergence_learns_the_scales_of_kl(divergence):
    """Wrong: those of its own objective, noise of 1.4 (Jeffreys) and .84 for .76."""
    X, y = make_data()
    parts = {"noise_scale": "learn", "prior": Normal("learn"), "max_iter": 200}
    plain, other = (MODEL(divergence=d, **parts) for d in ("kl", divergence))
    plain.fit(X, y)
    other.fit(X, y)
    assert other.noise_scale_ == plain.noise_scale_
    assert other.prior_scale_ == plain.prior_scale_
    known = Normal(plain.prior_scale_ / y.std())
    parts |= {"noise_scale": plain.noise_scale_, "prior": known}
    given = MODEL(divergence=divergence, **parts).fit(X, y)
    np.testing.assert_allclose(other.coef_std_, given.coef_std_, rtol=1e-3)
    assert other.evidence_bounds(X, y).plug_in[:2] == ("noise_scale", "prior_scale")


def test_equal_columns_without_noise():
    """Wrong variant: precisions that rounding makes singular end the fit."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = X[:, 0] + 1e-6 * rng.normal(size=40)
    model = BayesianLinearRegression(likelihood="student_t")
    once, twice = (
        clone(model).fit(columns, y).lower_bound_ for columns in (X, np.c_[X, X])
    )
    assert twice == pytest.approx(once, abs=0.2)


def test_not_converged_is_said():
    X, y = make_data()
    with pytest.warns(ConvergenceWarning, match="increase max_iter"):
        model = MODEL(prior="horseshoe", noise_scale=1.0, max_iter=1).fit(X, y)
    assert model.n_iter_ == 1
    assert not model.converged_
    # Without noise the learned noise has no interior optimum.
    with pytest.warns(ConvergenceWarning, match="fix noise_scale"):
        MODEL(noise_scale="learn", max_iter=1000).fit(X, X @ np.ones(4))
