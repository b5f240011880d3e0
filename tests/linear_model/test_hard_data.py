"""Data that nobody expects: empty rows, separable classes, huge counts and features."""

import numpy as np
import pytest
import torch
from scipy.special import log_expit
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from benchmarks import fuzz_linear
from skvi.exceptions import SkviWarning
from skvi.expectations._poisson import smallest_counts
from skvi.linear_model import (
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
    _summary,
)
from skvi.priors import Normal


def test_a_row_without_features_has_even_odds():
    """Without an intercept f is 0 there; wrong variant: its deviation is not raised."""
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = BayesianLogisticRegression(prior="normal", fit_intercept=False)
    model.fit(X, X[:, 0] > 0.1)
    np.testing.assert_array_equal(model.predict_proba_interval(0 * X[:1]), 0.5)


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


def test_quantiles_beyond_floats_are_infinite():
    """Wrong variant: a search that goes on when the upper end is infinite."""
    model = BayesianPoissonRegressor(likelihood="negative_binomial", prior="normal")
    X = np.random.default_rng(0).normal(size=(8, 3))
    model.fit(X, np.arange(8.0))
    low, high = model.predict_interval(1e6 * X[:1])[0]
    assert (low, high) == (0, np.inf)
    sure = BayesianPoissonRegressor(prior="normal").fit(X, np.exp(X[:, 0]).round())
    for parts in sure.predict_uncertainty(1e3 * np.abs(X)).values():
        assert not np.isnan(parts).any()


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
    monkeypatch.setattr(_summary, "CHUNK_ROWS", 7)
    for one, other in zip(whole, predictions(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def test_features_whose_squares_overflow_are_refused():
    """Wrong variant: probabilities of a half."""
    X = np.random.default_rng(0).normal(size=(20, 1))
    model = BayesianLogisticRegression().fit(X, X[:, 0] > 0.1)
    assert model.predict_proba([[1e140]])[0, 1] > 0.95
    with pytest.raises(ValueError, match="in the units of the fit"):
        model.predict_proba([[1e160]])


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


def test_means_that_later_scales_cannot_move_are_means():
    """Separable in 30 columns: wider scales have no weight. Wrong variant: medians."""
    X, y = load_breast_cancer(return_X_y=True)
    model = BayesianLogisticRegression().fit(scale(X), y)
    draws = model.sample_posterior(20_000, random_state=0)["coef"][:, 0]
    error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - model.coef_[0]) < 4.5 * error).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "counts"])
def test_fuzzed_cases_do_not_fail(kind):
    """See `benchmarks/fuzz_linear.py`."""
    cases = range(fuzz_linear.CHECKED)
    found = {seed: fuzz_linear.failure(kind, seed)[0] for seed in cases}
    assert not any(found.values()), found
