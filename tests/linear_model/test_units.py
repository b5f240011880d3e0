"""Units of features and exposures: what has no units does not depend on them."""

import warnings
from functools import cache
from itertools import cycle

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats
from scipy.special import logsumexp

from skvi.exceptions import SkviWarning
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.linear_model._units import feature_units
from skvi.priors import ARD, HalfCauchy, Normal
from skvi.solvers import Stochastic

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)) * [1.0, 2.0, 0.5] + [0.3, -1.0, 0.0]
F = X @ [1.0, -0.3, 0.0]
EXPOSURE = RNG.uniform(0.5, 2.0, size=60)
CLASSES = (F + RNG.logistic(size=60) > 0).astype(int)
COUNTS = RNG.poisson(EXPOSURE * np.exp(0.5 * F + 1))
NUMBERS = F + 0.5 * RNG.normal(size=60) + 5
THREE = np.digitize(NUMBERS, [4.4, 5.6])
# What moves a column by a thousand of its deviations.
MOVE = 1000 * X.std(0) * [1.0, -1.0, 0.5]

LOGISTIC, COUNT = BayesianLogisticRegression, BayesianPoissonRegressor
ESTIMATORS = {
    "two classes": (LOGISTIC(), CLASSES),
    "three classes": (LOGISTIC(posterior="mean_field"), THREE),
    "poisson": (COUNT(), COUNTS),
    "negative binomial": (COUNT(likelihood="negative_binomial"), COUNTS),
    "numbers": (BayesianLinearRegression(), NUMBERS),
    "heavy tails": (
        BayesianLinearRegression(likelihood="student_t", noise_scale="learn"),
        NUMBERS,
    ),
}
# Every prior for one estimator, and some for the others.
RELATIVE = [(name, prior) for name in ESTIMATORS for prior in ("default", "ard")]
RELATIVE += [("two classes", Normal("learn")), ("numbers", Normal("learn"))]
FIXED = [(name, Normal(2.5)) for name in ESTIMATORS]
FIXED += [("two classes", prior) for prior in ("laplace", "student_t", "horseshoe")]

estimators = pytest.mark.parametrize("name", ESTIMATORS)


def fitted(name, features, prior="default", **parts):
    """Predictions, with deviations or intervals, and numbers of the fit."""
    model, y = ESTIMATORS[name]
    model, options = type(model)(**{**model.get_params(), **parts}), {}
    if not (isinstance(prior, str) and prior == "default"):
        model.set_params(prior=prior)
    if isinstance(model, COUNT):
        options = {"exposure": EXPOSURE}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(features, y, **options)
        if isinstance(model, LOGISTIC):
            found = [model.predict_proba(features)]
            found.append(model.predict_proba_interval(features))
        else:
            found = [*model.predict(features, return_std=True, **options)]
    return model, np.concatenate([part.ravel() for part in found]), options


near = cache(lambda name, prior: fitted(name, X, prior))


def same(found, expected, tol=1e-6):
    np.testing.assert_allclose(found, expected, rtol=tol, atol=tol)


@pytest.mark.parametrize(("name", "prior"), [*RELATIVE, *FIXED], ids=str)
def test_moved_columns(name, prior):
    """A thousand deviations away: the same predictions, slopes and bound.

    The intercept moves against the slopes, in the draws as well. Wrong variants: the
    intercept's prior at X = 0; the intercept of the fit as that of the columns.
    """
    one, expected, _ = near(name, prior)
    far, found, _ = fitted(name, X + MOVE, prior)
    same(found, expected)
    same(far.lower_bound_, one.lower_bound_)
    same(far.coef_, one.coef_)
    same(far.coef_std_, one.coef_std_)
    moved = far.intercept_ + far.coef_ @ MOVE
    same(moved, one.intercept_, 1e-5)
    draws = [model.sample_posterior(3, random_state=0) for model in (one, far)]
    moved = draws[1]["intercept"] + draws[1]["coef"] @ MOVE
    same(moved, draws[0]["intercept"], 1e-5)


