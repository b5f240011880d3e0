"""The posterior that linear models take by default: what can be afforded."""

import numpy as np
import pytest
from sklearn.base import clone

from skvi.linear_model import (
    BayesianLogisticRegression,
    _base,
)
from skvi.posteriors import (
    FullRankNormal,
    MeanFieldNormal,
)
from skvi.priors import Normal


@pytest.fixture(autouse=True)
def _limits(monkeypatch):
    """Up to 8 parameters, 12 where that is quick, with at most 10 rows."""
    for name, limit in (("FULL", 8), ("QUICK", 12), ("QUICK_ROWS", 10)):
        monkeypatch.setattr(_base, f"MAX_{name}", limit)


def _fit(model, n_rows, n_features, n_classes=2):
    rng = np.random.RandomState(0)
    X, y = rng.standard_normal((n_rows, n_features)), np.arange(n_rows) % n_classes
    return model.fit(X, y)


@pytest.mark.parametrize(
    ("n_rows", "n_features", "n_classes", "family"),
    [
        (30, 7, 2, FullRankNormal),
        (30, 8, 2, MeanFieldNormal),
        (9, 11, 2, FullRankNormal),
        (11, 11, 2, MeanFieldNormal),
        (9, 12, 2, MeanFieldNormal),
        (30, 1, 4, FullRankNormal),
        (30, 2, 4, MeanFieldNormal),
        (9, 2, 4, MeanFieldNormal),
    ],
)
def test_classes(n_rows, n_features, n_classes, family):
    """Wrong variants: one column is counted; intercepts are not."""
    model = BayesianLogisticRegression(prior=Normal())
    model = _fit(model, n_rows, n_features, n_classes)
    assert isinstance(model.posterior_family_, family)
    assert model.posterior == "auto"
    named = "full_rank" if family is FullRankNormal else "mean_field"
    same = _fit(clone(model).set_params(posterior=named), n_rows, n_features, n_classes)
    np.testing.assert_array_equal(model.coef_, same.coef_)
