"""Changes whose place is uncertain: probabilities, intervals, and the table."""

import numpy as np
import pandas as pd
import pytest

from skvi.changepoint import BayesianChangepointDetector, Hazard
from skvi.changepoint.base import ConstantHazard
from skvi.exceptions import SkviWarning
from tests.changepoint.series import jump
from tests.changepoint.test_recursion import CASES, Aging, fit, reference_of


@pytest.mark.parametrize("name", ["constant mean", "counts", "regression"])
@pytest.mark.parametrize("hazard", [ConstantHazard(7.0), Aging()], ids=["flat", "age"])
def test_probability_of_a_change_in_an_interval(name, hazard):
    """One minus the evidence of all segmentations without one, over the evidence.

    Wrong variants: segments that begin in the first row of an interval count as
    earlier ones; the look back has not come to the last row.
    """
    models, X, features = CASES[name]
    detector = fit(models, X, features, hazard)
    intervals = [(3, 3), (4, 9), (8, 19), (20, 25), (25, 25), (3, 25)]
    found = detector._stream.records._probability_of(intervals)
    whole = reference_of(detector, models, X, features, hazard)
    for (low, high), p in zip(intervals, found, strict=True):
        without = reference_of(detector, models, X, features, hazard)
        without.segments[low : high + 1] = -np.inf
        without.__post_init__()
        expected = -np.expm1(without.log_evidence - whole.log_evidence)
        assert p == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_a_change_that_is_certain_while_its_place_is_not(seed):
    """Wrong variant: expected changes within five rows of it."""
    x = np.random.default_rng(seed).standard_normal(2000)
    x[1000:] += 0.4
    detector = BayesianChangepointDetector("constant_mean").fit(x)
    table = detector.summary()
    assert len(table) == len(detector.changepoints_) == 1
    assert table.low[0] < detector.changepoints_[0] <= table.high[0]
    assert 20 < table.high[0] - table.low[0] < 250
    assert abs(table.row[0] - 1000) < 60
    assert table.probability[0] > 0.95
    assert detector.labels_.sum() == 2000 - table.row[0]


@pytest.mark.parametrize("seed", [11, 40, 52])
def test_a_probable_change_that_no_single_path_shows(seed):
    """The most probable segmentation has none.

    Wrong variant: changepoints of the most probable segmentation only.
    """
    x = np.random.default_rng(seed).standard_normal(700)
    x[350:] += 0.3
    detector = BayesianChangepointDetector("constant_mean").fit(x)
    table = detector.summary()
    assert len(table) == 1
    assert table.low[0] <= 350 <= table.high[0] + 1
    assert 0.8 < table.probability[0] < 0.99
    assert detector.segment_models_.tolist() == [0, 0]
    assert not len(detector.set_params(threshold=0.0).changepoints_)


def test_intervals_have_their_coverage():
    """Of 60 shifts of random size, those that are reported.

    Wrong variants: intervals with half of the probability, or of one row.
    """
    rng, inside, expected = np.random.default_rng(5), [], 0.0
    for _ in range(60):
        at = int(rng.integers(50, 250))
        x = rng.standard_normal(300)
        x[at:] += 2.0 * rng.standard_normal()
        table = BayesianChangepointDetector().fit(x).summary()
        inside += [(table.low <= at) & (at <= table.high)]
        expected += 0.9 * table.probability.sum()
    inside = np.concatenate(inside)
    assert len(inside) > 40
    assert inside.sum() == pytest.approx(expected, abs=3 * np.sqrt(0.09 * len(inside)))


def test_a_change_has_rows_without_any_beside_it():
    """Independent improbable changes in very many rows are none; one that is somewhere
    among a hundred rows, and in no others, is one.

    Rows without values leave the prior as it is. Wrong variant: rows beside an interval
    do not matter.
    """

    class Somewhere(Hazard):
        def probability(self, length):
            before = np.clip(length - 200, 0, 100)
            inside = (length >= 200) & (length < 300)
            return np.where(inside, 0.0095 / (1 - 0.0095 * before), 0.0)

    exact = {"max_hypotheses": None, "min_probability": 0.0}
    nothing = np.full((1500, 1), np.nan)
    for hazard in (2000.0, 111.0):
        detector = BayesianChangepointDetector("known_noise", hazard=hazard, **exact)
        with pytest.warns(SkviWarning, match="no observed value"):
            assert not len(detector.fit(nothing).changepoints_)
        np.testing.assert_allclose(detector.change_probability_[1:], 1 / hazard)
    detector = BayesianChangepointDetector("known_noise", hazard=Somewhere(), **exact)
    with pytest.warns(SkviWarning, match="no observed value"):
        table = detector.fit(nothing[:399]).summary()
    assert len(table) == 1
    assert table.high[0] - table.low[0] + 1 == pytest.approx(90, abs=3)
    assert 200 <= table.row[0] < 300
    assert table.probability[0] == pytest.approx(0.95)


