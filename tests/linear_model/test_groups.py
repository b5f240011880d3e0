"""Groups of columns with a scale each, and columns from labels."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import OneHotEncoder

from skvi.base import Layout
from skvi.exceptions import SkviWarning
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
    GroupedFeatures,
)
from skvi.priors import HalfCauchy, Laplace, Normal
from skvi.priors._blocks import build_prior
from skvi.priors._correlated import correlated
from skvi.utils._tensors import randn

KNOWN = {"coef": Normal(), "g": Normal()}
GROUPS = {"level": slice(1, 5), "slope": slice(5, None)}


def grouped(n=32, n_labels=4):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"g": np.arange(n) % n_labels, "x": rng.normal(size=n)})
    columns = GroupedFeatures("zero", sparse_output=False).fit(table)
    assert not columns.transform(table.assign(g=9)).any()  # an unknown label
    columns = columns.transform(table)
    y = 0.5 * table.x + columns @ rng.normal(size=2 * n_labels) + rng.normal(size=n)
    return np.c_[table.x, columns], y.to_numpy()


def test_scales_and_noise_are_integrated_out():
    """Against a grid. Wrong variants: a cell for one node; plugged in; one scale."""
    X, y = grouped()
    known = {"fit_intercept": False, "normalize_y": False, "prior": {"coef": Normal()}}
    model = BayesianLinearRegression(column_groups=GROUPS, **known).fit(X, y)
    z = np.meshgrid(np.r_[-7:6:0.4], np.r_[-7:6:0.4], np.r_[-1.2:1.2:0.1])
    z = np.stack(z, -1).reshape(-1, 3)
    scale = np.exp(z[:, [0] * 5 + [1] * 4])
    scale[:, 0] = 1.0
    for columns in GROUPS.values():  # at 1 the group adds a deviation of 1
        scale[:, columns] /= np.sqrt(np.mean(X[:, columns] ** 2, 0).sum())
    noise, A = np.exp(2 * z[:, 2])[:, None, None], X * scale[:, None]
    precision = np.eye(9) + A.mT @ A / noise
    covariance = np.linalg.inv(precision)
    mean = (covariance @ (A.mT @ y / noise[..., 0])[..., None])[..., 0]
    rest = y @ y - np.einsum("ij,ij->i", A.mT @ y, mean)
    log_p = -0.5 * (rest / noise[:, 0, 0] + np.linalg.slogdet(precision)[1])
    log_p -= len(y) * (z[:, 2] + 0.5 * np.log(2 * np.pi))
    log_p -= np.log(np.pi * np.cosh(z)).sum(1) - np.log(0.4 * 0.4 * 0.1)
    evidence = np.logaddexp.reduce(log_p)
    w, mean = np.exp(log_p - evidence), scale * mean
    variance, expected = scale**2 * covariance.diagonal(0, 1, 2), w @ mean
    std = np.sqrt(w @ (variance + (mean - expected) ** 2))
    # The error of the lattice is a percent of the integral.
    assert model.lower_bound_ == pytest.approx(evidence, abs=0.02)
    bounds = model.evidence_bounds(X, y)
    assert bounds.reliable
    assert bounds.method == "quadrature"
    # Wrong variant: the fit's sum over fewer nodes for a bound that always holds.
    assert bounds.table["ELBO of q"].holds == "in expectation"
    assert bounds.lower - 0.01 < evidence < bounds.upper + 0.01
    assert model.coef_ == pytest.approx(expected, abs=0.02 * std.min())
    assert model.coef_std_ == pytest.approx(std, rel=0.01)
    # Wrong variant: nodes that are smoothed as logs (0.15 of the width at an end).
    table = model.summary(groups=True)
    for k, logs in enumerate((np.log(scale[:, 1]), np.log(scale[:, 5]), z[:, 2])):
        each, at = np.unique(logs, return_inverse=True)
        levels, middle = np.bincount(at, w).cumsum(), each + 0.5 * (each[1] - each[0])
        ends = np.exp(np.interp([0.05, 0.95], levels, middle))
        found = [table.lower[k], table.upper[k]]
        assert found == pytest.approx(ends, abs=0.03 * (ends[1] - ends[0]))


def test_far_ends_of_a_scale_that_may_be_zero():
    """Wrong variant: ends where a power of the scale is 0, of 1e-31; by a grid 2e-4."""
    rng = np.random.default_rng(0)
    X = np.c_[np.eye(20)[np.arange(40) % 20], np.eye(4)[rng.integers(4, size=40)]]
    groups = {"a": slice(0, 20), "b": slice(20, None)}
    parts = {"fit_intercept": False, "normalize_y": False, "noise_scale": 1.0}
    model = BayesianLinearRegression(column_groups=groups, **parts)
    table = model.fit(X, rng.normal(size=40)).summary(0.999, groups=True)
    assert (table.lower > 1e-7 * table.mean).all()


def test_groups_have_no_units():
    """Wrong variants: one unit for each column; an origin that is not centered."""
    X, y = grouped()
    model = BayesianLogisticRegression(column_groups=GROUPS).fit(X, y > 0)
    moved = 5 + X * np.r_[7.0, np.full(4, 100.0), np.full(4, 0.1)]
    moved = pd.DataFrame(moved, columns=["x", *"abcd", *(f"x:{c}" for c in "abcd")])
    names = {"level": list("dcba"), "slope": "x:*"}
    other = BayesianLogisticRegression(column_groups=names).fit(moved, y > 0)
    assert other.lower_bound_ == pytest.approx(model.lower_bound_, abs=1e-6)
    assert other.predict_proba(moved) == pytest.approx(model.predict_proba(X), rel=1e-6)
    scales = [m.prior_scale_["slope"] for m in (model, other)]
    assert scales[1] == pytest.approx(10 * scales[0], rel=1e-6)
    table = other.summary(groups="level")
    assert sorted(table.names) == list("abcd")
    assert table.mean == pytest.approx(np.sort(other.coef_[0, 1:5]))
    with pytest.raises(ValueError, match="has no group 'x'"):
        other.summary(groups="x")
    with pytest.raises(ValueError, match="no column"):
        model.set_params(column_groups={"a": "z*"}).fit(moved, y > 0)


NEAR = 32, 4, 0.0, (-7, 6, -7, 6, -4, 4)
FAR = 60, 8, 30.0, (-3, 4, -1, 6, -3, 3)


def pairs_on_a_grid(n, size, moved, ends):
    """Effects and slopes, and their posterior by a grid of scales and correlation.

    Effects are those at a zero of x that is `moved` from its mean, where those are
    whose scales the grid has.
    """
    X, y = grouped(n, size)
    X = X[:, 1:]
    X[:, size:] += moved * X[:, :size]
    groups = {"level": slice(0, size), "slope": slice(size, None)}
    known = {"fit_intercept": False, "normalize_y": False, "noise_scale": 1.0}
    model = BayesianLinearRegression(column_groups={"g": groups}, **known).fit(X, y)
    z = np.meshgrid(*(np.arange(*end, 0.4) for end in np.reshape(ends, (3, 2))))
    z = np.stack(z, -1).reshape(-1, 3)
    first, second = (np.sqrt(np.mean(X[:, c] ** 2, 0).sum()) for c in groups.values())
    s, t, r = np.exp(z[:, 0]) / first, np.exp(z[:, 1]) / second, np.tanh(z[:, 2])
    root, k = np.zeros((len(z), 2 * size, 2 * size)), np.arange(size)
    along, rest = s * r - moved * t, s / np.cosh(z[:, 2])
    declared = np.hypot(along, rest)
    root[:, k, k] = declared[:, None]
    root[:, k + size, k] = (t * along / declared)[:, None]
    root[:, k + size, k + size] = (t * rest / declared)[:, None]
    A = X @ root
    covariance = np.linalg.inv(np.eye(2 * size) + A.mT @ A)
    mean = (root @ covariance @ (A.mT @ y)[..., None])[..., 0]
    log_p = 0.5 * (np.linalg.slogdet(covariance)[1] + (X.T @ y * mean).sum(1) - y @ y)
    log_p -= 0.5 * len(y) * np.log(2 * np.pi) - 3 * np.log(0.4)
    log_p -= np.log(np.pi**2 * np.cosh(np.log(declared * first)) * np.cosh(z[:, 1]))
    # Of r, and ratios of volumes, of scales and of z.
    log_p -= np.log(2 * np.cosh(z[:, 2]) ** 2 * (declared / s) ** 3)
    variance = (root @ covariance @ root.mT).diagonal(0, 1, 2)
    return X, y, model, log_p, along / declared, mean, variance


@pytest.mark.parametrize("case", [NEAR, FAR], ids=["near", "far"])
def test_pairs_are_correlated(case):
    """Against a grid. Wrong variants: no density, or slope, of r; the sign of r.

    Far from zero: no ratio of volumes, or slope of it; 260 nodes of declared numbers.
    """
    *_, model, log_p, r, mean, variance = pairs_on_a_grid(*case)
    evidence = np.logaddexp.reduce(log_p)
    w = np.exp(log_p - evidence)
    expected = w @ mean
    std = np.sqrt(w @ (variance + (mean - expected) ** 2))
    assert model.lower_bound_ == pytest.approx(evidence, abs=0.02)
    assert (model.coef_ - expected) / std == pytest.approx(np.zeros_like(std), abs=0.02)
    assert model.coef_std_ == pytest.approx(std, rel=0.02)
    table = model.summary(groups=True)
    assert table.names == ("level", "slope", "corr(g)")
    assert table.mean[2] == pytest.approx(w @ r, abs=0.02)
    assert sum(table.numbers.values()) == pytest.approx(1.0)
    assert model.diagnostics_["n_scales"] < 130
    both, *parts = (model.summary(groups=g).names for g in ("g", "level", "slope"))
    assert both == parts[0] + parts[1]  # wrong variant: all in one order


def test_pairs_of_which_data_say_little():
    """Wrong: levels in the middle also of near ones (singular); far ones in silence."""
    rng = np.random.default_rng(0)
    labels, x = np.eye(3)[rng.integers(3, size=60)], rng.normal(size=(60, 1))
    levels, steps = 0.3 * rng.normal(size=3), 0.3 * rng.normal(size=3)
    y = labels @ (1.7 * levels) + (x * labels) @ steps + rng.normal(size=60)
    parts = {"fit_intercept": False, "normalize_y": False, "noise_scale": 1.0}
    one, other = slice(0, 3), slice(3, None)
    model = BayesianLinearRegression(column_groups={"g": {"a": one, "b": other}})
    turned = BayesianLinearRegression(column_groups={"g": {"a": other, "b": one}})
    X = np.c_[labels, (x + 1) * labels]
    model.set_params(**parts).fit(X, y)
    turned.set_params(**parts).fit(X, y)
    assert np.abs((model.coef_ - turned.coef_) / model.coef_std_).max() < 0.02
    with pytest.warns(ConvergenceWarning, match="Center the features"):
        model.fit(np.c_[labels, (x + 30) * labels], y)


def test_pairs_in_either_order_and_in_a_stream():
    X, y, model, *_ = pairs_on_a_grid(*NEAR)
    turned = {"level": slice(4, None), "slope": slice(0, 4)}  # no lower triangle
    other = clone(model).set_params(column_groups={"g": turned})
    other.fit(X[:, np.r_[4:8, 0:4]], y)
    assert other.lower_bound_ == pytest.approx(model.lower_bound_, abs=1e-6)
    counts = BayesianPoissonRegressor(column_groups=model.column_groups)
    for rows in (slice(None, None, 2), slice(1, None, 2)):  # the next prior has r
        counts.partial_fit(X[rows], np.round(np.exp(0.3 * y[rows])))
    assert counts.diagnostics_["n_batches"] == 2
    with pytest.raises(ValueError, match="at least two"):
        model.set_params(column_groups={"g": {"a": [0, 1], "b": [2]}}).fit(X, y)


@pytest.mark.slow
def test_evidence_of_pairs():
    """Against a grid. Wrong variant: nodes without the density of r."""
    X, y, model, log_p, *_ = pairs_on_a_grid(*NEAR)
    evidence, bounds = np.logaddexp.reduce(log_p), model.evidence_bounds(X, y)
    assert bounds.method == "quadrature"
    assert bounds.lower - 0.005 < evidence < bounds.upper + 0.005


def test_density_without_scales_and_correlation():
    """Against a grid. Wrong variants: the density of d for that of t; r's without 1/2.

    Draws have r uniform: by the variance of the mean sign of ``a_k b_k``; not r = 0.
    """
    layout = Layout({"coef": (1, 8)})
    groups = {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}
    priors = {"a": Normal(HalfCauchy()), "b": Normal(HalfCauchy(0.5))}
    built = correlated(build_prior(priors, layout, groups), {"r": ["a", "b"]})
    theta = randn(torch.Generator().manual_seed(0), 2, 8)
    z, w = np.meshgrid(np.r_[-12:12:0.25], np.r_[-6:6:0.25])
    for k, size in enumerate((1.0, 0.1)):
        theta[k] *= size
        a, b = theta[k, :4].numpy(), 2 * theta[k, 4:].numpy()
        found = []
        for s in np.exp(np.r_[-12:12:0.25]):
            t, r, c = np.exp(z), np.tanh(w), np.cosh(w) ** 2
            squares = a @ a / s**2 - 2 * r * (a @ b) / (s * t) + b @ b / t**2
            terms = 2 * np.log(c) - 4 * np.log(s * t) - 0.5 * c * squares
            terms -= np.log(np.pi**2 * (s + 1 / s) * (t + 1 / t) / 4) + np.log(2 * c)
            found.append(np.logaddexp.reduce(terms.ravel()))
        exact = np.logaddexp.reduce(found) + 3 * np.log(0.25)
        exact -= 4 * np.log(2 * np.pi) + 4 * np.log(0.5)
        assert float(built.log_prob(theta)[k]) == pytest.approx(exact, abs=1e-4)
    a, b = built.sample(10_000, torch.Generator().manual_seed(0)).chunk(2, 1)
    expected = 0.25 + 0.75 * (1 - 8 / np.pi**2)
    assert float((a * b).sign().mean(1).var()) == pytest.approx(expected, abs=0.03)


def by_labels(n_labels=200, n=600):
    rng = np.random.default_rng(1)
    g, x = np.arange(n) % n_labels, rng.normal(size=(n, 2))
    columns = GroupedFeatures().fit_transform(g[:, None])
    f = x[:, 0] + rng.normal(size=n_labels)[g]
    return sparse.hstack([sparse.csr_matrix(x), columns]).tocsr(), f, rng


def test_labels_are_as_correlated_as_by_a_full_covariance():
    """Wrong variants: a border's factor without its sign; a step without its edge."""
    X, f, rng = by_labels()
    y = f + rng.logistic(size=len(f)) > 0
    model = BayesianLogisticRegression(column_groups={"g": slice(2, None)}).fit(X, y)
    assert repr(model.posterior_family_) == "BorderedNormal(<3 parameters>)"
    full = clone(model).set_params(posterior="full_rank").fit(X, y)
    # The prior of the intercept, of deviation 10, acts a tenth of a deviation apart.
    assert model.lower_bound_ == pytest.approx(full.lower_bound_, abs=1e-3)
    apart = (model.coef_ - full.coef_) / full.coef_std_
    assert np.abs(apart).max() < 1e-3
    assert model.coef_std_ == pytest.approx(full.coef_std_, rel=1e-4)
    assert model.intercept_std_ == pytest.approx(full.intercept_std_, rel=1e-3)
    pairs = [m.predict_proba(X[:9])[:, 1] for m in (model, full)]
    assert pairs[0] == pytest.approx(pairs[1], abs=1e-4)


