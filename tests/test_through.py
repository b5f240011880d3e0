"""Intervals, quantiles and densities through pipelines and searches."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import skvi
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.model_selection import EvidenceSearch

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


@pytest.mark.parametrize("method", ["predict_interval", "summary"])
def test_what_has_no_such_method_says_so(method):
    """Wrong variant: an AttributeError of somebody else's object."""
    with pytest.raises(TypeError, match=f"Regression has no method {method}"):
        getattr(skvi, method)(LinearRegression().fit(X, Y), *([X] * (method[0] == "p")))
    transformed = TransformedTargetRegressor(BayesianLinearRegression()).fit(X, Y)
    for query in (skvi.summary, lambda t: skvi.evidence_bounds(t, X, Y)):
        with pytest.raises(TypeError, match="changes the unit of y"):
            query(transformed)


# Transformed targets

POSITIVE = np.exp(Y)


def transformed(func, inverse_func, y, model=None):
    model = model or BayesianLinearRegression()
    return TransformedTargetRegressor(model, func=func, inverse_func=inverse_func).fit(
        X, y
    )


def test_log_targets_are_lognormal():
    """A normal of known noise, against SciPy's lognormal; also inside other objects.

    Wrong variants: no Jacobian; its reciprocal; intervals in logs.
    """
    model = make_pipeline(
        StandardScaler(), BayesianLinearRegression(noise_scale=0.3, prior="normal")
    )
    found = GridSearchCV(transformed(np.log, np.exp, POSITIVE, model), {}, cv=2)
    found.fit(X, POSITIVE)
    mean, std = fitted(model[-1], Y).predict(X, return_std=True)
    law = stats.lognorm(std, scale=np.exp(mean))
    ends = np.stack([law.ppf(0.25), law.ppf(0.75)], 1)
    np.testing.assert_allclose(skvi.predict_interval(found, X, coverage=0.5), ends)
    np.testing.assert_allclose(
        skvi.predict_quantiles(found, X, 0.9)[:, 0], law.ppf(0.9)
    )
    density = skvi.predict_log_density(found, X, POSITIVE)
    np.testing.assert_allclose(density, law.logpdf(POSITIVE), rtol=1e-7)
    draws = skvi.sample_y(found, X, 3, random_state=0)
    logs = skvi.sample_y(found.best_estimator_.regressor_, X, 3, random_state=0)
    np.testing.assert_allclose(np.log(draws), logs)


def test_decreasing_functions_swap_the_ends():
    """Wrong variant: levels that are not turned around."""
    up = transformed(np.log, np.exp, POSITIVE)
    down = transformed(lambda y: -np.log(y), lambda z: np.exp(-z), POSITIVE)
    for query in (
        lambda t: skvi.predict_interval(t, X, coverage=0.5),
        lambda t: skvi.predict_quantiles(t, X, [0.1, 0.7]),
        lambda t: skvi.predict_log_density(t, X, POSITIVE),
    ):
        np.testing.assert_allclose(query(down), query(up), rtol=1e-6)


def test_affine_transformers_change_nothing():
    """Beside the plain model. Wrong variant: log densities in units of z."""
    plain = BayesianLinearRegression().fit(X, Y)
    scaled = TransformedTargetRegressor(
        BayesianLinearRegression(), transformer=StandardScaler()
    ).fit(X, 1e6 + Y)
    ends = skvi.predict_interval(scaled, X) - 1e6
    np.testing.assert_allclose(ends, plain.predict_interval(X), atol=1e-8)
    density = skvi.predict_log_density(scaled, X, 1e6 + Y)
    np.testing.assert_allclose(density, plain.predict_log_density(X, Y), atol=1e-5)


def test_a_column_of_transformed_targets():
    """In the shape of y, as predictions are."""
    flat = transformed(np.log, np.exp, POSITIVE)
    column = transformed(np.log, np.exp, POSITIVE[:, None])
    ends = skvi.predict_interval(column, X)
    np.testing.assert_allclose(ends, skvi.predict_interval(flat, X)[..., None])
    density = skvi.predict_log_density(column, X, POSITIVE[:, None])
    np.testing.assert_allclose(density, skvi.predict_log_density(flat, X, POSITIVE))
    assert skvi.sample_y(column, X, 4, random_state=0).shape == (60, 1, 4)


