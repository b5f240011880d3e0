"""The order of the run-length loss that follows the stream."""

import numpy as np
import pytest

from skvi.changepoint import BayesianChangepointDetector, Regression, _judge
from skvi.losses import BetaLoss

EXACT = {"max_hypotheses": None, "min_probability": 0.0, "scaling": None}


def series():
    X = np.random.default_rng(0).standard_normal((40, 2))
    X[20:] += 3.0
    X[10, 0] = 9.0
    X[30, 1] = np.nan
    return X


def log_weights(beta, adapt_beta=False):
    detector = BayesianChangepointDetector(
        [Regression(), Regression(mean_scale=5.0)],
        hazard=20.0,
        loss=BetaLoss(1.2),
        run_length_loss=BetaLoss(beta),
        adapt_beta=adapt_beta,
        **EXACT,
    ).fit(series())
    filter_ = detector._stream.filter
    weight = filter_.weights[0] - filter_.log_total
    order = np.lexsort([filter_.block.model, filter_.block.start])
    order = order[np.isfinite(weight[order])]
    return weight[order], filter_.tilt[order]


def test_slopes_are_derivatives_of_the_log_weights(monkeypatch):
    """By differences of whole runs.

    Wrong variants: new segments without the slope of the old ones; slopes that are not
    centered.
    """
    monkeypatch.setattr(_judge, "STEP", 0.0)
    _, slope = log_weights(1.4, adapt_beta=True)
    up, _ = log_weights(1.4 + 1e-5)
    down, _ = log_weights(1.4 - 1e-5)
    np.testing.assert_allclose(slope, (up - down) / 2e-5, atol=1e-4, rtol=1e-5)


def test_adaption_moves_the_order_and_stays_in_range():
    rng = np.random.default_rng(1)
    X = np.concatenate([rng.normal(m, 1.0, (40, 1)) for m in (0, 4, -3)])
    X[::9] += 15 * rng.standard_normal((len(X[::9]), 1))
    common = {"loss": "beta", "max_hypotheses": 30}
    fixed = BayesianChangepointDetector(**common).fit(X)
    found = BayesianChangepointDetector(adapt_beta=True, **common).fit(X)
    assert fixed.run_length_beta_ == 1.75
    assert found.run_length_beta_ != 1.75
    assert 1 + _judge.SMALLEST <= found.run_length_beta_ <= 1 + _judge.LARGEST
    error = [np.abs(d.predictions_ - X)[X < 8].mean() for d in (fixed, found)]
    assert error[1] < error[0] + 0.05
    assert found.run_length_loss_.beta == pytest.approx(1.75)
