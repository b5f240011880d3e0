"""Groups of columns with a scale each, and columns from labels."""

import numpy as np
import pandas as pd
import pytest

from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    GroupedFeatures,
)
from skvi.priors import Normal

GROUPS = {"level": slice(1, 5), "slope": slice(5, None)}


def grouped(n=32):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"g": np.arange(n) % 4, "x": rng.normal(size=n)})
    columns = GroupedFeatures(sparse_output=False).fit_transform(table)
    y = 0.5 * table.x + columns @ rng.normal(size=8) + rng.normal(size=n)
    return np.c_[table.x, columns], y.to_numpy()


def test_scales_and_noise_are_integrated_out():
    """Against a fine grid of three numbers, given which all is normal.

    Wrong variants: one node in each cell instead of two; scales plugged in; the same
    scale for both groups.
    """
    X, y = grouped()
    model = BayesianLinearRegression(
        prior={"coef": Normal(1.0)}, column_groups=GROUPS, fit_intercept=False,
        normalize_y=False,
    ).fit(X, y)  # fmt: skip
    z = np.stack(np.meshgrid(np.r_[-7:6:0.4], np.r_[-7:6:0.4], np.r_[-1.2:1.2:0.1]), -1)
    z = z.reshape(-1, 3)
    scale = np.exp(z[:, [0] + [0] * 4 + [1] * 4])
    scale[:, 0] = 1.0
    for columns in GROUPS.values():  # at 1 the group adds a deviation of 1
        scale[:, columns] /= np.sqrt(np.mean(X[:, columns] ** 2, 0).sum())
    noise = np.exp(2 * z[:, 2])[:, None, None]
    A = X * scale[:, None]
    precision = np.eye(9) + A.mT @ A / noise
    covariance = np.linalg.inv(precision)
    mean = (covariance @ (A.mT @ y / noise[..., 0])[..., None])[..., 0]
    rest = y @ y - np.einsum("ij,ij->i", A.mT @ y, mean)
    log_p = -0.5 * (rest / noise[:, 0, 0] + np.linalg.slogdet(precision)[1])
    log_p -= len(y) * (z[:, 2] + 0.5 * np.log(2 * np.pi))
    log_p -= np.log(np.pi * np.cosh(z)).sum(1) - np.log(0.4 * 0.4 * 0.1)
    evidence = np.logaddexp.reduce(log_p)
    w = np.exp(log_p - evidence)
    mean, variance = scale * mean, scale**2 * covariance.diagonal(0, 1, 2)
    expected = w @ mean
    std = np.sqrt(w @ (variance + (mean - expected) ** 2))
    # The error of the lattice is a percent of the integral.
    assert model.lower_bound_ == pytest.approx(evidence, abs=0.02)
    assert model.coef_ == pytest.approx(expected, abs=0.02 * std.min())
    assert model.coef_std_ == pytest.approx(std, rel=0.01)


def test_groups_have_no_units():
    """Wrong variants: one unit for each column; an origin that is not centered."""
    X, y = grouped()
    model = BayesianLogisticRegression(column_groups=GROUPS).fit(X, y > 0)
    moved = 5 + X * np.r_[7.0, np.full(4, 100.0), np.full(4, 0.1)]
    moved = pd.DataFrame(moved, columns=["x", *"abcd", *(f"x:{c}" for c in "abcd")])
    names = {"level": list("dcba"), "slope": "x:*"}
    other = BayesianLogisticRegression(column_groups=names).fit(moved, y > 0)
    assert other.lower_bound_ == pytest.approx(model.lower_bound_, abs=1e-6)
    assert other.predict_proba(moved) == pytest.approx(model.predict_proba(X), rel=1e-6)
    ratio = model.prior_scale_["slope"] / other.prior_scale_["slope"]
    assert ratio == pytest.approx(0.1, rel=1e-6)


def test_unknown_labels_add_nothing():
    """Wrong variant: the last label's columns."""
    columns = GroupedFeatures().fit([["a", 1.0], ["b", 3.0]])
    assert columns.transform([["c", 5.0], ["b", 5.0]]).toarray().tolist() == [
        [0, 0, 0, 0], [0, 1, 0, 3],
    ]  # fmt: skip


@pytest.mark.parametrize("groups", [{"a": [9]}, {"a": "x*"}, {"a": [0], "b": [0]}])
def test_groups_that_do_not_exist_are_refused(groups):
    with pytest.raises(ValueError, match=r"column|name"):
        BayesianLinearRegression(column_groups=groups).fit(*grouped())
    with pytest.raises(IncompatibleComponentsError, match="names"):
        BayesianLinearRegression(prior={"b": Normal()}).set_params(
            column_groups={"a": [0]}
        ).fit(*grouped())
