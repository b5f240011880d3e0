"""Posteriors, evidence and predictions against a direct computation, O(t^2)."""

import numpy as np
import pytest
from sklearn.base import clone

from skvi.changepoint import (
    BayesianChangepointDetector,
    BernoulliTrials,
    Hazard,
    PoissonCounts,
    Regression,
)
from skvi.changepoint.base import ConstantHazard
from tests.changepoint.reference import make_reference

EXACT = {"max_hypotheses": None, "min_probability": 0.0, "scaling": None}


class Aging(Hazard):
    """The longer a segment, the likelier its end; never before three rows."""

    def probability(self, length):
        return np.where(length < 3, 0.0, 1 - np.exp(-0.03 * length))


def real(n=26, d=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    X[n // 3 :] += 2.0
    X[2 * n // 3 :] *= 0.5
    return X


def counts(n=26, d=2):
    rng = np.random.default_rng(1)
    return rng.poisson(np.where(np.arange(n) < 12, 2.0, 7.0)[:, None], (n, d)) * 1.0


def binary(n=26, d=2):
    rng = np.random.default_rng(2)
    return (rng.random((n, d)) < np.where(np.arange(n) < 12, 0.2, 0.8)[:, None]) * 1.0


#: Name -> models, series, features
CASES = {
    "constant mean": ([Regression(mean_scale=1.5, noise_scale=0.7)], real(), None),
    "constant mean, three series": ([Regression()], real(d=3), None),
    "known noise": ([Regression(noise_scale=0.8, noise_df=np.inf)], real(d=2), None),
    "counts": ([PoissonCounts(2.0)], counts(), None),
    "trials": ([BernoulliTrials(0.5, 2.0)], binary(), None),
    "autoregression": ([Regression(2)], real(), None),
    "autoregressions": (
        [Regression(1), Regression(3), Regression()],
        real(d=2),
        None,
    ),
    "vector autoregressions": (
        [Regression(1, across=True), Regression(2, across=True)],
        real(d=2),
        None,
    ),
    "regression": (
        [Regression(features=True, coef_scale=2.0)],
        real(),
        np.random.default_rng(3).standard_normal((26, 2)),
    ),
    "trend": (
        [Regression(trend=True, mean_scale=1.5, slope_scale=9.0)],
        real(d=2),
        None,
    ),
    "sums": (
        [
            Regression(1, trend=True, features=True),
            Regression(1, across=True, trend=True, features=True),
        ],
        real(d=2),
        np.random.default_rng(5).standard_normal((26, 1)),
    ),
    "everything": (
        [
            Regression(trend=True),
            Regression(1, across=True),
            Regression(),
            Regression(noise_df=np.inf),
            Regression(features=True),
            Regression(2),
        ],
        real(d=2),
        np.random.default_rng(4).standard_normal((26, 1)),
    ),
}


def fit(models, X, features, hazard, **params):
    d = X.shape[1]
    given = X if features is None else np.column_stack([X, features])
    columns = None if features is None else list(range(d, given.shape[1]))
    detector = BayesianChangepointDetector(
        models, hazard=hazard, feature_columns=columns, **EXACT | params
    )
    return detector.fit(given)


def reference_of(detector, models, X, features, hazard, **params):
    burn_in = detector._stream.scaling.burn_in
    noise, mean = burn_in.noise, burn_in.mean
    return make_reference(
        models, X, hazard=hazard, features=features, noise=noise, mean=mean, **params
    )


def assert_equal(detector, reference, atol=1e-10):
    n = reference.n
    expected = reference.posterior()
    by_length = expected.sum(1)[::-1]
    found = np.zeros(n)
    found[detector.run_lengths_ - 1] = detector.run_length_posterior_
    np.testing.assert_allclose(found, by_length, rtol=0, atol=atol)
    np.testing.assert_allclose(
        detector.model_posterior_, expected.sum(0), rtol=0, atol=atol
    )
    assert detector.log_evidence_ == pytest.approx(reference.log_evidence, abs=1e-9)
    np.testing.assert_allclose(
        detector.change_probability_, reference.smoothed(), rtol=0, atol=atol
    )
    assert detector.dropped_mass_ == 0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("hazard", [ConstantHazard(7.0), Aging()], ids=["flat", "age"])
def test_posteriors_and_evidence(name, hazard):
    """Wrong variants: the row counts twice in a prediction; the hazard of length - 1;
    models of new segments drawn from the present posterior; the smoothing without the
    hazard."""
    models, X, features = CASES[name]
    prior = np.arange(1.0, len(models) + 1)
    prior /= prior.sum()
    detector = fit(models, X, features, hazard, model_prior=prior)
    expected = reference_of(detector, models, X, features, hazard, model_prior=prior)
    assert_equal(detector, expected)


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_those_before_the_row(name):
    """Of rows in one call: what is predicted when the rows before have been seen.

    Wrong variant: moments that change when the row is taken in.
    """
    models, X, features = CASES[name]
    given = X if features is None else np.column_stack([X, features])
    columns = None if features is None else list(range(X.shape[1], given.shape[1]))
    detector = BayesianChangepointDetector(
        models, hazard=7.0, feature_columns=columns, burn_in=10, **EXACT
    )
    whole = clone(detector).fit(given)
    for t in (11, 12, 19, 25):
        row = None if features is None else features[t]
        mean, std = (
            clone(detector).partial_fit(given[:t]).predict_next(row, return_std=True)
        )
        np.testing.assert_allclose(whole.predictions_[t], mean, atol=1e-12)
        np.testing.assert_allclose(whole.prediction_stds_[t], std, atol=1e-12)