@pytest.mark.parametrize(
    "estimator", [BayesianLogisticRegression, BayesianPoissonRegressor]
)
def test_crossed_factors_as_by_a_full_covariance(estimator):
    """Wrong variants: edges once in variances of f; S without the product of edges."""
    rng = np.random.default_rng(2)
    codes = np.column_stack([np.arange(1200) % 220, rng.integers(30, size=1200)])
    X, groups = (
        OneHotEncoder().fit_transform(codes),
        {"a": range(220), "b": range(220, 250)},
    )
    f = X @ rng.normal(size=250)
    y = rng.poisson(np.exp(0.5 * f))
    y = y if estimator is BayesianPoissonRegressor else y > 0
    prior = {"a": Normal(0.5), "b": Normal(0.5)}
    model = estimator(column_groups=groups, prior=prior).fit(X, y)
    assert repr(model.posterior_family_) == "BorderedNormal(<31 parameters>)"
    full = clone(model).set_params(posterior="full_rank").fit(X, y)
    assert model.lower_bound_ == pytest.approx(full.lower_bound_, abs=1e-3)
    assert np.abs((model.coef_ - full.coef_) / full.coef_std_).max() < 2e-3
    assert model.coef_std_ == pytest.approx(full.coef_std_, rel=1e-3)
    again, known = pickle.loads(pickle.dumps(model)), model.predict(X)
    assert again.predict(X) == pytest.approx(known, rel=1e-12)