def test_streams_settle_changes_as_fits_do():
    """With little memory: the rows of a wide interval were looked back at in time.

    Wrong variant: a look back ends at the rows that are settled.
    """
    x = np.random.default_rng(6).standard_normal(1200)
    x[254:] += 0.8
    x[500:] += 4.0
    index = pd.date_range("2024-01-01", periods=1200)
    X = pd.DataFrame({"a": x}, index=index)
    whole = BayesianChangepointDetector(burn_in=100).fit(X).summary()
    stream = BayesianChangepointDetector(history=125)
    for start in range(0, 1200, 150):
        stream.partial_fit(X[start : start + 150])
    assert stream.first_row_ == 1075
    table = stream.summary()
    assert len(table) == len(whole) == 2
    assert np.abs(table.row - whole.row).max() <= 2
    assert np.abs(table.low - whole.low).max() <= 5
    assert np.abs(table.high - whole.high).max() <= 5
    np.testing.assert_allclose(table.probability, whole.probability, atol=0.05)
    dates = table.labels[:, 1].astype("datetime64[ns]")
    np.testing.assert_array_equal(dates, index[table.low].to_numpy())
    assert np.isnan(table.mean_before).all()
    assert table.mean_after[1, 0] == pytest.approx(x[1075:].mean())


def test_table_of_changepoints():
    """Means of the segments, in the units of the series; a text and a frame.

    Wrong variant: means in units of the models.
    """
    X = 10.0 * jump(200, 2) + 500.0
    X[120, 0] = np.nan
    frame = pd.DataFrame(X, columns=["a", "b"])
    table = BayesianChangepointDetector().fit(frame).summary()
    assert table.row.tolist() == [100]
    np.testing.assert_allclose(table.mean_before[0], X[:100].mean(0))
    np.testing.assert_allclose(table.mean_after[0], np.nanmean(X[100:], 0))
    columns = table.to_frame()
    assert list(columns)[:4] == ["row", "low", "high", "probability"]
    assert columns["mean_after b"][0] == pytest.approx(X[100:, 1].mean())
    assert str(table).splitlines()[1].split()[:3] == ["100", "100", "100"]
    assert len(BayesianChangepointDetector().fit(X[:90]).summary().to_frame()) == 0


@pytest.mark.parametrize("history", [1, 2, 5])
def test_streams_with_hardly_any_memory(history):
    """Changes in every position between two look backs are settled.

    Wrong variants: a change in the row at which rows are settled is lost, or counts
    twice.
    """
    for at in range(60, 66):
        x = np.random.default_rng(0).standard_normal(100)
        x[at:] += 8.0
        detector = BayesianChangepointDetector(history=history, burn_in=40)
        assert detector.partial_fit(x[:, None]).changepoints_.tolist() == [at]


def test_batches_that_are_counted_from_zero_have_no_labels():
    """Rows of the stream; dates stay dates. Wrong variant: row 180 is "0"."""
    parts = np.array_split(jump(300, 1)[:, 0], 5)
    stream, dated = (BayesianChangepointDetector() for _ in range(2))
    days = pd.date_range("2024-01-01", periods=300)
    for k, part in enumerate(parts):
        stream.partial_fit(pd.DataFrame({"a": part}))
        days_of_part = days[60 * k : 60 * (k + 1)]
        dated.partial_fit(pd.DataFrame({"a": part}, index=days_of_part))
    assert stream.changepoints_.tolist() == [150]
    assert stream.changepoint_labels_.tolist() == [150]
    assert stream.summary().to_dict()["row"] == [150]
    np.testing.assert_array_equal(dated.changepoint_labels_, days.to_numpy()[[150]])
