"""Groups of columns with a scale each, and columns from labels."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
    GroupedFeatures,
)
from skvi.priors import Normal


def grouped(n=60, n_labels=6):
    rng = np.random.default_rng(0)
    labels, x = np.arange(n) % n_labels, rng.normal(size=n)
    columns = GroupedFeatures(sparse_output=False).fit_transform(np.c_[labels, x])
    effects = rng.normal(size=columns.shape[1])
    return np.c_[x, columns], 0.5 * x + columns @ effects + rng.normal(size=n)


GROUPS = {"level": slice(1, 7), "slope": slice(7, None)}


def test_scales_and_noise_are_integrated_out():
    """Against a fine grid of three numbers, given which all is normal.

    Wrong variants: two nodes in each cell counted as one; scales plugged in; the same
    scale for both groups.
    """
    X, y = grouped()
    prior = {"coef": Normal(1.0)}
    model = BayesianLinearRegression(
        prior=prior, column_groups=GROUPS, fit_intercept=False, normalize_y=False
    ).fit(X, y)
    unit = model._model.units.x_scale
    A, logs, means, seconds = X / unit, [], [], []
    known = np.diag(np.where(unit == 1, 1.0, 0.0))
    axis = np.arange(-5.0, 5.0, 0.3)
    parts = [A[:, columns] @ A[:, columns].T for columns in GROUPS.values()]
    for a in axis:
        for b in axis:
            covariance = np.exp(2 * a) * parts[0] + np.exp(2 * b) * parts[1]
            covariance += A @ known @ A.T
            for t in np.arange(-0.8, 0.8, 0.08):
                own = covariance + np.exp(2 * t) * np.eye(len(y))
                prior = -np.log(np.cosh([a, b, t])) - np.log(np.pi)
                own = multivariate_normal.logpdf(y, cov=own)
                logs.append(own + prior.sum() + np.log(0.3**2 * 0.08))
    assert model.lower_bound_ == pytest.approx(logsumexp(logs), abs=0.02)
