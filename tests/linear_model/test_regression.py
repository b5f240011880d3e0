"""`BayesianLinearRegression`: against scikit-learn, closed forms and the literature."""

import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import BayesianRidge
from sklearn.preprocessing import scale

from skvi.exceptions import IncompatibleComponentsError, NoOptimumError
from skvi.linear_model import BayesianLinearRegression
from skvi.linear_model._exact_coefficients import warn_of_vague
from skvi.losses import BetaLoss
from skvi.posteriors import Product
from skvi.priors import ARD, GammaHyperprior, Laplace, Normal
from skvi.solvers import Stochastic

MODEL = BayesianLinearRegression
PROPER = {"prior": Normal(GammaHyperprior(2.0, 1.0))}
FIXED = {"noise_scale": 0.8, "prior": Normal(1.5)}


def load(name):
    if name == "diabetes":
        return load_diabetes(return_X_y=True)
    if "SKVI_DATA" not in os.environ:
        pytest.skip("SKVI_DATA is not set")
    table = np.loadtxt(Path(os.environ["SKVI_DATA"], name, "data.txt"))
    return table[:, :-1], table[:, -1]


def make_data(n=30, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 3
    y = X @ rng.standard_normal(d) + 7 + 0.8 * rng.standard_normal(n)
    return X, y


@pytest.mark.parametrize("normalize_y", [True, False])
@pytest.mark.parametrize("name", ["diabetes", "concrete"])
def test_same_model_as_bayesian_ridge(name, normalize_y):
    """Of largest evidence, at plug-in precisions.

    Wrong variants: uncentered features; N(0, 1) for the intercept of a target that is
    not standardized."""
    X, y = load(name)
    same = {"prior": Normal("learn"), "noise_scale": "learn"}
    ours = MODEL(normalize_y=normalize_y, posterior="full_rank", **same).fit(X, y)
    # Before scikit-learn 1.9 the other one's deviations are wrong for raw features.
    means = X.mean(0)
    theirs = BayesianRidge().fit(X - means, y)
    assert ours.converged_
    q, unit = ours.posterior_.as_normal(), ours.posterior_.units.y_scale
    own = unit / np.append(np.full(X.shape[1], ours.posterior_.units.x_scale), 1.0)
    coef, covariance = (own * q.mean.numpy())[:-1], q.covariance().numpy()
    covariance = covariance * np.outer(own, own)
    np.testing.assert_allclose(coef, theirs.coef_, atol=0.01 * np.abs(coef).max())
    std0 = theirs.predict(X - means, return_std=True)[1]
    A = np.column_stack([X - means, np.ones(len(X))])
    std = np.sqrt(np.einsum("ij,jk,ik->i", A, covariance, A) + ours.noise_scale_**2)
    assert np.abs(std / std0 - 1).max() < 0.02
    assert ours.alpha_ == pytest.approx(theirs.alpha_, rel=0.02)
    assert ours.prior_scale_**-2 == pytest.approx(theirs.lambda_, rel=0.05)
    mean = ours.posterior_.units.y_mean + unit * float(q.mean[-1])
    assert mean == pytest.approx(theirs.intercept_, abs=0.01 * y.std())
    np.testing.assert_allclose(
        np.diag(covariance)[:-1], np.diag(theirs.sigma_), rtol=0.05, atol=0
    )
    assert ours.score(X, y) == pytest.approx(theirs.score(X - means, y), abs=1e-3)
    np.testing.assert_allclose(np.sqrt(np.diag(ours.sigma_)), ours.coef_std_)


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


def test_unequal_scales_of_coefficients_are_exact():
    """A mapping is its prior; a prior scale for each feature is a scaled feature."""
    X, y = make_data()
    scales = np.array([0.5, 1.0, 2.0, 4.0])
    parts = {"noise_scale": 0.8, "intercept_prior": Normal(3.0)}
    a = MODEL(prior=Normal(1.0), **parts).fit(X * scales, y)
    b = MODEL(prior={"coef": Normal(1.0)}, **parts).fit(X * scales, y)
    assert a.lower_bound_ == b.lower_bound_
    assert a.evidence_bounds(X * scales, y).lower == pytest.approx(a.lower_bound_)


def test_learned_noise_has_the_largest_evidence():
    """And is named as a plug-in. Wrong variant: the maximum of the likelihood."""
    X, y = make_data()
    model = MODEL(noise_scale="learn", prior=Normal(1.5), tol=1e-12).fit(X, y)
    values = [
        exact(X, y, 1.5, model.noise_scale_ * factor, True, True)[2]
        for factor in (0.99, 1.0, 1.01)
    ]
    assert values[1] > max(values[0], values[2])
    bounds = model.evidence_bounds(X, y)
    assert bounds.plug_in == ("noise_scale", "y_mean", "y_scale")
    assert bounds.lower == pytest.approx(values[1], rel=1e-8)
    assert model.lower_bound_ == pytest.approx(values[1], rel=1e-8)


@pytest.mark.parametrize(
    ("shape", "prior", "posterior"),
    [
        ((30, 4), "hierarchical", "full_rank"),
        ((30, 4), "ard", "mean_field"),
        ((10, 15), "ard", "full_rank"),
        ((10, 15), "hierarchical", "mean_field"),
        ((10, 15), "normal", "full_rank"),
    ],
)
def test_elbo_stays_below_the_evidence(shape, prior, posterior):
    X, y = make_data(*shape)
    model = MODEL(prior=prior, posterior=posterior, max_iter=3000)
    model.fit(X, y)
    assert model.converged_
    assert model.lower_bound_ == -model.loss_curve_[-1]
    if prior != "ard":
        bounds = model.evidence_bounds(X, y)
        assert bounds.lower >= model.lower_bound_ - 1e-9


def test_a_cost_for_each_feature_warns_and_the_remedy_ends_it():
    """Wrong variant: the default model, whose cost all models share, warns."""
    with pytest.warns(UserWarning, match=r"fewer features win .*prior=ARD\(shape=1.0"):
        warn_of_vague(ARD(), 3)
    for prior in (ARD(shape=1.0, rate=1.0), Normal(GammaHyperprior()), Normal()):
        warn_of_vague(prior, 3)


@pytest.mark.parametrize("parts", [PROPER, {"prior": "normal"}], ids=["both", "noise"])
@pytest.mark.parametrize("posterior", ["full_rank", "exact"])
def test_bounds_by_sampling_contain_the_quadrature(parts, posterior):
    """Wrong variant: a vague noise precision is taken for a dispersion (NaN)."""
    X, y = make_data()
    vague = {"noise_scale": GammaHyperprior(1e-6, 1e-6)}
    model = MODEL(posterior=posterior, **vague, **parts).fit(X, y)
    exact = model.evidence_bounds(X, y)
    assert "1 vague hyperpriors cost about 13.8 nats" in exact.reason
    found = model.evidence_bounds(
        X, y, method="importance", n_draws=1024, random_state=0
    )
    low, high = found.interval(3)
    # Weights may be constant, up to rounding.
    assert low - 1e-9 < exact.estimate < high + 1e-9
    assert found.reliable
    assert found.estimate == pytest.approx(exact.estimate, abs=0.1)


@pytest.mark.parametrize(
    "noise", [0.8, pytest.param("hyperprior", marks=pytest.mark.slow)]
)
def test_evidence_of_separate_precisions(noise):
    """With one feature they are one shared precision, which quadrature integrates.

    Wrong variants: the precision's prior counted twice; a normal for the Student-t.
    """
    X, y = make_data(20, 1)
    X, found = 5 * X, []  # both act on columns as they are
    priors = {"exact": Normal(GammaHyperprior(1.0, 1.0)), "importance": ARD(1.0, 1.0)}
    for method, prior in priors.items():
        model = MODEL(prior=prior, noise_scale=noise).fit(X, y)
        bounds = model.evidence_bounds(X, y, method=method, random_state=0)
        found.append(bounds)
    exact, bounds = found
    assert bounds.reliable
    assert bounds.lower - 5 * bounds.lower_se < exact.lower
    assert bounds.upper + 5 * bounds.upper_se > exact.upper
    assert bounds.estimate == pytest.approx(exact.estimate, abs=0.05)


def test_predictive_distribution(z_score):
    """Quantiles, density and moments of q against 100,000 draws of `sample_y`.

    Wrong variants: a normal predictive (short tails for 8 rows); the mean precision
    in place of its distribution.
    """
    X, y = make_data(8, 2)
    model = MODEL(**PROPER, posterior="mean_field").fit(X, y)
    X = X[:3]
    draws = model.sample_y(X, 100_000, random_state=0)
    assert draws.shape == (3, 100_000)
    mean, std = model.predict(X, return_std=True)
    levels = [0.001, 0.05, 0.5, 0.9, 0.999]
    quantiles = model.predict_quantiles(X, levels)
    assert quantiles.shape == (3, 5)
    for j, level in enumerate(levels):
        assert z_score((draws < quantiles[:, [j]]).T, np.full(3, level)) < 5
    inside = (draws > quantiles[:, [1]]) & (draws < quantiles[:, [3]])
    assert z_score((draws * inside).T, (draws * inside).mean(1)) < 5
    assert np.array_equal(model.predict_interval(X, 0.8)[:, 1], quantiles[:, 3])
    assert z_score(draws.T, mean) < 5
    assert draws.std(1) == pytest.approx(std, rel=0.02)
    grid = np.linspace(-200, 200, 40_001)
    density = np.exp(model.predict_log_density(np.repeat(X[:1], len(grid), 0), grid))
    step = grid[1] - grid[0]
    assert density.sum() * step == pytest.approx(1, abs=1e-6)
    below = density[grid < quantiles[0, 1]].sum() * step
    assert below == pytest.approx(0.05, abs=2e-3)
    normal = stats.norm(mean[0], std[0])
    assert normal.cdf(quantiles[0, 0]) < 0.0007  # its tails are heavier
    fixed = MODEL(**FIXED).fit(*make_data())
    mean, std = fixed.predict(X @ np.ones((2, 4)), return_std=True)
    expected = stats.norm.ppf(0.3, mean, std)
    assert fixed.predict_quantiles(X @ np.ones((2, 4)), 0.3)[:, 0] == pytest.approx(
        expected
    )


def test_posterior_draws(z_score):
    """In units of X and y; functions are draws of coefficients."""
    X, y = make_data()
    model = MODEL(**PROPER).fit(X, 1000 * y)
    draws = model.sample_posterior(100_000, random_state=0)
    assert z_score(draws["coef"], model.coef_) < 5
    assert z_score(draws["intercept"], model.intercept_) < 5
    assert draws["coef"].std(0) == pytest.approx(model.coef_std_, rel=0.02)
    assert draws["intercept"].std() == pytest.approx(model.intercept_std_, rel=0.02)
    assert z_score(np.log(draws["noise_precision"]), np.log(model.alpha_)) < 5
    function = model.sample_function(random_state=1)
    one = model.sample_posterior(1, random_state=1)
    assert function(X) == pytest.approx(X @ one["coef"][0] + one["intercept"])
    assert function(X[:2]) == pytest.approx(function(X)[:2])
    assert "intercept" not in MODEL(fit_intercept=False).fit(X, y).sample_posterior()


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


def test_units_of_data():
    """Shifts and scales of X and y change nothing but units.

    Wrong variants: an intercept's prior at X = 0; hyperpriors in units of y.
    """
    X, y = make_data()
    parts = {"tol": 1e-11, "max_iter": 500}
    a = MODEL(**parts).fit(X, y)
    b = MODEL(**parts).fit(X + 1e4, 1e-3 * y - 50)
    assert b.coef_ == pytest.approx(1e-3 * a.coef_, rel=1e-6)
    assert b.noise_scale_ == pytest.approx(1e-3 * a.noise_scale_, rel=1e-6)
    assert b.lower_bound_ == pytest.approx(a.lower_bound_ + 30 * np.log(1e3), abs=1e-6)
    assert b.predict(X + 1e4) == pytest.approx(1e-3 * a.predict(X) - 50, abs=1e-8)


@pytest.mark.parametrize(
    ("prior", "unit"), [("hierarchical", (1.0, 1e5)), ("ard", (1e-5, 1.0))]
)
def test_units_without_standardizing(prior, unit):
    """Coordinate ascent does not stop where the coefficients have no effect.

    Wrong variant: precisions that start at one, where the ELBO is flat if the features
    are tiny, or the target is huge: coefficients of zero, and "converged".
    """
    (x_unit, y_unit), (X, y) = unit, make_data()
    a = MODEL(prior=prior).fit(X, y - y.mean())
    b = MODEL(prior=prior, normalize_y=False).fit(x_unit * X, y_unit * (y - y.mean()))
    scaled = b.coef_ * x_unit / y_unit
    assert scaled == pytest.approx(a.coef_, abs=0.02 * np.abs(a.coef_).max())


def test_a_robust_fit_follows_the_units():
    """Wrong variant: prior scales that start at one, whatever the features' unit."""
    X, y = make_data(60)
    w = np.linspace(0.5, 2, 60)
    a, b = (MODEL(loss="beta").fit(unit * X, y, w) for unit in (1.0, 1e-6))
    assert b.converged_
    assert 1e-6 * b.coef_ == pytest.approx(a.coef_, abs=1e-4)


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


def test_small_noise_is_no_error_with_a_robust_loss():
    """Wrong variant: every small noise counts as run away."""
    rng = np.random.default_rng(0)
    X, noise = rng.standard_normal((200, 3)), 1e-3 * rng.standard_normal(200)
    model = MODEL(loss=BetaLoss(1.5)).fit(X, X.sum(1) + noise)
    assert model.noise_scale_ == pytest.approx(1e-3, rel=0.15)


def contaminate(y, noise, kind, rng):
    y, rows = y.copy(), rng.choice(len(y), len(y) // 20, replace=False)
    jump = 50 * rng.choice([-1, 1], len(rows)) if kind == "two-sided" else 20
    y[rows] += noise * jump
    return y


def movements(kind, seeds, **parts):
    """Root mean square move of fitted values by outliers: log loss, beta loss."""
    found = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((200, 5))
        y = 3 + X @ rng.standard_normal(5) * 3 + rng.standard_normal(200)
        dirty = contaminate(y, 1.0, kind, rng)
        fits = [
            [
                MODEL(loss=loss, **parts).fit(X, target).predict(X)
                for target in (y, dirty)
            ]
            for loss in ("log", BetaLoss(1.3))
        ]
        found.append([np.sqrt(((a - b) ** 2).mean()) for a, b in fits])
    return np.median(found, 0)


LEARNED = {"noise_scale": "learn", "prior": "normal"}


@pytest.mark.parametrize("parts", [LEARNED, {"noise_scale": 1.0, "prior": "normal"}])
@pytest.mark.parametrize("kind", ["two-sided", "one-sided"])
def test_outliers_move_the_robust_fit_little(kind, parts):
    """5 % outliers. Wrong variant: beta's exponent 1 for beta - 1 in the gain."""
    by_log, by_beta = movements(kind, range(2), **parts)
    assert by_log > 1
    assert by_beta < 0.1 * by_log


@pytest.mark.parametrize(
    "parts", [LEARNED, {"noise_scale": 1.0, "prior": "normal"}, {}]
)
def test_robust_fits_find_distant_data(parts):
    """Rows that are hundreds of noise standard deviations from zero, and one in ten
    outliers, however far. Wrong variants: a start at zero coefficients;
    standardization by the mean."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 30))
    f = X @ (100 * rng.standard_normal(30)) + 50
    y = f + rng.standard_normal(200)
    fits = []
    for far in (1e4, 1e6):
        dirty = y.copy()
        dirty[::10] = far
        fits.append(MODEL(loss=BetaLoss(1.3), **parts).fit(X, dirty).predict(X))
    assert np.sqrt(((fits[0] - f) ** 2).mean()) < 0.6
    assert fits[0] == pytest.approx(fits[1], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [{}, LEARNED])
@pytest.mark.parametrize("kind", ["two-sided", "one-sided"])
def test_outliers_on_many_seeds(kind, parts):
    by_log, by_beta = movements(kind, range(12), **parts)
    assert by_beta < 0.1 * by_log


def test_fits_continue():
    X, y = make_data()
    model = MODEL(warm_start=True, prior="ard", tol=1e-7, max_iter=500).fit(X, y)
    value = model.lower_bound_
    model.fit(X, y)
    assert model.lower_bound_ == pytest.approx(value, abs=1e-4)
    model.set_params(posterior="mean_field").fit(X, y)
    assert model.lower_bound_ < value
    with pytest.raises(ValueError, match="warm_start=True continues"):
        clone(model).fit(X, y).fit(X[:, :2], y)


def test_not_converged_is_said():
    X, y = make_data()
    with pytest.warns(ConvergenceWarning, match="increase max_iter"):
        model = MODEL(prior="horseshoe", noise_scale=1.0, max_iter=1).fit(X, y)
    assert model.n_iter_ == 1
    assert not model.converged_
    # Without noise the learned noise has no interior optimum.
    with pytest.warns(ConvergenceWarning, match="fix noise_scale"):
        MODEL(noise_scale="learn", max_iter=1000).fit(X, X @ np.ones(4))


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"prior": "ard"},
        {"posterior": "mean_field"},
        {"loss": "beta", **LEARNED},
        FIXED,
    ],
)
def test_odd_data_give_finite_answers(parts):
    X, y = make_data()
    one = X[:1], y[:1]
    wide = make_data(5, 40)
    constant = X, np.full(30, 3.0)
    repeated = np.hstack([X, X, np.ones((30, 2)), np.zeros((30, 1))]), y
    scales = X * [1e-8, 1.0, 1e8, 1.0], 1e6 * y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", ".*the features have ranges")
        for data in (one, wide, constant, repeated, scales):
            try:
                model = MODEL(**parts).fit(*data)
            except NoOptimumError:  # rows that are fitted exactly
                assert "loss" in parts
                continue
            assert np.isfinite(model.coef_).all()
            assert np.isfinite(model.lower_bound_)
            assert (model.coef_std_ > 0).all()
            mean, std = model.predict(data[0], return_std=True)
            assert np.isfinite(mean).all()
            assert not np.isnan(std).any()
            assert np.isfinite(model.predict_interval(data[0])).all()
            assert np.isfinite(model.predict_log_density(*data)).all()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"noise_scale": -1.0}, "'noise_scale' parameter"),
        ({"noise_scale": "fix"}, "'noise_scale' parameter"),
        ({"prior": Normal(GammaHyperprior(shape=-1.0))}, "'shape' parameter"),
        (
            {"prior": {"coef": Laplace(), "intercept": Normal(2.0)}},
            r"Use intercept_prior=Normal\(scale=2.0\) and leave the entry out",
        ),
        ({"fit_intercept": False, "intercept_prior": "normal"}, "fit_intercept=True"),
        ({"solver": "empirical_bayes", "prior": "laplace"}, "Use solver='auto'"),
        ({"solver": "exact", "prior": "laplace"}, "Use solver='auto'"),
        ({"posterior": Product()}, "Use 'full_rank' or 'mean_field'"),
        ({"objective": "eubo", "divergence": "renyi"}, "objective='elbo'"),
    ],
)
def test_bad_parameters(parts, message):
    with pytest.raises(ValueError, match=message):
        MODEL(**parts).fit(*make_data())


def test_bad_arguments():
    X, y = make_data()
    model = MODEL(noise_scale=1.0, prior=Laplace()).fit(X, y)
    with pytest.raises(RuntimeError, match="not both"):
        model.predict(X, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="between 0 and 1"):
        model.predict_quantiles(X, [0.5, 1.0])
    with pytest.raises(ValueError, match="30 rows, but y has 29"):
        model.predict_log_density(X, y[1:])
    with pytest.raises(IncompatibleComponentsError, match="method='auto'"):
        model.evidence_bounds(X, y, method="exact")
    with pytest.raises(ValueError, match="these differ"):
        model.evidence_bounds(X, y + 1)


def test_posteriors_may_be_products():
    """A product that splits coefficients and intercept loses nothing: they are
    independent for centered features."""
    X, y = make_data()
    parts = {"tol": 1e-10, **FIXED}
    whole, split = (
        MODEL(posterior="full_rank", **parts).fit(X, y),
        MODEL(posterior=Product(), solver="stochastic", **parts).fit(X, y),
    )
    assert split.lower_bound_ == pytest.approx(whole.lower_bound_, abs=0.02)
    std = split.predict(X, return_std=True)[1]
    assert std == pytest.approx(whole.predict(X, return_std=True)[1], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["eubo", "iwelbo", "renyi"])
def test_other_objectives_with_hyperpriors(objective):
    X, y = make_data()
    model = MODEL(
        objective=objective, solver=Stochastic(n_draws=50), random_state=0, **PROPER
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(scale(X), y)
    exact = MODEL(**PROPER).fit(scale(X), y)
    assert model.diagnostics_["solver"] == "stochastic"
    assert model.lower_bound_ == pytest.approx(exact.lower_bound_, abs=1.0)
    assert np.abs(model.coef_ - exact.coef_).max() < 3 * exact.coef_std_.max()


def test_numbers_beside_priors_that_are_not_normal():
    """Of an intercept near 0, where the densities differ by a constant.

    Wrong variant: the scale of the coefficients is not an unknown number there.
    """
    X, y = make_data()
    parts = {"prior": Normal(GammaHyperprior(1.0, 1.0)), "posterior": "full_rank"}
    model = MODEL(intercept_prior=Laplace(2.0), **parts).fit(X, y)
    assert model.converged_
    near = MODEL(intercept_prior=Normal(2.0), **parts).fit(X, y)
    np.testing.assert_allclose(model.coef_, near.coef_, rtol=0.02)
    gap = np.log(1 / 4) - stats.norm.logpdf(0, 0, 2)
    assert model.lower_bound_ - near.lower_bound_ == pytest.approx(gap, abs=0.1)


def test_evidence_of_raw_features_does_not_warn():
    """At precisions far from the mode nothing overflows."""
    X, y = load_diabetes(return_X_y=True)
    X = 1e5 * X
    model = MODEL().fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", RuntimeWarning)
        bounds = model.evidence_bounds(X, y)
    assert bounds.reliable


@pytest.mark.slow
def test_bounds_of_weights_stay_near_a_good_posterior():
    """Draws hardly tell a wide q from a good one. Wrong variant: usual step sizes.

    In the weakest direction q stays wide: ten draws lose 0.03 nats by it.
    """
    X, y = load_diabetes(return_X_y=True)
    X = X / X.std(0)
    near = MODEL(objective="iwelbo", random_state=0).fit(X, y)
    good = MODEL().fit(X, y)
    assert near.converged_
    assert good.lower_bound_ - near.lower_bound_ < 1


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_targets_whose_squares_are_no_floats(scale):
    X, y = make_data()
    with pytest.raises(ValueError, match="Multiply y by a power of ten"):
        MODEL().fit(X, scale * y)


def test_many_features_are_centered_where_they_are_read(monkeypatch):
    """The same fit, predictions and evidence as from a centered copy of them.

    Also where columns nearly depend on each other, so that singular values are taken
    of a triangle. Wrong variants: no offset; means of a single chunk; y not in it.
    """
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(200, 4)) + 3.0).astype(np.float32)
    X[:, 3] = X[:, 2] * 1.00001
    y = X @ [1.0, -2.0, 0.5, 0.0] + 0.3 * rng.normal(size=200)
    found = []
    for limit in (None, 32):
        if limit is not None:
            module = "skvi.linear_model._units"
            monkeypatch.setattr(f"{module}.MAX_COPIED", limit)
            monkeypatch.setattr(f"{module}.CHUNK_ELEMENTS", limit)
            monkeypatch.setattr("skvi.targets._least_squares.QR_ELEMENTS", limit)
        parts = {"prior": Normal(1.0), "noise_scale": 0.3}
        model = BayesianLinearRegression(**parts).fit(X, y)
        bounds = model.evidence_bounds(X, y, random_state=0)
        mean, std = model.predict(X[:5], return_std=True)
        found.append([*model.coef_, model.lower_bound_, bounds.lower, *mean, *std])
    np.testing.assert_allclose(*found, rtol=1e-5)
