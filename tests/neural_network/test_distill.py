"""Small networks that mimic what other estimators predict."""

import pickle
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.metrics import log_predictive_density_scorer
from skvi.neural_network import DistilledClassifier, DistilledRegressor, distill


def test_regressions():
    """Means and standard deviations at rows that neither has seen.

    Wrong variants: a divergence with the variance of the student alone; standard
    deviations in other units than means.
    """
    X, y = load_diabetes(return_X_y=True)
    X = X[:, :4]
    last = make_pipeline(StandardScaler(), BayesianLinearRegression())
    teacher = make_pipeline(StandardScaler(), last)
    teacher.fit(X[:200], y[:200])
    student = distill(teacher, X[:200], (10,), 1000, random_state=0)
    expected, std = teacher.predict(X[200:], return_std=True)
    mean, own = student.predict(X[200:], return_std=True)
    assert np.abs((mean - expected) / std).max() < 0.1
    np.testing.assert_allclose(own, std, rtol=0.03)
    scores = [log_predictive_density_scorer(m, X, y) for m in (teacher, student)]
    assert scores[0] == pytest.approx(scores[1], abs=0.002)
    assert 0 <= student.divergence_ < 1e-4


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_classes(library):
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


def test_divergences_are_those_of_the_rows():
    """KL(given || own) in closed form; wrong variant: the other direction."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    moments = np.column_stack([5 + 3 * X[:, 0] ** 2, np.exp(0.5 * X[:, 1])])
    found = DistilledRegressor((3,), max_iter=20, random_state=0).fit(X, moments)
    mean, std = found.predict(X, return_std=True)
    (m, s), ratio = moments.T, moments[:, 1] / std
    kl = 0.5 * (ratio**2 + ((m - mean) / std) ** 2) - 0.5 - np.log(s / std)
    assert found.divergence_ == pytest.approx(kl.mean(), rel=1e-9)
    p = rng.dirichlet([1, 1, 1], size=40)
    student = DistilledClassifier((3,), max_iter=20, random_state=0).fit(X, p)
    kl = (p * np.log(p / student.predict_proba(X))).sum(1)
    assert student.divergence_ == pytest.approx(kl.mean(), rel=1e-9)
    assert clone(student).get_params() == student.get_params()


def test_held_out_rows_choose_the_end():
    """Of targets that are noise, which a network learns by heart.

    Wrong variants: the last parameters; the divergence of the rows of the fit.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    p = rng.dirichlet([1, 1], size=120)
    own, held_out = (X[:60], p[:60]), (X[60:], p[60:])
    found = []
    for options in ({}, {"held_out": held_out}):
        student = DistilledClassifier((20,), max_iter=300, random_state=0)
        student.fit(*own, **options)
        q = student.predict_proba(X[60:])
        found.append((p[60:] * np.log(p[60:] / q)).sum(1).mean())
    assert student.divergence_ == pytest.approx(found[1], rel=1e-9)
    assert student.n_iter_ < 300
    assert found[1] < 0.5 * found[0]


def test_messages():
    X = np.zeros((3, 1))
    with pytest.raises(ValueError, match="means and positive standard deviations"):
        DistilledRegressor().fit(X, [[1.0, 0.0]] * 3)
    with pytest.raises(ValueError, match="in rows that sum to 1"):
        DistilledClassifier().fit(X, [[1.0, 0.5]] * 3)


def test_what_has_no_distribution():
    X, y = load_diabetes(return_X_y=True)
    for model in (Ridge(), make_pipeline(StandardScaler(), Ridge())):
        with pytest.raises(TypeError, match=r"Ridge.*no predict\(X, return_std=True\)"):
            distill(model.fit(X, y), X)
    with pytest.raises(TypeError, match="no predict_proba"):
        distill(LinearSVC().fit(X, y > 100), X)


def run_onnx(model, X):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    found = session.run(names, {"X": X.astype(np.float32)})
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize("labels", [[3, 7, 8], ["b", "a", "c"]])
def test_onnx_predicts_the_same(labels):
    """Up to single precision. Wrong variants: without the unit of y; no Tanh."""
    pytest.importorskip("onnx")
    rng = np.random.default_rng(0)
    X = rng.normal(50, 10, size=(60, 3))
    moments = np.column_stack([5 + 3 * X[:, 0], np.exp(0.05 * X[:, 1])])
    student = DistilledRegressor((5, 4), max_iter=50, random_state=0).fit(X, moments)
    found, (mean, std) = run_onnx(student.to_onnx(), X), student.predict(X, True)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-4)
    np.testing.assert_allclose(found["std"], std, rtol=1e-4)
    proba = rng.dirichlet([1, 1, 1], size=60)
    student = DistilledClassifier((5,), max_iter=50, random_state=0)
    student.fit(X, proba, classes=labels)
    found = run_onnx(student.to_onnx(), X)
    np.testing.assert_allclose(found["probabilities"], student.predict_proba(X), 1e-4)
    label = found["label"] if labels[0] == 3 else student.classes_[found["label"]]
    assert (label == student.predict(X)).all()


def test_onnx_is_an_extra(monkeypatch):
    X = np.arange(4.0)[:, None]
    student = DistilledClassifier((2,), max_iter=1).fit(X, [[0.5, 0.5]] * 4)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'skvi\[onnx\]'"):
        student.to_onnx()