@pytest.mark.filterwarnings("ignore:The provided functions:UserWarning")
@pytest.mark.parametrize(
    ("func", "inverse", "y", "method", "reason"),
    [
        (np.square, np.sqrt, Y, "interval", "undefined for some predictions"),
        (np.sqrt, np.square, 0.1 * POSITIVE, "interval", "is not monotone"),
        (np.sqrt, np.square, 0.1 * POSITIVE, "log_density", "is not monotone"),
        (np.log, np.exp, np.c_[POSITIVE, POSITIVE], "interval", "several targets"),
        (np.log, np.exp, np.c_[POSITIVE, POSITIVE], "sample", "several targets"),
        (np.log, lambda z: 2 * np.exp(z), POSITIVE, "log_density", "does not return"),
        (np.abs, np.abs, POSITIVE, "log_density", "is not monotone"),
        (np.rint, np.rint, 9 * Y.round(), "log_density", "no smooth derivative"),
    ],
)
def test_transformations_that_are_refused(func, inverse, y, method, reason):
    """With the reason. Wrong variant: quantiles of one side alone."""
    found = TransformedTargetRegressor(
        BayesianLinearRegression(), func=func, inverse_func=inverse, check_inverse=False
    ).fit(X, y)
    query = {
        "interval": lambda: skvi.predict_interval(found, X),
        "log_density": lambda: skvi.predict_log_density(found, X, y),
        "sample": lambda: skvi.sample_y(found, X),
    }[method]
    with pytest.raises(ValueError, match=f"no such forecast of y.*{reason}"):
        query()


def test_a_clipped_square_is_monotone():
    """For roots of targets; draws need no monotone function."""
    y = 0.1 * POSITIVE
    clipped = transformed(np.sqrt, lambda z: np.maximum(z, 0) ** 2, y)
    plain = BayesianLinearRegression().fit(X, np.sqrt(y))
    ends = plain.predict_interval(X).clip(0) ** 2
    np.testing.assert_allclose(skvi.predict_interval(clipped, X), ends)
    draws = skvi.sample_y(transformed(np.sqrt, np.square, y), X, 2, random_state=0)
    np.testing.assert_allclose(draws, plain.sample_y(X, 2, random_state=0) ** 2)


def test_targets_that_have_no_transform():
    found = transformed(np.log, np.exp, POSITIVE)
    with pytest.raises(ValueError, match="some y are transformed to no finite number"):
        skvi.predict_log_density(found, X, -POSITIVE)


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


class Sampler(BaseEstimator):
    """As those of imbalanced-learn: `fit_resample`, and no `transform`."""

    def fit_resample(self, X, y):
        return X[::2], y[::2]


class SamplingPipeline(Pipeline):
    """As that of imbalanced-learn: samplers act in `fit` alone."""

    def fit(self, X, y):
        for _, step in self.steps[:-1]:
            if hasattr(step, "fit_resample"):
                X, y = step.fit_resample(X, y)
            elif step is not None:
                X = step.fit(X, y).transform(X)
        self.steps[-1][1].fit(X, y)
        return self


def test_samplers_are_skipped_at_prediction():
    """And no evidence is theirs. Wrong variants: they resample rows to predict, or
    their lack of a method `transform` is the message."""
    pipe = SamplingPipeline(
        [
            ("scale", StandardScaler()),
            ("nothing", None),
            ("sample", Sampler()),
            ("model", BayesianLinearRegression()),
        ]
    ).fit(X, Y)
    Z = pipe[0].transform(X)
    inner = BayesianLinearRegression().fit(Z[::2], Y[::2])
    np.testing.assert_array_equal(
        skvi.predict_interval(pipe, X), inner.predict_interval(Z)
    )
    score = skvi.metrics.log_predictive_density_scorer(pipe, X, Y)
    assert score == pytest.approx(inner.predict_log_density(Z, Y).mean())
    for supervised in (False, True):
        options = {"allow_supervised_transformers": supervised}
        with pytest.raises(ValueError, match="The sampler Sampler makes the rows"):
            skvi.evidence_bounds(pipe, X, Y, **options)
    with pytest.raises(ValueError, match="The sampler Sampler makes the rows"):
        EvidenceSearch(pipe, {"model__prior": ["normal", "ard"]}).fit(X, Y)
