"""All subsets of columns: evidences, averages and the walk against fits one by one."""

import os
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.special import comb, logsumexp, softmax

from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model import BayesianLinearRegression
from skvi.model_selection import SubsetSearch
from skvi.priors import Normal


def make_rows(n_columns, n_rows=30):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n_rows, n_columns)) @ rng.normal(size=(n_columns, n_columns))
    y = 5 + X[:, 0] - 0.4 * X[:, 1] + rng.normal(size=n_rows)
    return X, y


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"prior": Normal(1.0)},
        {"noise_scale": 0.9, "normalize_y": False},
        {"prior": Normal(0.5), "noise_scale": 0.9, "fit_intercept": False},
    ],
)
def test_equals_fits_of_every_subset(params):
    """Fails without -k log(ratio)/2, the prior over sizes, or variances between them.

    The empty set is a column without effect, as a regression has no other.
    """
    X, y = make_rows(3)
    model = BayesianLinearRegression(**params)
    search = SubsetSearch(model, random_state=0).fit(X, y)
    every = [*chain.from_iterable(combinations(range(3), k) for k in range(4))]
    parts = [X[:, s] if s else np.zeros((30, 1)) for s in every]
    fits = [BayesianLinearRegression(**params).fit(part, y) for part in parts]
    pairs = [*zip(fits, parts, strict=True)]
    evidence = np.array([fit.evidence_bounds(Z, y).estimate for fit, Z in pairs])
    w = softmax(evidence - np.log([4 * comb(3, len(s)) for s in every]))
    columns, found = (search.results_[k] for k in ("columns", "log_evidence"))
    order = [every.index(tuple(c)) for c in columns]
    np.testing.assert_allclose(found, evidence[order], atol=1e-6)
    has = np.array([[j in s for j in range(3)] for s in every])
    np.testing.assert_allclose(search.inclusion_, w @ has, atol=1e-6)
    means, stds = np.moveaxis([fit.predict(Z, True) for fit, Z in pairs], 1, 0)
    mean = w @ means
    std = np.sqrt(w @ (stds**2 + (means - mean) ** 2))
    np.testing.assert_allclose(search.predict(X, True), [mean, std], rtol=1e-5)
    logs = [fit.predict_log_density(Z, y) for fit, Z in pairs]
    mixed = logsumexp(logs, 0, w[:, None])
    # Of a stratified sample of the noise.
    np.testing.assert_allclose(search.predict_log_density(X, y), mixed, atol=5e-3)
    # Fails with roots that lack the noise, or an intercept at the features' zero.
    some = search.sample_y(X, 10_000, random_state=0)
    np.testing.assert_allclose(some.std(1), std, rtol=0.04)
    assert (np.abs(some.mean(1) - mean) < 5 * std / 100).all()
    coef = search.sample_posterior(10_000, random_state=0)["coef"]
    np.testing.assert_allclose(coef.std(0), search.coef_std_, rtol=0.1)
    np.testing.assert_allclose((coef != 0).mean(0), search.inclusion_, atol=0.03)


def test_draws_of_likely_subsets():
    """Wrong variant: a draw of the noise for each subset and ratio, of any weight."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = X[:, 0] + rng.normal(size=60)
    search = SubsetSearch(BayesianLinearRegression(), random_state=0).fit(X, y)
    _, std = search.predict(X, return_std=True)
    some = search.sample_y(X, 20_000, random_state=0)
    assert np.mean(some.var(1) / std**2) == pytest.approx(1.0, abs=0.01)


def test_walk_agrees_with_enumeration():
    """Fails with probabilities of the last move, or swaps of one column alone."""
    X, y = make_rows(8, 60)
    model = BayesianLinearRegression()
    exact = SubsetSearch(model, model_prior=0.5).fit(X, y)
    given = {"model_prior": 0.5, "max_enumerated": 7, "n_sweeps": 20}
    found = SubsetSearch(model, **given, random_state=0).fit(X, y)
    assert (found.inclusion_se_ < 0.02).all()
    error = np.abs(found.inclusion_ - exact.inclusion_)
    assert (error < 4 * found.inclusion_se_ + 1e-6).all()


def test_refuses_what_has_no_closed_form():
    """Another noise, or a scale for each coefficient."""
    X, y = make_rows(2)
    for params in ({"likelihood": "student_t"}, {"prior": "ard"}):
        with pytest.raises(IncompatibleComponentsError, match="EvidenceSearch"):
            SubsetSearch(BayesianLinearRegression(**params)).fit(X, y)


@pytest.mark.slow
@pytest.mark.skipif("SKVI_DATA" not in os.environ, reason="no SKVI_DATA")
def test_crime_equals_quadrature():
    """32,768 subsets by a plain rule over log noise and log scale, half-Cauchy both.

    Fails with a rule over precisions without the Jacobian of the logarithm.
    """
    file = Path(os.environ["SKVI_DATA"], "grouped", "UScrime.csv")
    table = np.loadtxt(file, delimiter=",", skiprows=1)[:, 1:]
    table[:, np.arange(16) != 1] = np.log(table[:, np.arange(16) != 1])
    X, y = table[:, :-1], table[:, -1]
    Z, z, n = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std(), len(y)
    noise, scale = np.meshgrid(
        np.arange(-2.6, 1.2, 0.08), np.arange(-9, 6, 0.25), indexing="ij"
    )
    prior = noise + scale - np.log1p(np.exp(2 * noise)) - np.log1p(np.exp(2 * scale))
    fixed = prior - n * noise - 0.5 * np.log1p(n * np.exp(-2 * noise))
    ratio, gram, moment = np.exp(2 * (scale - noise)), Z.T @ Z, Z.T @ z
    masks = (np.arange(2**15)[:, None] >> np.arange(15) & 1).astype(bool)
    logs = []
    for mask in masks:
        e, vectors = np.linalg.eigh(gram[np.ix_(mask, mask)])
        squares, factors = n, []
        for value, along in zip(e, vectors.T @ moment[mask], strict=True):
            factors.append(1 + ratio * value)
            squares = squares - along**2 * ratio / factors[-1]
        half = 0.5 * np.log(np.prod(factors, 0))
        logs.append(logsumexp(fixed - half - 0.5 * squares * np.exp(-2 * noise)))
    model = BayesianLinearRegression()
    search = SubsetSearch(model, model_prior=0.5, random_state=0).fit(X, y)
    np.testing.assert_allclose(search.inclusion_, softmax(logs) @ masks, atol=1e-5)
