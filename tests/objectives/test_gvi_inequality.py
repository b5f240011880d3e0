"""Minus a generalized objective is a lower bound on a generalized evidence."""

import numpy as np
import pytest

from skvi.divergences import (
    AlphaDivergence,
    JeffreysDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.linear_model import BayesianLinearRegression

PARTS = {"noise_scale": 0.6, "normalize_y": False, "fit_intercept": False}
POWERS = [
    (KLDivergence(), 1.0),
    (KLDivergence(0.5), 2.0),
    (KLDivergence(3.0), 1 / 3),
    (RenyiDivergence(1.5), 1.5),
    (RenyiDivergence(3.0), 3.0),
    (AlphaDivergence(1.5), 1.5),
    (JeffreysDivergence(), 1.0),
]


@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
@pytest.mark.parametrize(("divergence", "power"), POWERS, ids=str)
def test_objectives_bound_the_evidence_of_a_power(divergence, power, posterior):
    """The evidence of the power is exact: rows of that weight.

    Wrong variants: the power 1/a; the objective not divided by a. Both break it for
    KLDivergence(0.5) or KLDivergence(3), where a full-rank q meets the bound.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3)) @ rng.normal(size=(3, 3))
    y = X @ np.array([1.0, -0.5, 0.3]) + 0.6 * rng.normal(size=20)
    model = BayesianLinearRegression(
        prior="normal", posterior=posterior, divergence=divergence, tol=1e-9, **PARTS
    ).fit(X, y)
    weight = np.full(len(y), power)
    other = BayesianLinearRegression(prior="normal", **PARTS).fit(X, y, weight)
    bounds = other.evidence_bounds(X, y, sample_weight=weight)
    assert bounds.method == "exact"
    gap = bounds.estimate / power - model.objective_value_
    assert gap > -1e-6
    if posterior == "full_rank" and divergence.kl_weight:
        assert gap == pytest.approx(0, abs=1e-6)
