"""Every row of the table says what is true of it; the interval uses what is sure."""

import math

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.priors import Laplace

COMMON = {
    "ELBO of q": "lower",
    "Renyi (alpha=0.5) of q": "lower",
    "IW-ELBO of q": "lower",
    "lower, 95 %": "lower",
    "bridge": "estimate",
    "upper, 95 %": "upper",
    "IW-EUBO of q": "upper",
    "EUBO of q": "upper",
    "EUBO of q, self-normalized": "upper",
    "Renyi (alpha=-0.5) of q": "upper",
    "Renyi (alpha=-1) of q": "upper",
    "chi (order=2) of q": "upper",
}
NOTHING = {name for name, side in COMMON.items() if "alpha=-" in name}
NOTHING |= {"chi (order=2) of q", "EUBO of q, self-normalized", "bridge"}


def test_infinite_bounds_say_so():
    """q narrower than half the prior: chi is infinite, and the row prints a number."""
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)[:, :8]
    model = BayesianLogisticRegression(posterior="mean_field", prior="normal").fit(X, y)
    table = model.evidence_bounds(X, y, n_draws=256, random_state=0).table
    row = table["chi (order=2) of q"]
    assert row.exists is False
    assert math.isfinite(row.value)
    assert row.certifies == "+inf in expectation; no valid bound"
    # The self-normalized EUBO of a poor q is too small.
    row = table["EUBO of q, self-normalized"]
    assert row.value < table["EUBO of q"].value
    assert not row.is_certificate


# The conjugate table


# Several targets


def test_several_targets_without_closed_form():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    Y = X @ rng.normal(size=(2, 2)) + rng.normal(size=(40, 2)) * [0.3, 3]
    model = BayesianLinearRegression(prior=Laplace(), noise_scale=1.0).fit(X, Y)
    bounds = model.evidence_bounds(X, Y, n_draws=512, random_state=0)
    assert "IW-ELBO" in bounds.table
    assert "lower, 95 %" not in bounds.table
    assert bounds.table["IW-ELBO"].value == pytest.approx(bounds.lower)
