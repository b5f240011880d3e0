"""Features of very different ranges."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skvi.exceptions import SkviWarning
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.linear_model._exact_coefficients import many_classes_message
from skvi.priors import HalfCauchy, Horseshoe, Normal, StudentT

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 3)) * [0.01, 1.0, 100.0]
Y = X[:, 1] + X[:, 0] * 100


def found(model, X, y):
    """Messages that speak of ranges."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    return [w for w in caught if "ranges" in str(w.message)]


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (BayesianLinearRegression(prior=Normal("learn")), Y),
        (BayesianLinearRegression(prior="horseshoe"), Y),
        (BayesianLogisticRegression(prior=Normal(HalfCauchy())), Y > 0),
        (BayesianLogisticRegression(prior={"coef": StudentT()}), Y > 0),
        (BayesianPoissonRegressor(prior=Normal()), np.exp(Y.clip(-2, 2)).round()),
    ],
)
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_matrix])
def test_a_shared_scale_warns_once(model, y, convert):
    """With what to do: under every prior that has one, if it is not the user's own.

    Wrong variants: each column for itself; dense features only; `Normal` alone.
    """
    (warning,) = found(model, convert(X), y)
    assert issubclass(warning.category, SkviWarning)
    assert "StandardScaler" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize(
    "model",
    [
        BayesianLinearRegression(prior=Normal(2.0)),
        BayesianLinearRegression(prior="ard"),
        BayesianLinearRegression(prior=Horseshoe(0.1)),
        BayesianLogisticRegression(),
        make_pipeline(StandardScaler(), BayesianLinearRegression(prior="normal")),
    ],
)
def test_what_does_not_matter_is_not_said(model):
    """Other priors, and features that are standardized. Wrong variant: always."""
    assert not found(model, X, Y > 0 if is_classifier(model) else Y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("unit", "word"), [(1e-8, "no room"), (1e8, "no limit")])
def test_units_that_a_scale_of_one_does_not_know(unit, word):
    """Ranges that are alike, but far from 1; a scale that is learned finds them.

    Wrong variant: only the ratio of ranges counts.
    """
    X = RNG.normal(size=(50, 3))
    with pytest.warns(SkviWarning, match=word):
        BayesianLogisticRegression(prior="normal").fit(unit * X, X[:, 0] > 0)
    for scale in (HalfCauchy(), "learn", 3.0):
        model = BayesianLogisticRegression(prior=Normal(scale), max_iter=1)
        assert not found(model, unit * X, X[:, 0] > 0)


def test_quantities_as_classes():
    """Before the fit. Wrong variants: after it; for few classes as well."""
    X, y = RNG.normal(size=(400, 2)), np.arange(400) % 200
    message = r"200 classes in 400 .*BayesianLinearRegression"
    with warnings.catch_warnings():
        warnings.simplefilter("error", SkviWarning)
        with pytest.raises(SkviWarning, match=message):
            BayesianLogisticRegression().fit(X, y)
    assert "quantity" not in many_classes_message(y.astype(str), 400)
    assert not many_classes_message(np.arange(10), 10**6)


def test_constant_and_similar_columns():
    """Wrong variants: a range of zero counts; a ratio of 100."""
    X = RNG.normal(size=(50, 3)) * [0.05, 1.0, 5.0]
    X[:, 0] = 3.0
    model = BayesianLinearRegression(prior="normal")
    assert not found(model, X, Y)
    assert not found(model, X * [1.0, 1.0, 20.0], Y)


@pytest.mark.filterwarnings("ignore", category=ConvergenceWarning)
def test_breast_cancer_as_it_comes():
    """The message names the ranges. Wrong variant: standard deviations."""
    X, y = load_breast_cancer(return_X_y=True)
    with pytest.warns(SkviWarning, match=r"ranges from 0.029 to 4.1e\+03"):
        BayesianLogisticRegression(prior="normal", max_iter=5).fit(X, y)
