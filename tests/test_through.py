"""Intervals, quantiles and densities through pipelines and searches."""

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import BayesianRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skvi
from skvi.linear_model import (
    BayesianLinearRegression,
)

RNG = np.random.default_rng(0)
X = 3 + 2 * RNG.normal(size=(60, 2))
F = (X - 3) @ [0.4, -0.2]
Y = F + 0.3 * RNG.normal(size=60)


# Transformed targets

POSITIVE = np.exp(Y)


def transformed(func, inverse_func, y, model=None):
    model = model or BayesianLinearRegression()
    return TransformedTargetRegressor(model, func=func, inverse_func=inverse_func).fit(
        X, y
    )


def test_a_column_of_transformed_targets():
    """In the shape of y, as predictions are."""
    flat = transformed(np.log, np.exp, POSITIVE)
    column = transformed(np.log, np.exp, POSITIVE[:, None])
    ends = skvi.predict_interval(column, X)
    np.testing.assert_allclose(ends, skvi.predict_interval(flat, X)[..., None])
    density = skvi.predict_log_density(column, X, POSITIVE[:, None])
    np.testing.assert_allclose(density, skvi.predict_log_density(flat, X, POSITIVE))
    assert skvi.sample_y(column, X, 4, random_state=0).shape == (60, 1, 4)


# Estimators of scikit-learn, and samplers of imbalanced-learn


def test_normals_of_other_regressors():
    """Wrong variant: the variance as the standard deviation."""
    found = make_pipeline(StandardScaler(), BayesianRidge()).fit(X, Y)
    mean, std = found[-1].predict(found[:-1].transform(X), return_std=True)
    law = stats.norm(mean, std)
    ends = np.stack(law.interval(0.6), 1)
    np.testing.assert_allclose(skvi.predict_interval(found, X, coverage=0.6), ends)
    density = skvi.predict_log_density(found, X, Y)
    np.testing.assert_allclose(density, law.logpdf(Y))
    draws = skvi.sample_y(found, X, 4000, random_state=0)
    z = (draws - mean[:, None]) / std[:, None]
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    # BayesianRidge has a Series of deviations for a DataFrame.
    frame = pd.DataFrame(X, columns=["a", "b"])
    found = BayesianRidge().fit(frame, Y)
    got = skvi.predict_log_density(found, frame, pd.Series(Y))
    np.testing.assert_allclose(
        got, skvi.predict_log_density(BayesianRidge().fit(X, Y), X, Y)
    )
