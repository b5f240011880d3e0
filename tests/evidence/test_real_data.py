"""Real data: the optimum of the ELBO, the sandwich, the moments of the posterior."""

import os
from functools import lru_cache

import numpy as np
import pytest
from scipy.stats import binom

from skvi.linear_model import BayesianLogisticRegression
from tests.reference import (
    REAL,
    Problem,
    importance_evidence,
    real_data,
)
from tests.references.make_estimators import load, moments

# The table shows four decimals, and breast cancer's evidence three.
ROUNDING = 5e-4
needs_data = pytest.mark.skipif("SKVI_DATA" not in os.environ, reason="no SKVI_DATA")
NAMES = [pytest.param(n, marks=needs_data if n == "pima" else ()) for n in REAL]
SMALL = [name for name in REAL if name != "pima"]


@lru_cache
def fitted(name, posterior, objective="elbo", seed=0):
    priors = {"prior": "normal", "intercept_prior": "normal"}
    model = BayesianLogisticRegression(
        posterior=posterior, objective=objective, random_state=seed, **priors
    )
    return model.fit(*real_data(name))


@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
@pytest.mark.parametrize("name", NAMES)
def test_lower_bound_is_the_optimum(name, posterior):
    """Wrong variants: std for variance in `moments`; E f for E loss (one node)."""
    model, full_rank = fitted(name, posterior), posterior == "full_rank"
    normal = model.posterior_.as_normal()
    problem = Problem(*real_data(name))
    exact = -problem.value(normal.mean.numpy(), normal.scale.numpy())
    assert model.lower_bound_ == pytest.approx(exact, abs=1e-4)
    assert model.lower_bound_ == pytest.approx(REAL[name][full_rank], abs=0.005)
    assert model.lower_bound_ == pytest.approx(
        -problem.optimum(full_rank)[0], abs=0.001
    )
    assert model.converged_
    assert model.lower_bound_se_ == 0
    assert model.objective_value_ == model.lower_bound_


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_truth_of_the_table(name):
    """log p(D) above against importance sampling in numpy."""
    value, error = importance_evidence(Problem(*real_data(name)), 200_000, seed=1)
    assert error < 0.005
    assert value == pytest.approx(REAL[name][2], abs=4 * error + ROUNDING)


def assert_sandwich(bounds, truth):
    assert bounds.reliable, bounds.reason
    assert bounds.lower - 2 * bounds.lower_se <= truth + ROUNDING
    assert bounds.upper + 2 * bounds.upper_se >= truth - ROUNDING
    assert abs(bounds.lower - truth) < 0.05
    assert abs(bounds.upper - truth) < 0.05
    assert bounds.gap == bounds.upper - bounds.lower


@pytest.mark.parametrize(
    "name", ["setosa", pytest.param("breast_cancer", marks=pytest.mark.slow), NAMES[3]]
)
def test_sandwich(name):
    """Wrong variants: no determinant in the proposal's density; prior without 2 pi."""
    bounds = fitted(name, "full_rank").evidence_bounds(*real_data(name), random_state=0)
    assert_sandwich(bounds, REAL[name][2])
    table = bounds.table
    own = fitted(name, "full_rank").lower_bound_
    assert table["ELBO of q"].value == pytest.approx(own, rel=1e-12)
    assert table["lower, 95 %"].value < REAL[name][2] < table["upper, 95 %"].value
    eubo = table["EUBO of q"]
    assert eubo.value - 2 * eubo.standard_error > REAL[name][2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["setosa", NAMES[3]])
def test_coverage_of_the_sandwich(name):
    """Each side is built to hold with 97.7 %; with two errors of slack nearly always.

    Breast cancer is in `test_coverage`, against a truth of its own.

    Wrong variants: blocks of all draws (K = n, no bias to the safe side); errors from
    all draws of the chains as if independent.
    """
    X, y = real_data(name)
    model, truth, n_seeds = fitted(name, "full_rank"), REAL[name][2], 12
    found = [model.evidence_bounds(X, y, random_state=s) for s in range(1, 1 + n_seeds)]
    for bounds in found:
        assert_sandwich(bounds, truth)
    lower = sum(b.lower <= truth + ROUNDING for b in found)
    upper = sum(b.upper >= truth - ROUNDING for b in found)
    assert min(lower, upper) >= binom.ppf(1e-4, n_seeds, 0.977)
    z = [(b.estimate - truth) / b.table["bridge"].standard_error for b in found]
    assert np.mean(np.square(z)) < 2.5
    assert abs(np.mean(z)) < 5 / np.sqrt(n_seeds)


