"""Hypotheses that are dropped: what is left says the same as all of them."""

import numpy as np
import pytest

from skvi.changepoint import (
    BayesianChangepointDetector,
    BernoulliTrials,
    PoissonCounts,
    Regression,
)

EXACT = {"max_hypotheses": None, "min_probability": 0.0}


def one_shifted(n_series, shift, n=320, at=200, seed=0):
    X = np.random.default_rng(seed).standard_normal((n, n_series))
    X[at:, 0] += shift
    return X


@pytest.mark.parametrize(
    ("n_series", "shift"), [(1, 2.0), (3, 2.0), (10, 2.5), (25, 3.0), (50, 4.0)]
)
def test_one_series_that_changes_among_many_is_found(n_series, shift):
    """As if no hypothesis were dropped.

    Wrong variant: the threshold does not know the number of parameters.
    """
    X = one_shifted(n_series, shift)
    detector = BayesianChangepointDetector("constant_mean").fit(X)
    exact = BayesianChangepointDetector("constant_mean", **EXACT).fit(X)
    assert detector.changepoints_.tolist() == exact.changepoints_.tolist()
    assert np.abs(detector.changepoints_ - 200).tolist() in ([0], [1], [2])
    assert detector.log_evidence_ == pytest.approx(exact.log_evidence_, abs=1e-3)
    np.testing.assert_allclose(
        detector.change_probability_, exact.change_probability_, atol=1e-3
    )


@pytest.mark.parametrize(
    ("model", "after"),
    [
        (Regression(noise_scale=1.0, noise_df=np.inf), 2.0),
        (Regression(trend=True), 4.0),
        (Regression(1), 5.0),
        (Regression(1, across=True), 6.0),
        (PoissonCounts(), 9.0),
        (BernoulliTrials(), 0.7),
    ],
    ids=str,
)
def test_other_models_of_many_series(model, after):
    """Wrong variant, caught by known noise and trials: the threshold does not know the
    number of parameters."""
    d, n = 10, 300
    rng, changed = np.random.default_rng(1), np.zeros((n, d))
    changed[200:, 0] = 1.0
    X = {
        "real": lambda: rng.standard_normal((n, d)) + after * changed,
        "count": lambda: 1.0 * rng.poisson(3.0 + (after - 3.0) * changed),
        "binary": lambda: 1.0 * (rng.random((n, d)) < 0.05 + (after - 0.05) * changed),
    }[model.support]()
    detector = BayesianChangepointDetector(model).fit(X)
    exact = BayesianChangepointDetector(model, **EXACT).fit(X)
    assert np.abs(exact.changepoints_ - 200).max() <= 2
    assert detector.changepoints_.tolist() == exact.changepoints_.tolist()
    assert detector.log_evidence_ == pytest.approx(exact.log_evidence_, abs=1e-2)
