"""Intervals, quantiles and densities through pipelines and searches."""

import numpy as np
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skvi
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)

RNG = np.random.default_rng(0)
X = 3 + 2 * RNG.normal(size=(60, 2))
F = (X - 3) @ [0.4, -0.2]
Y = F + 0.3 * RNG.normal(size=60)


def fitted(model, y):
    return make_pipeline(StandardScaler(), model).fit(X, y)


def searched(model, y):
    grid = {"fit_intercept": [True]}
    return GridSearchCV(model, grid, cv=2).fit(X, y)


def own(found):
    """The estimator inside, and X as it sees it."""
    if isinstance(found, GridSearchCV):
        return found.best_estimator_, X
    return found[-1], found[:-1].transform(X)


@pytest.mark.parametrize("wrap", [fitted, searched])
def test_regressions(wrap):
    """Wrong variant: X is not transformed on the way."""
    found = wrap(BayesianLinearRegression(), Y)
    inner, Z = own(found)
    pairs = [
        (skvi.predict_interval(found, X, coverage=0.5), inner.predict_interval(Z, 0.5)),
        (skvi.predict_quantiles(found, X, 0.2), inner.predict_quantiles(Z, 0.2)),
        (skvi.predict_log_density(found, X, Y), inner.predict_log_density(Z, Y)),
        (
            skvi.sample_y(found, X, 3, random_state=0),
            inner.sample_y(Z, 3, random_state=0),
        ),
        (skvi.summary(found).mean, inner.summary().mean),
    ]
    for got, expected in pairs:
        np.testing.assert_array_equal(got, expected)


def test_counts_with_exposure():
    """Wrong variant: options are lost."""
    y = RNG.poisson(np.exp(F))
    found = fitted(BayesianPoissonRegressor(prior="normal"), y)
    inner, Z = own(found)
    got = skvi.predict_interval(found, X, exposure=np.full(60, 5.0))
    expected = inner.predict_interval(Z, exposure=np.full(60, 5.0))
    np.testing.assert_array_equal(got, expected)


def test_class_probabilities():
    """Wrong variant: X is not transformed on the way."""
    found = fitted(BayesianLogisticRegression(prior="normal"), Y > 0)
    inner, Z = own(found)
    got = skvi.predict_proba_interval(found, X, coverage=0.5)
    np.testing.assert_array_equal(got, inner.predict_proba_interval(Z, 0.5))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LinearRegression(), "has no method predict_interval"),
        (TransformedTargetRegressor(BayesianLinearRegression()), "normalize_y"),
    ],
)
def test_what_has_no_intervals_says_so(model, message):
    """Wrong variant: an AttributeError of somebody else's object."""
    with pytest.raises(TypeError, match=message):
        skvi.predict_interval(model.fit(X, Y), X)
