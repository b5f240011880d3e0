"""The detector's picture: panels, places and labels."""

import numpy as np
import pandas as pd
import pytest

from skvi.changepoint import (
    BayesianChangepointDetector,
    ChangepointDisplay,
    Regression,
)

plt = pytest.importorskip("matplotlib.pyplot")


def jump(n=80, d=1):
    X = np.random.default_rng(0).standard_normal((n, d))
    X[n // 2 :] += 5.0
    return X


def test_panels():
    """Wrong variants: run lengths of the wrong row; changes of the whole stream."""
    X = jump()
    X[10] = np.nan
    models = [Regression(), Regression(1)]
    detector = BayesianChangepointDetector(models).fit(X)
    display = ChangepointDisplay.from_estimator(detector, X, name="a jump")
    labels = [ax.get_ylabel() for ax in display.axes_]
    assert labels == ["series", "P(change)", "run length", "P(model)"]
    assert display.axes_[0].get_title() == "a jump"
    lines = [line for line in display.axes_[0].lines if line.get_linestyle() == "--"]
    assert [line.get_xdata()[0] for line in lines] == detector.changepoints_.tolist()
    shaded = display.axes_[0].patches
    ends = [(p.get_x(), p.get_x() + p.get_width()) for p in shaded]
    table = detector.summary()
    assert ends == list(zip(table.low, table.high, strict=True))
    texts = [[t.get_text() for t in ax.get_legend().texts] for ax in display.axes_[:2]]
    assert texts == [
        ["90 % prediction", "changepoint"],
        ["within 5 rows", "at the row"],
    ]
    image, top = display._image()
    lengths = image.argmax(0) * top / len(image) + 1
    assert lengths[39] == pytest.approx(40, abs=2)  # rows of the first segment
    assert lengths[79] == pytest.approx(40, abs=2)  # and of the second one
    assert display.figure_ is display.axes_[0].figure


def test_dates_and_the_end_of_a_stream():
    X = pd.DataFrame(jump(120, 7), index=pd.date_range("2024-01-01", periods=120))
    detector = BayesianChangepointDetector(burn_in=50, history=30)
    detector.partial_fit(X)
    last = X.iloc[-25:]
    display = ChangepointDisplay.from_estimator(detector, last)
    assert display.axes_[0].get_ylabel() == "5 of 7 series"
    left = display.axes_[0].get_xlim()[0]
    assert left == pytest.approx(last.index[0].toordinal() - 719163, abs=1)
    with pytest.raises(ValueError, match="120 rows"):
        ChangepointDisplay.from_estimator(detector, X)


def test_one_row_is_drawn(recwarn):
    X = jump(1)
    ChangepointDisplay.from_estimator(BayesianChangepointDetector().fit(X), X)
    assert not recwarn


def test_long_series_share_pixels():
    X = np.random.default_rng(0).standard_normal((2500, 1))
    detector = BayesianChangepointDetector(max_hypotheses=20).fit(X)
    display = ChangepointDisplay.from_estimator(detector, X)
    image, _ = display._image()
    assert image.shape[1] == 800
    assert image.shape[0] <= 200
