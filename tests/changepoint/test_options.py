"""Losses, divergences and given features."""

import numpy as np
import pytest

from skvi.changepoint import (
    BayesianChangepointDetector,
    BernoulliTrials,
    PoissonCounts,
    Regression,
)
from skvi.divergences import KLDivergence
from skvi.losses import BetaLoss, LogLoss
from tests.changepoint.series import jump


def test_losses_by_name_and_object():
    X = jump(60)
    a = BayesianChangepointDetector(loss=LogLoss(), run_length_loss="log").fit(X)
    assert a.log_evidence_ == BayesianChangepointDetector().fit(X).log_evidence_
    robust = BayesianChangepointDetector(loss="beta").fit(X)
    assert robust.loss_function_.beta == pytest.approx(1 + 2.0**-2)
    half = BayesianChangepointDetector(loss="beta", run_length_loss="log").fit(X)
    assert half.log_evidence_ == pytest.approx(half.log_densities_.sum(), abs=1e-4)
    assert robust.log_evidence_ != pytest.approx(robust.log_densities_.sum(), abs=1)


def test_weaker_divergence_learns_less():
    """Of weight 4: four rows teach what one does. Robust and standard alike."""
    X = jump(60)
    for loss in ("log", BetaLoss(1 + 1e-8)):
        common = {"hazard": 1e9, "loss": loss, "scaling": None}
        model = Regression(noise_scale=1.0)
        a = BayesianChangepointDetector(model, divergence=KLDivergence(4.0), **common)
        b = BayesianChangepointDetector(model, **common)
        a.fit(np.repeat(X[:10], 4, 0))
        b.fit(X[:10])
        assert a.predict_next()[0] == pytest.approx(b.predict_next()[0], abs=1e-5)


@pytest.mark.filterwarnings("ignore:Column 0 holds only 0 and 1")
@pytest.mark.parametrize(
    "model",
    [Regression(noise_scale=0.7, noise_df=np.inf), PoissonCounts(), BernoulliTrials()],
)
def test_weaker_divergence_of_other_models(model):
    """Four rows teach what one does. Wrong variant: their number is not divided."""
    X = (np.random.default_rng(2).random((12, 1)) < 0.6) * 1.0
    common = {"hazard": 1e9, "scaling": None}
    a = BayesianChangepointDetector(model, divergence=KLDivergence(4.0), **common)
    b = BayesianChangepointDetector(model, **common)
    found = a.fit(np.repeat(X, 4, 0)).predict_next(return_std=True)
    np.testing.assert_allclose(found, b.fit(X).predict_next(return_std=True), rtol=1e-6)


def test_features_are_regressed_on():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((160, 2))
    coef = np.where(np.arange(160)[:, None] < 80, [[2.0, 0.0]], [[-2.0, 1.0]])
    y = (features * coef).sum(1) + 0.3 * rng.standard_normal(160)
    X = np.column_stack([features[:, 0], y, features[:, 1]])
    detector = BayesianChangepointDetector(
        Regression(features=True), feature_columns=[0, 2]
    ).fit(X)
    assert detector.changepoints_.tolist() == [80]
    assert detector.predict_next([1.0, 0.0])[0] == pytest.approx(-2, abs=0.2)