@pytest.mark.parametrize(
    ("name", "prior", "k"),
    [(*case, k) for case, k in zip(RELATIVE, cycle([1e-9, 1e9]), strict=False)],
    ids=str,
)
def test_scaled_columns(name, prior, k):
    """Vague hyperpriors are relative to the columns, and the default is.

    Reported numbers are in units of X. Wrong variants: Gamma(1e-6, 1e-6) and
    half-Cauchy priors in units of X; scales and precisions in the units of the fit.
    """
    one, expected, _ = near(name, prior)
    other, found, _ = fitted(name, k * X, prior)
    same(found, expected)
    same(other.lower_bound_, one.lower_bound_)
    same(k * other.coef_, one.coef_)
    same(other.intercept_, one.intercept_)
    powers = {"prior_scale_": 1, "lambda_": -2, "sigma_": 2}
    for attribute, power in powers.items():
        if hasattr(one, attribute):
            value = k**power * np.asarray(getattr(other, attribute))
            same(value / getattr(one, attribute), 1.0)
    a, b = (model.sample_posterior(2, random_state=0) for model in (one, other))
    same(k * b["coef"], a["coef"])


@pytest.mark.parametrize(
    ("name", "prior"),
    [(name, prior) for name, prior in RELATIVE if isinstance(prior, str)],
)
def test_columns_of_different_units(name, prior):
    """One scale for each, or the default: the fit does not know their units.

    Wrong variants: one number for all columns; the default relative to all of them.
    """
    k = np.array([1e6, 1.0, 1e-6])
    one, expected, _ = near(name, prior)
    other, found, _ = fitted(name, k * X + MOVE, prior)
    same(found, expected)
    same(other.lower_bound_, one.lower_bound_)
    same(k * other.coef_, one.coef_)
    if prior == "default":
        same(k * other.prior_scale_, one.prior_scale_)


def mixed(rng, n=90):
    """Columns of every kind, and their units."""
    rare = (np.arange(n) < 6) * rng.integers(1, 4, n)
    words = np.where(np.arange(n) % 3 == 0, rng.gamma(2.0, size=n), 0.0)
    often = np.where(np.arange(n) % 3 == 0, 0.0, rng.gamma(2.0, size=n))
    columns = {
        "normal": (rng.normal(size=n), None),
        "two values": ((np.arange(n) % 2) * 2.5 - 1.0, 2.5),
        "mostly the upper one": ((np.arange(n) < 80) * 1.0, 1.0),
        "rare counts": (rare, np.sqrt((rare[:6] ** 2).mean())),
        "weights of words": (words, np.sqrt((words[::3] ** 2).mean())),
        "few zeros": (often, None),
        "constant": (np.full(n, 0.1), 1.0),
    }
    X = np.column_stack([column for column, _ in columns.values()]).astype(float)
    units = [x.std() if u is None else u for x, u in columns.values()]
    return X[order := rng.permutation(n)], np.array(units), order


def test_units_of_columns():
    """By the values: whatever the container, the origin, the order and the weights are.

    Wrong variants: deviations, which free rare words; the usual value 0, or that of
    the rows without weights; zeros that are stored as values of their own; a row of
    weight 0 that makes a column vary.
    """
    rng = np.random.default_rng(4)
    X, expected, _ = mixed(rng)
    explicit = sp.csr_array(np.ones_like(X))
    explicit.data = X.ravel()
    move = 1e4 * rng.normal(size=X.shape[1])
    for features in (X, sp.csr_array(X), explicit, X + move, X[::-1].copy()):
        scale = feature_units(features, None, True, "each")[1]
        np.testing.assert_allclose(scale, expected, rtol=1e-8)
    unseen = feature_units(X, None, True, "each")[2]
    assert unseen.tolist() == [False] * 6 + [True]
    weight = rng.integers(0, 3, len(X)).astype(float)
    spoiled = np.where(weight[:, None] == 0, 7 * X + 1, X)
    repeated = np.repeat(X, weight.astype(int), axis=0)
    expected = feature_units(repeated, None, True, "each")
    for features in (spoiled, sp.csr_array(spoiled)):
        for factor in (1.0, 1e-12, 1e12):
            found = feature_units(features, factor * weight, True, "each")
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-8)
    # Without an intercept every row is compared with 0.
    for features in (X, explicit):
        scale = feature_units(features, None, False, "each")[1]
        wanted = [np.sqrt((x[x != 0] ** 2).mean()) for x in X.T]
        np.testing.assert_allclose(scale, wanted, rtol=1e-8)


