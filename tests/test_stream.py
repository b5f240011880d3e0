"""Chunks are scored before they are learned."""

import sys

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


def test_other_estimators_scorers_and_frames(capsys, monkeypatch):
    X, y = labels()
    frames = [(pd.DataFrame(part, columns=list("abc")), t) for part, t in chunks(X, y)]
    scoring = {"accuracy": "accuracy", "own": lambda model, X, y: len(y)}
    monkeypatch.setattr("skvi._stream._run.SECONDS_BETWEEN_LINES", 0.0)
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


def test_table_and_picture():
    X, y = labels()
    found = skvi.stream(BayesianLinearRegression(), chunks(X, y), scoring="r2")
    pd.testing.assert_frame_equal(found.to_frame(), pd.DataFrame(found.to_dict()))
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
    for given in (None, {"a": 1}):
        with pytest.raises(ValueError, match="must be an iterable"):
            skvi.stream(BayesianLogisticRegression(), given)
    with pytest.raises(ValueError, match="give target='name'"):
        skvi.stream(BayesianLogisticRegression(), "rows.parquet")
    table = pd.DataFrame(X, columns=list("012"))
    match = r"target='z'.*DataFrame with \['0', '1', '2'\]"
    with pytest.raises(ValueError, match=match):
        skvi.stream(BayesianLogisticRegression(), [table], target="z")


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "parquet"])
def test_tables(library, tmp_path):
    """Features are all columns except the target, in the order of the first chunk.

    Wrong variants: the target is one, too; the order of each chunk.
    """
    X, y = labels()
    tables = [
        pd.DataFrame({"y": t, "a": x[:, 0], "b": x[:, 1]}) for x, t in chunks(X, y)
    ]
    tables[1] = tables[1][["b", "y", "a"]]
    expected = BayesianLogisticRegression().partial_fit(
        X[:60, :2], y[:60], classes=[0, 1]
    )
    for start in (60, 120, 180):
        expected.partial_fit(X[start : start + 60, :2], y[start : start + 60])
    given = tables
    if library == "polars":
        given = [pytest.importorskip("polars").DataFrame(dict(t)) for t in tables]
    if library in ("pyarrow", "parquet"):
        pa = pytest.importorskip("pyarrow")
        given = [pa.RecordBatch.from_pydict(dict(t)) for t in tables]
    if library == "parquet":
        from pyarrow import Table, parquet

        path = tmp_path / "rows.parquet"
        same = [t.select(["y", "a", "b"]) for t in given]
        parquet.write_table(Table.from_batches(same), path, row_group_size=60)
        given = path
    model = BayesianLogisticRegression()
    found = skvi.stream(model, given, target="y", classes=[0, 1])
    assert found.n_rows.sum() == 240
    if library in ("pandas", "polars"):
        assert list(model.feature_names_in_) == ["a", "b"]
    if library != "parquet":
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9)


def test_parquet_without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"pip install 'skvi\[arrow\]'"):
        skvi.stream(BayesianLogisticRegression(), "rows.parquet", target="y")


@pytest.mark.parametrize(
    "model",
    [BayesianLogisticRegression(), SGDClassifier(loss="log_loss", random_state=0)],
)
def test_a_stream_is_resumed_where_it_was(model, tmp_path):
    """With the scores before it, and another process's estimator.

    Wrong variants: chunks that were learned are learned again; the state after an
    error.
    """
    X, y = labels()
    options = {"classes": [0, 1], "scoring": "neg_log_loss"}
    whole, expected = clone(model), None
    expected = skvi.stream(whole, chunks(X, y), **options)
    options |= {"checkpoint_path": tmp_path / "stream.pkl", "checkpoint_interval": 0.0}
    broken = list(chunks(X, y))
    broken[2] = broken[2][0] * np.nan, broken[2][1]
    with pytest.raises(ValueError, match="NaN"):
        skvi.stream(clone(model), broken, **options)
    other = clone(model)
    found = skvi.stream(other, chunks(X, y), **options)
    assert np.array_equal(other.coef_, whole.coef_)
    scores = (r.scores["neg_log_loss"] for r in (found, expected))
    np.testing.assert_array_equal(*scores)
    done = clone(model)
    skvi.stream(done, chunks(X, y), **options)
    assert np.array_equal(done.coef_, whole.coef_)
    with pytest.raises(ValueError, match=r"belongs to another stream.*options"):
        skvi.stream(clone(model), chunks(X, y), **options, forgetting=0.5)