def test_too_many_crossed_columns_are_said_to_be_independent():
    n, prior = 1700, {"a": Normal(0.1), "b": Normal(0.1)}
    X, groups = sparse.hstack([sparse.eye(n)] * 2), {"a": slice(n), "b": slice(n, None)}
    model = BayesianLogisticRegression(column_groups=groups, prior=prior)
    with pytest.warns(SkviWarning, match="3,401 coefficients are too many"):
        model.fit(X, np.arange(n) % 2)


def test_noise_beside_labels():
    """Against the closed form at the fitted scales. Wrong variant: columns centered."""
    X, f, rng = by_labels()
    y = f + rng.normal(size=len(f))
    groups = {"g": slice(2, None)}
    model = BayesianLinearRegression(column_groups=groups, prior=KNOWN).fit(X, y)
    moved = 5 + X.toarray()
    other = BayesianLinearRegression(column_groups=groups, prior=KNOWN).fit(moved, y)
    full = BayesianLinearRegression(
        column_groups=groups, prior=KNOWN, posterior="full_rank"
    ).fit(X, y)
    assert other.lower_bound_ == pytest.approx(model.lower_bound_, abs=1e-6)
    assert model.sigma_ == pytest.approx(full.sigma_, abs=1e-3 * full.sigma_.max())
    std = [m.predict(X[:9], return_std=True)[1] for m in (model, full)]
    assert std[0] == pytest.approx(std[1], rel=1e-3)