@pytest.mark.parametrize("period", [2, 5, 7, 1000])
def test_usual_values_of_many_rows(period):
    """Of some rows in 50,000, whatever their order is. Wrong variant: even steps."""
    X = (np.arange(50_000) % period == 0).astype(float)[:, None] * [1.0, -3.0]
    for weight in (None, np.random.default_rng(0).uniform(size=len(X))):
        scale = feature_units(X, weight, True, "each")[1]
        np.testing.assert_allclose(scale, [1.0, 3.0], rtol=1e-6)


@pytest.mark.parametrize("kind", ["classes", "counts"])
def test_mixed_columns_in_any_units(kind):
    """The default: columns of every kind, dense and sparse, with repeated rows.

    Wrong variants: rows of weight 0 in the usual value; deviations of sparse columns.
    """
    rng = np.random.default_rng(6)
    X, _, _ = mixed(rng)
    f = X[:, :4] @ [1.0, 0.4, -1.0, 0.5]
    y = rng.logistic(size=90) + f > 0 if kind == "classes" else rng.poisson(np.exp(f))
    weight = rng.integers(0, 3, 90)
    rows = np.repeat(np.arange(90), weight)
    make = LOGISTIC if kind == "classes" else COUNT
    k = 10.0 ** rng.uniform(-6, 6, X.shape[1])
    k[-1] = 1.0  # a constant column has the unit 1
    one = make().fit(X[rows], y[rows])
    for features in (k * X, sp.csr_array(k * X), k * X + 10 * k):
        other = make().fit(features, y, weight)
        same(other.lower_bound_, one.lower_bound_)
        same(k * other.coef_, one.coef_)
        same(k * other.coef_std_, one.coef_std_)


def test_a_column_of_large_unit_erases_nothing():
    """Counts of three columns, the third in a unit of 3e-5: coefficients and evidence.

    Wrong variant: the default relative to all columns (-124.37).
    """
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = np.random.default_rng(1).poisson(np.exp(0.5 + X @ [1, -0.8, 0]))
    model = COUNT().fit(X * [1.0, 1.0, 3e4], y)
    bounds = model.evidence_bounds(X * [1.0, 1.0, 3e4], y, random_state=0)
    np.testing.assert_allclose(model.coef_[:2], [1.127, -0.866], atol=0.002)
    assert bounds.reliable
    assert bounds.estimate == pytest.approx(-105.47, abs=0.03)


BATCHES = Stochastic(batch_size=20)
PARTS = [
    {"posterior": "mean_field"},
    {"objective": "eubo"},
    {"divergence": "renyi"},
    {"loss": "beta", "prior": "normal"},
    {"solver": "stochastic", "max_iter": 3, "prior": "normal"},
    {"solver": BATCHES, "max_iter": 2, "prior": "normal"},
    {"class_weight": "balanced"},
    {"fit_intercept": False, "divergence": "jeffreys"},
]


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_other_parts(parts):
    """Families, objectives, divergences and solvers: moved, scaled, and sparse.

    Wrong variants: draws, or minibatches, of features as they are.
    """
    parts = {"random_state": 0, **parts}
    prior = parts.pop("prior", "default")
    _, expected, _ = fitted("two classes", X, prior, **parts)
    moved = X + MOVE if parts.get("fit_intercept", True) else X
    others = [sp.csr_array(moved)] + ([1e6 * X] if prior == "default" else [])
    for features in others:
        found = fitted("two classes", features, prior, **parts)[1]
        same(found, expected, 1e-5)