def test_bounds_do_not_depend_on_the_fit():
    """The evidence belongs to the model: other q, same bounds. Two rows show q."""
    X, y = real_data("virginica")
    options = {"n_draws": 4096, "random_state": 0}
    a = fitted("virginica", "full_rank").evidence_bounds(X, y, **options)
    b = fitted("virginica", "mean_field").evidence_bounds(X, y, **options)
    assert (a.lower, a.upper, a.estimate) == (b.lower, b.upper, b.estimate)
    assert a.table["ELBO of q"].value > b.table["ELBO of q"].value
    assert a.table["EUBO of q"].value < b.table["EUBO of q"].value


@pytest.mark.slow
def test_stored_moments_are_found_again():
    again, stored = moments("setosa"), load()["moments"]["setosa"]
    for key, pair in stored.items():
        for found, expected in zip(again[key], pair, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


EUBO_SETS = [
    "setosa",
    "virginica",
    pytest.param("breast_cancer", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
@pytest.mark.parametrize("name", EUBO_SETS)
def test_eubo_has_the_moments_of_the_posterior(name, posterior):
    """Against chains of another kind, within the noise of both; mean of 4 fits.

    The ELBO's full-rank deviations are 1 to 3 % too small here, its mean-field ones
    10 to 60 %. Wrong variants: equal weights for the importance draws; the moments of
    the ELBO solution that serves as the proposal.
    """
    stored = load()["moments"][name]
    mean, mean_error = np.array(stored["mean"])
    variance, variance_error = np.array(stored["variance"])
    sd = np.sqrt(variance)
    models = [fitted(name, posterior, "eubo", seed) for seed in range(4)]
    normals = [model.posterior_.as_normal() for model in models]
    ess = sum(model.diagnostics_["ess"] for model in models)
    assert all(model.converged_ for model in models)
    assert ess > 4 * 5000
    shift = np.mean([n.mean.numpy() for n in normals], 0) - mean
    # The weights of skewed posteriors make the moments noisier than 1 / sqrt(ess).
    assert np.all(np.abs(shift) < 5 * np.hypot(mean_error, 1.5 * sd / np.sqrt(ess)))
    ratio = np.mean([n.variance.sqrt().numpy() for n in normals], 0) / sd - 1
    error = variance_error / variance / 2
    assert np.all(np.abs(ratio) < 5 * np.hypot(error, 1 / np.sqrt(ess)))
    for normal in normals:
        one_shift = np.abs(normal.mean.numpy() - mean)
        assert np.all(one_shift < 0.05 * sd + 2 * mean_error)
        one_ratio = np.abs(normal.variance.sqrt().numpy() / sd - 1)
        assert np.all(one_ratio < 0.05 + 2 * error)
    if posterior == "full_rank":
        i, j = np.triu_indices(len(sd), 1)
        products, error = np.array(stored["products"])
        found = np.mean([n.covariance().numpy()[i, j] for n in normals], 0)
        error = np.hypot(error, 1.5 / np.sqrt(ess))
        assert np.all(np.abs(found / (sd[i] * sd[j]) - products) < 5 * error)


@pytest.mark.parametrize("name", ["setosa", "virginica"])
def test_eubo_is_an_upper_bound_and_the_elbo_is_kept(name):
    """`objective_value_` is above log p(D), `lower_bound_` below the ELBO optimum."""
    eubo, elbo = fitted(name, "full_rank", "eubo"), fitted(name, "full_rank")
    error = 2 / np.sqrt(eubo.diagnostics_["ess"])
    assert eubo.objective_value_ > REAL[name][2] - 3 * error
    assert eubo.lower_bound_ < elbo.lower_bound_ < REAL[name][2]
    normal = eubo.posterior_.as_normal()
    value = -Problem(*real_data(name)).value(normal.mean.numpy(), normal.scale.numpy())
    assert eubo.lower_bound_ == pytest.approx(value, abs=1e-4)
