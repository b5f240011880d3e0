"""Sparse and hard data, and units that do not matter."""

import warnings
from functools import cache
from itertools import cycle

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.special import log_expit

from benchmarks import fuzz
from skvi._estimator._features import feature_units
from skvi.base import NormalForm
from skvi.exceptions import SkviWarning
from skvi.expectations._poisson import smallest_counts
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
    _functions,
)
from skvi.predictors import LinearPredictor
from skvi.priors import Normal
from skvi.utils._rows import SparseRows


def make(n=80, d=12, n_classes=2, density=0.2, seed=0):
    rng = np.random.default_rng(seed)
    X = sp.random(n, d, density, random_state=rng, data_rvs=rng.standard_normal)
    dense = X.toarray()
    f = dense @ rng.standard_normal((d, n_classes)) * 2
    y = (f + rng.gumbel(size=f.shape)).argmax(1)
    return dense, y


class TestSparseRows:
    @pytest.fixture
    def pair(self):
        dense = torch.from_numpy(make()[0])
        return SparseRows(sp.csr_array(dense.numpy())), dense

    def test_products_are_differentiable(self, pair, generator):
        rows, _ = pair
        B = torch.randn(12, 2, generator=generator, dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda b: rows @ b, B.requires_grad_())


@pytest.mark.parametrize("kind", ["diag", "full", "low_rank"])
@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_standardized_rows(kind, n_outputs, dtype, make_normal):
    """As dense ones, in every product of a linear model; they stay sparse.

    One column without zeros is far from zero: its digits are not lost. Wrong variants:
    the shift added; the scale of the shift left out; the cross term of squares without
    its 2; the Gram matrix without the shift's own square; far columns shifted in
    products, which loses 1e-6 here.
    """
    rng, d = np.random.default_rng(0), 4
    X = sp.random_array((9, d), density=0.5, rng=rng).toarray()
    X[:, 1] = 1e6 + rng.integers(5, size=9)
    X = X.astype(dtype)
    origin, scale = X.mean(0, dtype=float), np.array([1.0, 0.5, 3.0, 0.1])
    rows = SparseRows.standardized(sp.csr_array(X), origin, scale)
    dense = torch.from_numpy((X - origin) / scale)
    assert rows.matrix.nnz == np.count_nonzero(X)
    predictor = LinearPredictor(d, n_outputs)
    h = torch.from_numpy(rng.uniform(size=(9, n_outputs)))
    weights = h[:, 0] if n_outputs == 1 else torch.diag_embed(h)
    slope = h[:, 0] if n_outputs == 1 else h
    size = predictor.layout.size
    theta = torch.from_numpy(rng.standard_normal((3, size)))
    normal = make_normal(size, "diag" if kind == "low_rank" else kind)
    if kind == "low_rank":
        normal = NormalForm(normal.mean, normal.scale, theta.T[:, :2].contiguous())

    def products(X):
        return [
            X.to(torch.float64)[2:5].dense() if X is rows else X[2:5],
            predictor.forward(theta, X),
            predictor.project(X, theta.T),
            predictor.pull_back(X, slope),
            predictor.gram(X, weights),
            predictor.gram_diagonal(X, weights),
            *predictor.moments(X, normal),
        ]

    for found, expected in zip(products(rows), products(dense), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_many_columns_stay_sparse(monkeypatch):
    """5,000 columns by conjugate gradients; any dense copy of X is refused."""
    rng = np.random.default_rng(0)
    X = sp.random(300, 5000, 0.002, "csr", random_state=rng)
    y = (X @ rng.standard_normal(5000) + 0.1 * rng.logistic(size=300) > 0).astype(int)
    dense = BayesianLogisticRegression(posterior="mean_field", prior="normal").fit(
        X.toarray(), y
    )

    def refuse(self, *args, **kwargs):
        assert self.shape[0] <= 32, "a sparse matrix was made dense"
        return original(self, *args, **kwargs)

    original = sp.csr_matrix.toarray
    monkeypatch.setattr(sp.csr_matrix, "toarray", refuse)
    model = BayesianLogisticRegression(posterior="mean_field", prior="normal").fit(X, y)
    assert model.coef_ == pytest.approx(dense.coef_, abs=1e-4)
    assert model.lower_bound_ == pytest.approx(dense.lower_bound_, abs=1e-4)


@pytest.mark.parametrize("size", [1.0, 1e7, 1e30, 1e140])
def test_smallest_counts_are_found_in_few_steps(size):
    """Rates size / (1 - u) - size, u uniform, as of a Pareto variable.

    Wrong variants: the count below; a bracket that doubles (200 steps at 1e30);
    bisection (60).
    """
    steps = []

    def cdf(k):
        steps.append(k)
        return 1 - size / (size + k + 1)  # of k + 1: the count is rounded down

    start = torch.ones(2).double()
    for level in (0.05, 0.5, 0.95):
        exact = max(0, np.ceil(size * level / (1 - level) - 1))
        found = smallest_counts(cdf, start, level)
        torch.testing.assert_close(found, start * exact, rtol=1e-9, atol=0)
    assert len(steps) < 3 * 35


def test_predictions_in_chunks_are_those_of_all_rows(monkeypatch):
    """Wrong variant: columns, as of exposures, that are not cut with the rows."""
    rng = np.random.default_rng(0)
    X, exposure = rng.normal(size=(30, 2)), rng.uniform(1, 5, 30)
    y = rng.poisson(exposure * np.exp(X[:, 0]))
    counts = BayesianPoissonRegressor().fit(X, y, exposure=exposure)
    classes = [BayesianLogisticRegression().fit(X, np.minimum(y, k)) for k in (1, 2)]

    def predictions():
        known = {"exposure": exposure}
        yield from counts.predict(X, return_std=True, **known)
        yield from counts.predict_uncertainty(X, **known).values()
        yield counts.predict_interval(X, **known)
        yield counts.predict_log_density(X, y, **known)
        for model in classes:
            yield from (model.predict_proba(X), model.predict_proba_interval(X))
            yield from model.predict_uncertainty(X).values()

    whole = list(predictions())
    monkeypatch.setattr(_functions, "CHUNK_ROWS", 7)
    for one, other in zip(whole, predictions(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


@pytest.mark.parametrize("count", [1e4, 1e9, 1e15])
def test_one_huge_count_among_small_ones_is_fitted(count):
    """The sum of the rates at the mode is that of the counts.

    Wrong variant: a Newton step that is halved forty times, no shorter than the count.
    """
    X = np.random.default_rng(0).normal(size=(20, 2))
    y = np.r_[count, np.ones(19)]
    model = BayesianPoissonRegressor(prior=Normal(0.1)).fit(X, y)
    assert model.converged_
    assert model.predict(X).sum() == pytest.approx(y.sum(), rel=0.02)


def test_means_that_grow_with_the_scale_are_medians():
    """Separable classes: quantiles by quadrature, which the mean over nodes has none.

    Wrong variants: the mean, 332; a series that ends at the last node; weights of nodes
    by their bounds (a median of 66, and a quantile of 977).
    """
    X = np.linspace(-1, 1, 20)[:, None]
    with pytest.warns(SkviWarning, match="medians are given") as caught:
        model = BayesianLogisticRegression().fit(X, X[:, 0] > 0)
    assert len(caught) == 1
    table = model.summary(0.9).to_frame().loc["x0"]
    exact = separable_quantiles(X[:, 0], X[:, 0] > 0, [0.05, 0.1587, 0.5, 0.8413, 0.95])
    found = [table["lower"], model.coef_[0, 0], table["upper"]]
    np.testing.assert_allclose(found, exact[[0, 2, 4]], rtol=0.02)
    assert model.coef_std_[0, 0] == pytest.approx((exact[3] - exact[1]) / 2, rel=0.025)
    draws = model.sample_posterior(40_000, random_state=0)["coef"][:, 0, 0]
    error = 3 * np.sqrt(0.25 / len(draws))
    assert abs((draws < model.coef_[0, 0]).mean() - 0.5) < error


def separable_quantiles(x, y, levels):
    """Quantiles of a positive slope by quadrature over scale, slope and intercept.

    The half-Cauchy scale has median 1 / std(x), the intercept deviation 10.
    """
    slope, log_scale = np.exp(np.linspace(-3, 18, 900)), np.linspace(-8, 25, 600)
    intercept, signs = np.linspace(-60, 60, 801), np.where(y, 1, -1)[:, None]
    log_prior = -np.log(np.cosh(log_scale + np.log(x.std()))) - log_scale
    normal = np.exp(-0.5 * (slope[:, None] * np.exp(-log_scale)) ** 2 + log_prior)
    rows = (log_expit(signs * (b * x[:, None] + intercept)).sum(0) for b in slope)
    likelihood = [np.exp(f - 0.5 * (intercept / 10) ** 2).sum() for f in rows]
    mass = np.cumsum(normal.sum(1) * likelihood * slope)
    return np.interp(levels, mass / mass[-1], slope)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "counts"])
def test_fuzzed_cases_do_not_fail(kind):
    """See `benchmarks/fuzz.py`."""
    cases = range(fuzz.CHECKED)
    found = {seed: fuzz.failure(kind, seed)[0] for seed in cases}
    assert not any(found.values()), found


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