@pytest.mark.parametrize("name", ["two classes", "three classes", "poisson"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_that_are_not_copied(name, dtype, monkeypatch):
    """Large dense ones are standardized when they are read.

    Wrong variants: read as they are; standardized in single precision.
    """
    features = (X + [0.0, 1000.0, 10.0]).astype(dtype)
    parts = [{"prior": "default"}, {"solver": BATCHES, "max_iter": 2}]
    parts[1] |= {"posterior": "mean_field", "random_state": 0}
    if name == "three classes":
        parts[0] |= {"posterior": "full_rank"}
    values = []
    for limit in (2**24, 10):
        monkeypatch.setattr("skvi.linear_model._units.MAX_COPIED", limit)
        fits = [fitted(name, features, **own) for own in parts]
        values.append(np.concatenate([found for _, found, _ in fits]))
    same(*values, 1e-6 if dtype == np.float64 else 1e-5)


@pytest.mark.parametrize("name", ["two classes", "poisson", "numbers"])
def test_evidence_of_moved_columns(name):
    """The same bounds with the same draws. Wrong variant: a target without units."""
    values, limits = [], {"n_draws": 64} if name != "numbers" else {}
    for features in (X, X + MOVE):
        model, _, options = fitted(name, features, Normal(2.5))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bounds = model.evidence_bounds(
                features, ESTIMATORS[name][1], random_state=0, **limits, **options
            )
        values.append([bounds.lower, bounds.upper])
    same(*values)


def test_calendar_years():
    """The slope of a year is found, in single precision and by counts.

    Wrong variants: the intercept's prior at the year 0; subtraction in single
    precision.
    """
    rng = np.random.default_rng(3)
    years = rng.integers(2000, 2020, 300).astype(float)[:, None]
    p = 1 / (1 + np.exp(-0.3 * (years[:, 0] - 2010)))
    y = (rng.uniform(size=300) < p).astype(int)
    for prior in ("ard", "horseshoe", Normal(2.5), "auto"):
        for features in (years, years.astype(np.float32)):
            model = LOGISTIC(prior=prior).fit(features, y)
            new = np.array([[2019.0]], features.dtype)
            assert model.coef_[0, 0] == pytest.approx(0.324, abs=0.004)
            assert model.predict_proba(new)[0, 1] == pytest.approx(0.952, abs=0.002)
    counts = rng.poisson(np.exp(1 + 0.06 * (years[:, 0] - 2010)))
    for likelihood in ("poisson", "negative_binomial"):
        model = COUNT(likelihood=likelihood).fit(years, counts)
        assert model.coef_[0] == pytest.approx(0.06, abs=0.015)


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_units_of_exposure(likelihood):
    """Rates per day or per year: the intercept alone knows; new exposures scale.

    Wrong variants: the intercept's prior at an exposure of 1; predictions at the mean
    exposure.
    """
    model = COUNT(likelihood=likelihood)
    expected = model.fit(X, COUNTS, exposure=EXPOSURE).predict(X, exposure=1)
    slope, at, bound = model.coef_, model.intercept_, model.lower_bound_
    model.fit(X, COUNTS, exposure=1e5 * EXPOSURE)
    same(model.coef_, slope)
    same(model.lower_bound_, bound)
    same(model.intercept_ + np.log(1e5), at)
    same(1e5 * model.predict(X, exposure=1), expected)
    found = model.predict(X, exposure=np.full(60, 3e5))
    same(found, 3 * expected)
    draws = model.sample_y(X, 4000, random_state=0, exposure=np.full(60, 1e5))
    assert draws.mean() == pytest.approx(expected.mean(), rel=0.05)
    e, x = 1e5, np.linspace(-1.5, 1.5, 12)
    y = np.round(e * np.exp(-9.2 + 0.5 * x))
    model.fit(x[:, None], y, exposure=np.full(12, e))
    total = model.predict(x[:, None], exposure=np.full(12, e)).sum()
    assert total == pytest.approx(y.sum(), rel=0.02)


@pytest.mark.parametrize("name", ["two classes", "poisson", "numbers"])
def test_a_posterior_keeps_its_units(name):
    """Data in two parts, the second elsewhere: nearly the fit of all of it.

    Wrong variants: the second part's own means and scales under the first one's
    posterior; the first ones in units of X.
    """
    model, y = ESTIMATORS[name]
    parts = {"prior": Normal(1.0)}
    if name == "numbers":
        parts |= {"noise_scale": 0.5}
    first, second = X[:, 0] < 0.5, X[:, 0] >= 0.5
    whole = type(model)(**parts).fit(X, y)
    begun = type(model)(**parts).fit(X[first], y[first])
    found = type(model)(**{**parts, "prior": begun.posterior_})
    found.fit(X[second], y[second])
    width = whole.coef_std_.max()
    np.testing.assert_allclose(found.coef_, whole.coef_, atol=0.25 * width)
    np.testing.assert_allclose(found.intercept_, whole.intercept_, atol=0.25 * width)


@estimators
def test_warm_starts_in_other_units(name):
    """The end of the last fit is a start, wherever the columns now are.

    Wrong variant: converged where the last fit had.
    """
    model, y = ESTIMATORS[name]
    model = type(model)(**{**model.get_params(), "warm_start": True})
    other = 1e3 * X + 1e5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkviWarning)
        cold = type(model)(**model.get_params()).fit(other, y)
        model.fit(X, y).fit(other, y)
    np.testing.assert_allclose(
        model.coef_, cold.coef_, atol=0.02 * cold.coef_std_.max()
    )
    assert model.lower_bound_ == pytest.approx(cold.lower_bound_, abs=1e-3)


@pytest.mark.parametrize("prior", ["log_uniform", "hierarchical"])
def test_priors_without_an_optimum_or_by_draws(prior):
    """Up to the tolerance, and with the same draws. Wrong variant: in units of X."""
    parts = {"max_iter": 3} if prior != "log_uniform" else {}
    (one, expected, _), (other, found, _) = (
        fitted("two classes", features, prior, random_state=0, **parts)
        for features in (X, 1e6 * X + 1e3)
    )
    same(found, expected, 1e-3)
    assert other.lower_bound_ == pytest.approx(one.lower_bound_, abs=1e-2)


def test_scales_of_hyperpriors_are_relative_to_the_columns():
    """That of a given half-Cauchy to all of them, those of "ard" to each.

    Wrong variants: in units of X; constant columns in the mean of the squares.
    """
    rng = np.random.default_rng(1)
    wide = np.column_stack([3.0 * X, np.full(60, 0.1)])
    rms = 3 * np.sqrt(X.var(0).mean())
    model = LOGISTIC(prior=Normal(HalfCauchy(0.2))).fit(wide, CLASSES)
    assert model.posterior_.units.x_scale == pytest.approx(rms)
    assert model.posterior_.units.x_mean[-1] == 0.1
    model = LOGISTIC(prior="ard").fit(wide, CLASSES)
    assert model.posterior_.units.x_scale == pytest.approx([*(3 * X.std(0)), 1.0])
    weight = rng.uniform(size=60)
    model = LOGISTIC(prior=Normal(HalfCauchy()))
    model.fit(wide, CLASSES, sample_weight=weight)
    mean = np.average(wide[:, :3], axis=0, weights=weight)
    square = np.average((wide[:, :3] - mean) ** 2, axis=0, weights=weight)
    assert model.posterior_.units.x_scale == pytest.approx(np.sqrt(square.mean()))
    for given in "normal", ARD(1.0, 1.0):
        assert LOGISTIC(prior=given).fit(wide, CLASSES).posterior_.units.x_scale == 1.0


@pytest.mark.parametrize("scales", [(0.2, 5.0), (0.05, 1.0)])
def test_gamma_priors_that_are_given_hold_for_columns_as_they_are(scales):
    """Their evidence, on columns of unequal scale, is that of quadrature.

    Wrong variant: relative to each column (off by more than a nat).
    """
    rng, at = np.random.default_rng(3), np.linspace(-15, 15, 1501)
    wide = rng.normal(size=(30, 2)) * scales
    y = wide @ [1.0, -0.5] + 0.5 * rng.normal(size=30)
    prior, noise = stats.t(4, 0, np.sqrt(0.25)), stats.norm(0, 0.5)
    given = y[:, None] - wide[:, :1] * at  # linear in the second one: by sums
    one, two, apart = (given**2).sum(0), (wide[:, 1] ** 2).sum(), wide[:, 1] @ given
    squares = one[:, None] - 2 * apart[:, None] * at + two * at**2
    log_p = 30 * noise.logpdf(0) - squares / (2 * 0.25)
    log_p += prior.logpdf(at)[:, None] + prior.logpdf(at)
    exact = logsumexp(log_p) + 2 * np.log(at[1] - at[0])
    own = {"fit_intercept": False, "normalize_y": False, "noise_scale": 0.5}
    model = BayesianLinearRegression(prior=ARD(2.0, 0.5), **own).fit(wide, y)
    found = model.evidence_bounds(wide, y, random_state=0)
    assert found.estimate == pytest.approx(exact, abs=0.05)
    assert found.lower - 5 * found.lower_se < exact < found.upper + 5 * found.upper_se
