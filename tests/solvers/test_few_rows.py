"""Full-rank fits with fewer rows than parameters, in the space of the rows."""

import numpy as np
import pytest
import torch
from scipy import sparse

from skvi.divergences import KLDivergence
from skvi.linear_model import (
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.priors import Normal
from skvi.solvers import _hyper
from skvi.solvers._hyper import _Rows


def _data(n_rows=40, n_features=60):
    rng = np.random.RandomState(0)
    X = rng.standard_normal((n_rows, n_features)) * (rng.rand(n_rows, n_features) < 0.5)
    return X, X[:, :5].sum(1), rng


def _fit_both(make, monkeypatch, X, y, n_fewer=1, **more):
    """The fit in the space of the rows, where Newton steps are as small, and the other.

    `n_fewer`: small problems that are solved.
    """
    counts = [0]
    init = _Rows.__init__

    def counting(*args):
        counts[0] += 1
        init(*args)

    monkeypatch.setattr(_Rows, "__init__", counting)
    monkeypatch.setattr(_hyper, "MIN_SIZE", 0)
    rows = make().fit(X, y, **more)
    assert counts[0] >= n_fewer
    monkeypatch.setattr(_hyper, "MIN_SIZE", 10**9)
    parameters, n_before = make().fit(X, y, **more), counts[0]
    assert counts[0] == n_before
    return rows, parameters


def _check(rows, parameters, atol=1e-5):
    assert rows.converged_
    assert parameters.converged_
    gain = rows.objective_value_ - parameters.objective_value_
    assert abs(gain) < 1e-7
    np.testing.assert_allclose(rows.coef_, parameters.coef_, atol=atol)
    first, second = (m.posterior_.as_normal().covariance() for m in (rows, parameters))
    torch.testing.assert_close(first, second, rtol=10 * atol, atol=atol)


@pytest.mark.parametrize(("weight", "kind"), [(1.0, "sparse"), (0.5, "dense")])
def test_labels(weight, kind, monkeypatch):
    """Wrong variants: coordinates outside the rows without their prior; units that are
    not taken back."""
    X, f, rng = _data()
    y, sample_weight = f + rng.standard_normal(len(f)) > 0, rng.rand(len(f)) + 0.5
    X = sparse.csr_array(X) if kind == "sparse" else X

    def make():
        parts = {"prior": Normal(0.7), "intercept_prior": Normal(3.0), "tol": 1e-11}
        return BayesianLogisticRegression(
            divergence=KLDivergence(weight=weight), **parts
        )

    _check(*_fit_both(make, monkeypatch, X, y, sample_weight=sample_weight))


def test_counts_with_exposures(monkeypatch):
    X, f, rng = _data()
    exposure = rng.rand(len(f)) + 0.5
    y = rng.poisson(exposure * np.exp(0.3 * f))

    def make():
        return BayesianPoissonRegressor(prior=Normal(0.5), tol=1e-11)

    _check(*_fit_both(make, monkeypatch, X, y, exposure=exposure))


def test_learned_scales(monkeypatch):
    X, f, rng = _data()
    y = f + rng.standard_normal(len(f)) > 0

    def make():
        return BayesianLogisticRegression(prior=Normal(scale="learn"))

    rows, parameters = _fit_both(make, monkeypatch, X, y)
    assert rows.prior_scale_ == pytest.approx(parameters.prior_scale_, rel=1e-4)
    assert rows.lower_bound_ == pytest.approx(parameters.lower_bound_, abs=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_prior_of_unknown_scale(n_classes, monkeypatch):
    """The nodes are other ones: sums over them agree, and the reduced one is first.

    Wrong variant: all nodes with the prior of scale 1 outside the rows.
    """
    X, f, _ = _data()
    y = (f > 0) + (n_classes > 2) * (f > 2)

    def make():
        return BayesianLogisticRegression(posterior="full_rank", tol=1e-9)

    rows, parameters = _fit_both(make, monkeypatch, X, y)
    assert rows.converged_
    assert rows.lower_bound_ == pytest.approx(parameters.lower_bound_, abs=5e-3)
    np.testing.assert_allclose(rows.coef_, parameters.coef_, atol=3e-3)
    np.testing.assert_allclose(rows.coef_std_, parameters.coef_std_, rtol=1e-2)


def test_warm_starts(monkeypatch):
    """Wrong variant: every fit starts at the mode."""
    X, f, rng = _data()
    y = f + rng.standard_normal(len(f)) > 0
    monkeypatch.setattr(_hyper, "MIN_SIZE", 0)
    model = BayesianLogisticRegression(warm_start=True, prior=Normal()).fit(X, y)
    assert model.n_iter_ > 2
    value = model.lower_bound_
    assert model.fit(X, y).n_iter_ == 1
    assert model.lower_bound_ == pytest.approx(value, abs=1e-5)


def test_a_prior_that_is_nearly_flat():
    """Separable classes and a precision each: steps hardly shrink.

    Wrong variant: the gap that a quadratic model predicts ends the fit 3e-3 nats off.
    """
    rng = np.random.RandomState(0)
    X = rng.standard_normal((30, 60))
    y = 2 * X[:, :3].sum(1) + rng.logistic(size=30) > 0

    model = BayesianLogisticRegression(
        prior="ard", posterior="full_rank", max_iter=400
    ).fit(X, y)
    assert model.converged_
    in_parameters = -718.58386022  # of the fit in their space, to 1e-8
    assert in_parameters - 3e-4 < model.lower_bound_ < in_parameters + 1e-6
