"""The posterior that linear models take by default: what can be afforded."""

import numpy as np
import pytest
from sklearn.base import clone

from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
    _base,
)
from skvi.posteriors import (
    Ensemble,
    FullRankNormal,
    LowRankNormal,
    MeanFieldNormal,
    Product,
)
from skvi.posteriors._whitened import Exact
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


@pytest.mark.parametrize(
    ("parameters", "family"),
    [
        ({}, Exact),
        ({"prior": "normal"}, Exact),
        ({"noise_scale": "learn", "prior": "normal"}, FullRankNormal),
        ({"prior": "ard"}, MeanFieldNormal),
        ({"prior": "horseshoe"}, MeanFieldNormal),
        ({"likelihood": "student_t"}, MeanFieldNormal),
    ],
)
def test_regression(parameters, family):
    """Where one decomposition makes the fit, it is quick with more rows, too.

    Wrong variant: it is where there are fewer rows than parameters.
    """
    model = _fit(BayesianLinearRegression(**parameters), 30, 10, 30)
    found = model.posterior_family_
    if isinstance(found, Product):  # beside precisions
        found = next(iter(found.blocks.values()))
    assert isinstance(found, family)


def test_counts_and_numbers_given():
    few = _fit(BayesianPoissonRegressor(prior=Normal()), 9, 10)
    many = _fit(BayesianPoissonRegressor(prior=Normal()), 30, 10)
    given = _fit(BayesianPoissonRegressor(posterior=FullRankNormal()), 30, 10)
    families = [type(m.posterior_family_) for m in (few, many, given)]
    assert families == [FullRankNormal, MeanFieldNormal, FullRankNormal]


@pytest.mark.parametrize(
    "model",
    [
        BayesianLogisticRegression(posterior="low_rank"),
        BayesianPoissonRegressor(posterior=LowRankNormal(2), solver="stochastic"),
        BayesianLinearRegression(posterior=LowRankNormal(2), objective="eubo"),
        BayesianLinearRegression(posterior=LowRankNormal(2), noise_scale=1.0),
        BayesianLogisticRegression(posterior=Ensemble(base="low_rank")),
    ],
    ids=repr,
)
def test_low_rank_is_refused(model):
    """Before any training, with what takes less time and is more accurate.

    Wrong variant: the strings alone.
    """
    with pytest.raises(IncompatibleComponentsError, match="Use posterior='full_rank'"):
        _fit(model, 30, 3)
    assert not hasattr(model, "posterior_")
