"""Small networks that mimic what other estimators predict."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.metrics import log_predictive_density_scorer
from skvi.neural_network import distill
from skvi.neural_network._distill import DistilledRegressor


def test_regressions():
    """Means and standard deviations at rows that neither has seen.

    Wrong variant: standard deviations in other units than means.
    """
    X, y = load_diabetes(return_X_y=True)
    X = X[:, :4]
    last = make_pipeline(StandardScaler(), BayesianLinearRegression())
    teacher = make_pipeline(StandardScaler(), last)
    teacher.fit(X[:200], y[:200])
    student = distill(teacher, X[:200], (10,), 1000, random_state=0)
    expected, std = teacher.predict(X[200:], return_std=True)
    mean, own = student.predict(X[200:], return_std=True)
    assert np.sqrt(np.mean(((mean - expected) / std) ** 2)) < 0.05
    np.testing.assert_allclose(own, std, rtol=0.03)
    scores = [log_predictive_density_scorer(m, X, y) for m in (teacher, student)]
    assert scores[0] == pytest.approx(scores[1], abs=0.002)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_classes(library):
    """Wrong variant: each class of a row has the same weight."""
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = np.array(["b", "a", "c"])[y]
    if library == "polars":
        X = pytest.importorskip("polars").DataFrame(dict(X))
    teacher = BayesianLogisticRegression().fit(X, names)
    student = distill(teacher, X, (10,), 1000, random_state=0)
    assert student.feature_names_in_.tolist() == list(X.columns)
    expected, p = teacher.predict_proba(X), student.predict_proba(X)
    kl = (expected * np.log(expected / p)).sum(1)
    assert kl.mean() < 2e-3
    assert (student.predict(X) == teacher.predict(X)).mean() > 0.97
    again = pickle.loads(pickle.dumps(student))
    assert np.array_equal(again.predict_proba(X), p)


def test_deviations_that_vary():
    """Wrong variant: logs of deviations without the factor of the fit."""
    X = np.linspace(-1, 1, 60)[:, None]
    std = 0.1 + X[:, 0] ** 2
    student = DistilledRegressor((10,), random_state=0)
    student.fit(X, np.column_stack([np.sin(2 * X[:, 0]), std]))
    np.testing.assert_allclose(student.predict(X, return_std=True)[1], std, rtol=0.1)


def test_messages():
    with pytest.raises(ValueError, match="means and positive standard deviations"):
        DistilledRegressor().fit(np.zeros((3, 1)), [[1.0, 0.0]] * 3)


def test_what_has_no_distribution():
    X, y = load_diabetes(return_X_y=True)
    for model in (Ridge(), make_pipeline(StandardScaler(), Ridge())):
        with pytest.raises(TypeError, match=r"Ridge.*no predict\(X, return_std=True\)"):
            distill(model.fit(X, y), X)
    with pytest.raises(TypeError, match="no predict_proba"):
        distill(LinearSVC().fit(X, y > 100), X)
