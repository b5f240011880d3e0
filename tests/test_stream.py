"""Chunks are scored before they are learned."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier, SGDRegressor

import skvi
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)


def labels(n=240):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    return X, (X @ [2.0, -1.0, 0.0] + rng.logistic(size=n) > 0).astype(int)


def chunks(X, y, n=4):
    return zip(np.array_split(X, n), np.array_split(y, n), strict=True)


def test_scores_are_those_of_the_chunks_before():
    """Wrong variant: a chunk is scored after it was learned."""
    X, y = labels()
    model = BayesianLogisticRegression()
    found = skvi.stream(model, chunks(X, y), classes=[0, 1])
    before = BayesianLogisticRegression().fit(X[:60], y[:60])
    expected = before.predict_log_density(X[60:120], y[60:120]).mean()
    scores = found.scores["log_predictive_density"]
    assert np.isnan(scores[0])
    assert scores[1] == pytest.approx(expected, rel=1e-9)
    assert model.diagnostics_["n_rows"] == found.n_rows.sum() == 240
    assert found.mean("log_predictive_density") == pytest.approx(scores[1:].mean())
    again = skvi.stream(model, [(X, y)])  # it goes on
    assert np.isfinite(again.scores["log_predictive_density"]).all()


def test_options_and_arguments_of_chunks():
    """Wrong variants: forgetting, weights or an exposure that are not passed on."""
    X, y = labels()
    n = np.exp(X[:, 0])
    rows = [(X[:100], y[:100], {"exposure": n[:100]})]
    rows += [(X[100:], y[100:], {"exposure": n[100:], "sample_weight": n[100:]})]
    model, expected = BayesianPoissonRegressor(), BayesianPoissonRegressor()
    found = skvi.stream(model, rows, forgetting=0.5)
    expected.fit(X[:100], y[:100], exposure=n[:100])
    density = expected.predict_log_density(X[100:], y[100:], exposure=n[100:])
    expected.partial_fit(X[100:], y[100:], n[100:], n[100:], forgetting=0.5)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
    score = found.scores["log_predictive_density"][1]
    assert score == pytest.approx(np.average(density, weights=n[100:]))


def test_other_estimators_scorers_and_frames(capsys, monkeypatch):
    X, y = labels()
    frames = [(pd.DataFrame(part, columns=list("abc")), t) for part, t in chunks(X, y)]
    scoring = {"accuracy": "accuracy", "own": lambda model, X, y: len(y)}
    monkeypatch.setattr("skvi._stream.SECONDS_BETWEEN_LINES", 0.0)
    for model in (
        SGDClassifier(loss="log_loss", random_state=0),
        BayesianLogisticRegression(),
    ):
        found = skvi.stream(model, frames, classes=[0, 1], scoring=scoring, verbose=1)
        assert list(model.feature_names_in_) == list("abc")
        assert found.mean("accuracy") > 0.7
        assert found.mean("own") == 60
    assert "rows, " in capsys.readouterr().out
    default = skvi.stream(SGDClassifier(loss="log_loss"), chunks(X, y), classes=[0, 1])
    assert list(default.scores) == ["log_predictive_density"]
    assert list(skvi.stream(SGDRegressor(), chunks(X, y)).scores) == ["score"]


def test_an_error_leaves_the_chunks_before():
    X, y = labels()
    model = BayesianLinearRegression()
    good = list(chunks(X, y))
    expected = clone(model).partial_fit(*good[0])
    with pytest.raises(ValueError, match="NaN"):
        skvi.stream(model, [good[0], (good[1][0] * np.nan, good[1][1]), good[2]])
    assert np.array_equal(model.coef_, expected.coef_)


def test_table_and_picture():
    X, y = labels()
    found = skvi.stream(BayesianLinearRegression(), chunks(X, y), scoring="r2")
    assert len(pd.DataFrame(found.to_dict())) == 4
    assert str(found).splitlines()[0].split() == ["chunk", "n_rows", "seconds", "r2"]
    assert len(str(found).splitlines()) == 6
    ax = found.plot(Figure().add_subplot())
    assert ax.lines[0].get_xdata().tolist() == [0, 60, 120, 180]
    assert found.rows_per_second > 0


def test_what_is_no_chunk():
    """Wrong variant: rows of X in the place of y."""
    X, y = labels()
    for chunk in (pd.DataFrame(X), (X,), (X, y, y)):
        with pytest.raises(ValueError, match=r"must be \(X, y\)"):
            skvi.stream(BayesianLogisticRegression(), [chunk], classes=[0, 1])
    with pytest.raises(ValueError, match="chunks is empty"):
        skvi.stream(BayesianLogisticRegression(), [])