def test_evidence_of_dense_columns_of_labels():
    """Wrong variant: rows that the fit takes as sparse are dense in the evidence."""
    X, f, rng = by_labels(n=400)
    X, y = X.toarray(), f + rng.normal(size=len(f))
    model = BayesianLinearRegression(column_groups={"g": slice(2, None)}, tol=0.01)
    bounds = model.fit(X, y).evidence_bounds(X, y, max_seconds=0.05)
    assert bounds.reason.startswith("max_seconds")


def test_new_labels_of_which_the_transformer_knows():
    """Draws of two are apart. Wrong variant: unknown labels, which share a column."""
    rng = np.random.default_rng(0)
    shop, x = rng.integers(8, size=80), rng.normal(size=(80, 1))
    y = rng.normal(size=8)[shop] + x[:, 0] + 0.3 * rng.normal(size=80)
    labels = GroupedFeatures(sparse_output=False).fit(np.r_[shop, 97, 98][:, None])
    model = BayesianLinearRegression(column_groups={"shop": slice(1, None)})
    model.fit(np.c_[x, labels.transform(shop[:, None])], y)
    new = np.c_[np.zeros(4), labels.transform([[97], [98], [55], [56]])]
    draws = np.corrcoef(model.sample_y(new, 2000, random_state=0))
    assert abs(draws[0, 1]) < 0.3
    assert draws[2, 3] > 0.8
    with pytest.raises(ValueError, match="such as 0, these such as '97'"):
        labels.transform([["97"]])  # as new labels these would be silently wrong


def test_scales_that_are_not_integrated_are_named():
    """Wrong variant: silence, with deviations that are a fifth too small."""
    X, y = np.random.default_rng(0).normal(size=(2, 30, 3))
    model = BayesianLinearRegression(
        column_groups={"g": [1, 2]}, prior={"coef": Laplace()}
    )
    with pytest.warns(SkviWarning, match="integrated beside normal priors alone"):
        model.fit(X, y[:, 0])
