"""Fits and predictions of rows in blocks of dask, by sums that workers add."""

import numpy as np
import pytest
from sklearn.base import clone

from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)

da = pytest.importorskip("dask.array")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3)) * [1, 2, 0.1] + 1
X[:, 1] = X[:, 1] > 1
F = (X - 1) @ [0.5, -0.6, 3.0]
LABELS = np.where(RNG.random(600) < 1 / (1 + np.exp(-F)), "yes", "no")
BLOCKS = da.from_array(X, chunks=(170, 2))


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (BayesianLogisticRegression(), LABELS),
        (BayesianLogisticRegression(prior="laplace"), LABELS),
        (BayesianLogisticRegression(prior="normal"), np.digitize(F, [-1, 1])),
        (BayesianLinearRegression(), F + RNG.normal(size=600)),
        (BayesianPoissonRegressor(), RNG.poisson(np.exp(F / 2))),
    ],
    ids=["auto", "laplace", "classes", "regression", "counts"],
)
def test_equals_the_fit_of_arrays(model, y):
    w = RNG.integers(0, 3, size=600)
    whole = clone(model).fit(X, y, sample_weight=w)
    parts = model.fit(BLOCKS, da.from_array(y, chunks=250), sample_weight=w)
    for name in ("coef_", "coef_std_", "intercept_", "lower_bound_"):
        expected = getattr(whole, name)
        np.testing.assert_allclose(getattr(parts, name), expected, rtol=1e-8)
    # The wrong variant adds means of blocks, which have different numbers of rows.
    method = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    lazy, now = getattr(parts, method)(BLOCKS), getattr(whole, method)(X)
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy, now, rtol=1e-8)


def test_starts_from_one_percent_of_many_rows():
    n = 25_000
    X, w = RNG.normal(size=(n, 2)), RNG.uniform(0.5, 1.5, size=n)
    y = RNG.random(n) < 1 / (1 + np.exp(-X[:, 0]))
    model = BayesianLogisticRegression(tol=1e-12, prior="normal")
    whole, parts = clone(model).fit(X, y, w), model.fit(da.from_array(X), y, w)
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=1e-8)


def test_what_needs_the_rows_is_refused():
    model = BayesianLogisticRegression()
    with pytest.raises(IncompatibleComponentsError, match="asks for the rows"):
        clone(model).set_params(objective="eubo").fit(BLOCKS, LABELS)
    with pytest.raises(TypeError, match="arrays, as of"):
        model.fit(X, LABELS).evidence_bounds(BLOCKS, LABELS)
