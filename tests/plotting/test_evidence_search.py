"""The display of a search shows its numbers, in the order of its decision."""

import math

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

from skvi.linear_model import BayesianLinearRegression
from skvi.model_selection import EvidenceSearch
from skvi.plotting import EvidenceSearchDisplay

matplotlib.use("Agg")


def make_results(**changes):
    """Four models: the best, one that is left, one far below, one not reliable."""
    center = np.array([-20.0, -10.0, -40.0, -10.05])
    results = {
        "params": [{"a__x": k, "a__fixed": 1} for k in range(4)],
        "model": np.arange(4),
        "rank_evidence": np.array([3, 1, 4, 2]),
        "estimate": center,
        "lower": center - 0.1,
        "upper": center + 0.1,
        "interval_lower": center - 0.2,
        "interval_upper": center + 0.2,
        "probability_lower": np.array([0.0, 0.4, 0.0, 0.4]),
        "probability_upper": np.array([0.0001, 0.6, 0.0, 0.4]),
        "log_prior": np.zeros(4),
        "contender": np.array([False, True, False, True]),
        "reliable": np.array([True, True, True, True]),
    }
    return results | changes


def legend_texts(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def labels(axis):
    return [label.get_text() for label in axis.get_yticklabels()]


def test_rows_are_ordered_and_numbers_are_shown():
    """Bars, whiskers and estimates at their values; the line at the rule's place.

    Wrong variant: the line at the best estimate, or the rows in the grid's order.
    """
    results = make_results()
    display = EvidenceSearchDisplay(results, 0.5).plot()
    order = [1, 3, 0, 2]
    assert display.rows_ == order
    assert labels(display.ax_) == ["x=1", "x=3", "x=0", "x=2"]
    for row, bar in zip(order, display.bars_, strict=True):
        assert bar.get_x() == pytest.approx(results["lower"][row])
        assert bar.get_width() == pytest.approx(0.2)
    x = display.whiskers_.get_xdata().reshape(-1, 3)
    np.testing.assert_allclose(x[:, 0], results["interval_lower"][order])
    np.testing.assert_allclose(x[:, 1], results["interval_upper"][order])
    assert display.threshold_.get_xdata()[0] == pytest.approx(-10.2 - 0.5)
    found = {
        key: line.get_xydata().tolist() for key, line in display.estimates_.items()
    }
    assert found == {
        "best": [[-10.0, 0.0]],
        "not excluded": [[-10.05, 1.0]],
        "excluded": [[-20.0, 2.0], [-40.0, 3.0]],
    }
    printed = [text.replace("\N{MINUS SIGN}", "-") for text in labels(display.values_)]
    assert printed == [
        "-10.00   (40 to 60 %)",
        "-10.05   (40 %)",
        "-20.00   (<0.1 %)",
        "-40.00   (0 %)",
    ]
    assert display.ax_.get_xlabel() == "log evidence [nats]"
    assert "excluded if to the left" in legend_texts(display)


def test_the_axis_is_cut_on_the_left():
    display = EvidenceSearchDisplay(make_results(), 0.5).plot(reach=12)
    low, high = display.ax_.get_xlim()
    assert -24 < low < -22.7
    assert -9.8 < high < -9
    np.testing.assert_array_equal(display.arrows_.get_ydata(), [3])
    whole = EvidenceSearchDisplay(make_results(), 0.5).plot(reach=None)
    assert whole.arrows_ is None
    assert whole.ax_.get_xlim()[0] < -40.2
    few = EvidenceSearchDisplay(make_results(), 0.5).plot(max_models=2, values=False)
    assert few.rows_ == [1, 3]
    assert few.values_ is None


def test_unreliable_models_are_hollow():
    ends = make_results()["interval_lower"], make_results()["interval_upper"]
    ends[0][3], ends[1][3] = -math.inf, math.inf
    results = make_results(
        reliable=np.array([True, True, True, False]),
        interval_lower=ends[0],
        interval_upper=ends[1],
    )
    display = EvidenceSearchDisplay(results, 0.1).plot()
    line = display.estimates_["not excluded, not reliable"]
    assert line.get_markerfacecolor() == "white"
    assert display.estimates_["best"].get_markerfacecolor() != "white"
    assert len(display.whiskers_.get_xdata()) == 9
    assert "estimate: not excluded, not reliable" in legend_texts(display)
    infinite = np.full(4, math.inf)
    results |= {"interval_lower": -infinite, "interval_upper": infinite}
    display = EvidenceSearchDisplay(results, 0.1).plot()
    assert display.whiskers_ is None
    assert display.threshold_ is None


def test_failed_and_merged_candidates_have_no_row():
    results = make_results(model=np.array([0, 1, -1, 1]))
    assert EvidenceSearchDisplay(results, 0.1).plot().rows_ == [1, 0]


def test_prior_weights_shift_the_rows():
    results = make_results(log_prior=np.array([0.0, 2.0, 0.0, 0.0]))
    display = EvidenceSearchDisplay(results, 0.1).plot()
    assert display.estimates_["best"].get_xdata()[0] == -8.0
    assert display.ax_.get_xlabel() == "log evidence + log prior weight [nats]"
    printed = labels(display.values_)[0].replace("\N{MINUS SIGN}", "-")
    assert printed.startswith("-10.00 ")


def test_rows_are_named_after_the_parameters_that_differ():
    names = ["p", "q", "r", "s"]
    display = EvidenceSearchDisplay(make_results(), 0.1, names=names).plot()
    assert labels(display.ax_) == ["q", "s", "p", "r"]
    params = [{"a__x": 1.0, "b__x": 2}, {"b__x": 3}, {"a__x": None}, {"b__x": 4}]
    display = EvidenceSearchDisplay(make_results(params=params), 0.1).plot()
    assert labels(display.ax_) == ["b__x=3", "b__x=4", "a__x=1, b__x=2", "a__x=None"]


def test_from_search():
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = BayesianLinearRegression(prior="normal", noise_scale=1.0)
    search = EvidenceSearch(model, {"prior__scale": [0.1, 1.0]})
    with pytest.raises(NotFittedError):
        EvidenceSearchDisplay.from_search(search)
    search.fit(X, X[:, 0])
    ax = Figure().subplots()
    display = EvidenceSearchDisplay.from_search(
        search, ax=ax, names=["narrow", "wide"], estimate_kwargs={"ms": 9}
    )
    assert display.ax_ is ax
    assert display.figure_ is ax.figure
    assert sorted(labels(ax)) == ["narrow", "wide"]
    assert display.estimates_["best"].get_markersize() == 9
    single = EvidenceSearch(model, {}).fit(X, X[:, 0])
    display = EvidenceSearchDisplay.from_search(single)
    assert display.threshold_ is None
    assert labels(display.ax_) == ["model"]
