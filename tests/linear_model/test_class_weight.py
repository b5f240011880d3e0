"""Class weights: those of scikit-learn, as weights of rows."""

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale
from sklearn.utils.class_weight import compute_class_weight

from skvi.linear_model import BayesianLogisticRegression


@pytest.fixture(params=[2, 3], ids=["two classes", "three classes"])
def data(request):
    """Unbalanced, with labels that are strings."""
    X, y = load_iris(return_X_y=True)
    rows = np.r_[0:20, 50:95, 110:150] if request.param == 3 else np.r_[50:95, 110:130]
    return scale(X[rows]), np.array(["setosa", "versicolor", "virginica"])[y[rows]]


def fit(data, weight=None, **parts):
    model = BayesianLogisticRegression(tol=1e-9, **{"prior": "normal", **parts})
    return model.fit(*data, sample_weight=weight)


def per_class(y, class_weight):
    classes = np.unique(y)
    found = compute_class_weight(class_weight, classes=classes, y=y)
    return found[np.searchsorted(classes, y)]


def assert_same(a, b):
    assert a.lower_bound_ == pytest.approx(b.lower_bound_, abs=1e-6)
    assert np.abs((a.coef_ - b.coef_) / b.coef_std_).max() < 1e-4


@pytest.mark.parametrize("class_weight", ["balanced", {"versicolor": 3.0}], ids=str)
def test_it_multiplies_the_sample_weights(data, class_weight):
    """Wrong variants: weights by the order of the dict; sample weights replaced."""
    y = data[1]
    expected = per_class(y, class_weight)
    assert_same(fit(data, class_weight=class_weight), fit(data, expected))
    if class_weight != "balanced":
        weight = np.linspace(0.5, 2, len(y))
        both = fit(data, weight, class_weight=class_weight)
        assert_same(both, fit(data, weight * expected))


def test_balanced_counts_weights_as_repetitions(data):
    """Wrong variant: class frequencies by rows, whatever their weights."""
    X, y = data
    weight = 1 + np.arange(len(y)) % 3
    weighted = fit(data, weight, class_weight="balanced")
    repeated = fit(
        (np.repeat(X, weight, 0), np.repeat(y, weight)), class_weight="balanced"
    )
    assert_same(weighted, repeated)
    labels = weighted._model.response
    totals = [
        labels.weights(labels.encode(y), weight)[y == c].sum()
        for c in weighted.classes_
    ]
    assert totals == pytest.approx([weight.sum() / len(totals)] * len(totals))


@pytest.mark.parametrize("data", [2], indirect=True)
def test_the_evidence_is_generalized_and_needs_no_weights(data):
    X, y = data
    model = BayesianLogisticRegression(class_weight="balanced", prior="normal").fit(
        X, y
    )
    bounds = model.evidence_bounds(X, y, random_state=0)
    assert bounds.quantity == "generalized log evidence"
    other = BayesianLogisticRegression(prior="normal").fit(
        X, y, sample_weight=per_class(y, "balanced")
    )
    expected = other.evidence_bounds(
        X, y, sample_weight=per_class(y, "balanced"), random_state=0
    )
    assert bounds.estimate == pytest.approx(expected.estimate, abs=1e-3)
    plain = BayesianLogisticRegression(prior="normal").fit(X, y)
    bounds = plain.evidence_bounds(X, y, random_state=0)
    assert bounds.quantity == "log evidence"
    assert abs(plain.lower_bound_ - other.lower_bound_) > 0.02


@pytest.mark.filterwarnings("ignore:.*the features have ranges")
def test_a_weight_of_zero_leaves_a_class_out(data):
    X, y = data
    model = fit(data, class_weight={"virginica": 0.0})
    X = X.copy()
    X[y == "virginica"] *= 1e6
    assert_same(fit((X, y), class_weight={"virginica": 0.0}), model)


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ("even", "class_weight"),
        ([1, 2], "class_weight"),
        ({"versicolor": -1.0}, "negative"),
        ({"rose": 1.0}, "not in class_weight"),
    ],
    ids=str,
)
def test_impossible_weights(data, class_weight, message):
    with pytest.raises(ValueError, match=message):
        BayesianLogisticRegression(class_weight=class_weight, prior="normal").fit(*data)
