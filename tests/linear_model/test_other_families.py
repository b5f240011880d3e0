"""Linear models with posteriors that are not normal: predictions average over draws."""

from copy import copy
from functools import cache

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone, is_classifier

from skvi._predictive._mixtures import DrawnPredictive
from skvi._predictive._quantiles import Draws
from skvi.base._layout import Units
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.linear_model._coefficients import DrawnCoefficients
from skvi.predictors import LinearPredictor
from skvi.priors import Normal
from tests.families import LogisticFamily

GIVEN = {"prior": Normal(), "noise_scale": 0.5, "normalize_y": False}
# With correlations a regression would predict from its exact posterior, not from draws.
GIVEN["posterior"] = "mean_field"
ESTIMATORS = [
    BayesianLinearRegression(**GIVEN),
    BayesianLinearRegression(posterior="mean_field"),
    BayesianLogisticRegression(prior="normal"),
    BayesianPoissonRegressor(prior="normal"),
]


def data_for(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)) + 1
    f = X @ [1.0, -0.5]
    if is_classifier(model):
        return X, (f + rng.logistic(size=60) > 0).astype(int)
    if isinstance(model, BayesianPoissonRegressor):
        return X, rng.poisson(np.exp(0.5 * f))
    return X, f + 0.5 * rng.normal(size=60)


def from_draws(fitted, n_draws=3000):
    """The same fit, as if its posterior were of a family that is not normal."""
    other = copy(fitted)
    generator = torch.Generator().manual_seed(1)
    theta = fitted.posterior_.draw(n_draws, generator).theta
    other._coefficients = DrawnCoefficients(fitted._model, theta.detach())
    return other


@pytest.mark.parametrize("model", ESTIMATORS, ids=repr)
def test_draws_of_a_normal_predict_what_it_does(model):
    """Wrong variants: no noise; quantiles of f; a mean of log densities."""
    X, y = data_for(model)
    exact = model.fit(X, y)
    drawn, rows = from_draws(exact), X[:8]
    near = {"rtol": 0.05, "atol": 0.05}
    density = drawn.predict_log_density(rows, y[:8])
    np.testing.assert_allclose(density, exact.predict_log_density(rows, y[:8]), **near)
    if is_classifier(model):
        proba = drawn.predict_proba(rows)
        np.testing.assert_allclose(proba, exact.predict_proba(rows), **near)
        return
    found, expected = (m.predict(rows, return_std=True) for m in (drawn, exact))
    np.testing.assert_allclose(found, expected, **near)
    levels = [0.05, 0.9]
    quantiles = [m.predict_quantiles(rows, levels) for m in (drawn, exact)]
    if isinstance(model, BayesianPoissonRegressor):
        assert (quantiles[0] == quantiles[1]).mean() > 0.9
    else:
        np.testing.assert_allclose(*quantiles, rtol=0.05, atol=0.06)
        _, covariance = drawn.predict(rows, return_cov=True)
        _, wanted = exact.predict(rows, return_cov=True)
        np.testing.assert_allclose(covariance, wanted, rtol=0.1, atol=0.01)


def test_deviations_of_draws_around_a_large_mean():
    """Wrong variant: a variance as a difference of mean squares, 0 or 2 here."""
    intercepts = 1e8 + np.array([-1.0, 1.0, 2.0, -2.0])
    theta = torch.tensor([[0.0, value] for value in intercepts], dtype=torch.float64)
    noise = torch.full((4, 1), 0.5, dtype=torch.float64)
    draws, noise = (
        Draws(LinearPredictor(1), theta),
        GaussianLikelihood()._at_scale(noise),
    )
    found = DrawnPredictive(noise, Units(0.0, 1.0), draws, np.zeros((2, 1)))
    (mean, std), *_ = found.moments()
    assert mean == 1e8
    assert std == pytest.approx((intercepts.var(ddof=1) + 0.25) ** 0.5, rel=1e-6)


def test_counts_of_draws_see_the_exposure():
    """Wrong variant: draws without the offset."""
    X, y = data_for(ESTIMATORS[3])
    exact = BayesianPoissonRegressor(prior="normal").fit(X, y)
    drawn, exposure = from_draws(exact), np.linspace(1, 5, 8)
    found = [m.predict(X[:8], exposure=exposure) for m in (drawn, exact)]
    np.testing.assert_allclose(*found, rtol=0.05)
    masses = [
        m.predict_log_density(X[:8], y[:8], exposure=exposure) for m in (drawn, exact)
    ]
    np.testing.assert_allclose(*masses, rtol=0.05, atol=0.05)


FITS = {"max_iter": 25, "tol": 0.1, "random_state": 0}


@cache
def fit_of_a_users_family(model):
    parts = model.get_params(deep=False) | FITS | {"posterior": LogisticFamily()}
    return type(model)(**parts).fit(*data_for(model))


@pytest.mark.parametrize("model", [ESTIMATORS[i] for i in (0, 3)], ids=repr)
def test_a_family_of_the_user(model):
    """It is fitted, and predicts alike for single rows and for sparse ones."""
    X, y = data_for(model)
    normal, fitted = clone(model).fit(X, y), fit_of_a_users_family(model)
    far = 3 * normal.coef_std_.max()
    np.testing.assert_allclose(fitted.coef_, normal.coef_, atol=far)
    error = 3 * fitted.lower_bound_se_
    assert fitted.lower_bound_ < normal.lower_bound_ + error + 0.05
    whole = fitted.predict(X[:5])
    assert fitted.predict(X[4:5]) == whole[4]
    np.testing.assert_allclose(fitted.predict(sparse.csr_array(X[:5])), whole)


def test_the_evidence_beside_such_a_family():
    """Which does not depend on it. Wrong variant: weights from the other family."""
    X, y = data_for(ESTIMATORS[2])
    model = fit_of_a_users_family(ESTIMATORS[2])
    bounds = model.evidence_bounds(X, y, n_draws=2000, random_state=0)
    exact = BayesianLogisticRegression(prior="normal").fit(X, y)
    expected = exact.evidence_bounds(X, y, n_draws=2000, random_state=1)
    assert bounds.reliable
    assert bounds.interval()[0] < expected.interval()[1]
    assert bounds.interval()[1] > expected.interval()[0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_family_beside_an_unknown_noise():
    X, y = data_for(ESTIMATORS[1])
    options = FITS | {"max_iter": 5}
    model = BayesianLinearRegression(posterior=LogisticFamily(), **options).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.corrcoef(mean, y)[0, 1] > 0.8
    assert (std > 0.9 * model.noise_scale_).all()
