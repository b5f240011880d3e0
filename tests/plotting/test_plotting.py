"""What the pictures show: their data, not their pixels."""

import math
from dataclasses import replace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib import markers
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skvi
from skvi.evidence import EvidenceBounds
from skvi.evidence._table import NamedBound
from skvi.linear_model import BayesianLogisticRegression
from skvi.plotting import (
    CornerDisplay,
    EvidenceBoundsDisplay,
    EvidenceSearchDisplay,
    LossCurveDisplay,
)

matplotlib.use("Agg")


def make_bounds(center=-55.0, *, reliable=True, table=True, **changes):
    rows = {
        "ELBO of q": NamedBound(center - 0.4, 0.0, "lower", ""),
        "EUBO of q": NamedBound(center + 0.6, 0.1, "upper", ""),
    }
    bounds = EvidenceBounds(
        lower=center - 0.02,
        upper=center + 0.03,
        lower_se=0.01,
        upper_se=0.005,
        estimate=center + 0.001,
        gap=0.05,
        ess=900.0,
        khat=0.2,
        reliable=reliable,
        reason="" if reliable else "the MCMC chains disagree",
        method="importance",
        table=rows if table else {},
    )
    return replace(bounds, **changes)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    return X, (X[:, 0] + rng.normal(size=60) > 0).astype(int)


@pytest.fixture(scope="module")
def fitted(data):
    return BayesianLogisticRegression(posterior="mean_field").fit(*data)


def legend_texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


# Loss curves


@pytest.mark.parametrize(
    ("params", "label"),
    [
        ({"divergence": "renyi", "posterior": "mean_field"}, "expected loss + div"),
        ({"loss": "beta"}, "expected loss + divergence [nats]"),
        ({"objective": "eubo"}, "EUBO [nats]"),
    ],
)
def test_loss_curve_is_named_after_what_was_minimized(data, params, label):
    model = BayesianLogisticRegression(random_state=0, **params).fit(*data)
    display = LossCurveDisplay.from_estimator(model)
    assert display.ax_.get_ylabel().startswith(label)
    assert display.line_.get_ydata()[-1] == model.loss_curve_[-1]


def test_loss_curve_inside_pipeline_and_search(data, fitted):
    grid = {"bayesianlogisticregression__posterior": ["full_rank"]}
    model = make_pipeline(StandardScaler(), BayesianLogisticRegression())
    search = GridSearchCV(model, grid, cv=2).fit(*data)
    display = LossCurveDisplay.from_estimator(search, name="best")
    expected = search.best_estimator_[-1].loss_curve_
    np.testing.assert_array_equal(display.loss_curve, expected)
    assert legend_texts(display.ax_)[0].startswith("best: ")


def test_legend_tells_the_ends_of_a_curve_apart():
    """Wrong variant: two decimals, which are the same at both ends."""
    display = LossCurveDisplay([89.40716, 89.40705, 89.40702]).plot()
    assert legend_texts(display.ax_) == ["from 89.40716 to 89.40702"]


def test_nothing_is_cut_without_need():
    curve = [56.0, 55.8, 55.5, 55.5, 55.5, 55.5, 55.5, 55.5]
    assert LossCurveDisplay(curve).plot().ax_.get_ylim()[1] > 56


@pytest.mark.parametrize("curve", [[], [[1.0, 2.0]]])
def test_curves_without_values_are_refused(curve):
    with pytest.raises(ValueError, match="one dimension and at least one value"):
        LossCurveDisplay(curve).plot()
    assert not plt.get_fignums()


# Evidence bounds


def test_bounds_on_the_artists():
    """Fails for whiskers of one standard error, and for a bar that starts at 0."""
    bounds = {"b": make_bounds(-300.0), "a": make_bounds(-55.0)}
    display = EvidenceBoundsDisplay.from_bounds(bounds)
    for row, (bar, one) in enumerate(zip(display.bars_, bounds.values(), strict=True)):
        assert bar.get_x() == pytest.approx(one.lower)
        assert bar.get_x() + bar.get_width() == pytest.approx(one.upper)
        assert bar.get_y() + bar.get_height() / 2 == pytest.approx(row)
        low, high, gap = display.whiskers_.get_xdata()[3 * row : 3 * row + 3]
        assert low == pytest.approx(one.lower - 2 * one.lower_se)
        assert high == pytest.approx(one.upper + 2 * one.upper_se)
        assert math.isnan(gap)
        for line, value in (
            (display.estimates_, one.estimate),
            (display.elbo_, one.table["ELBO of q"].value),
            (display.eubo_, one.table["EUBO of q"].value),
        ):
            assert line.get_xdata()[row] == value
            assert abs(line.get_ydata()[row] - row) < 0.5
    tips = (display.elbo_.get_marker(), display.eubo_.get_marker())
    assert tips == (markers.CARETRIGHT, markers.CARETLEFT)  # centered at the tip
    ax = display.ax_
    assert [label.get_text() for label in ax.get_yticklabels()] == ["b", "a"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first one at the top
    assert ax.get_xlabel() == "log evidence [nats]"
    assert display.figure_ is ax.figure


def test_learned_hyperparameters_are_named():
    bounds = make_bounds(plug_in=("noise_scale",), reliable=False)
    (label,) = EvidenceBoundsDisplay.from_bounds(bounds).ax_.get_yticklabels()
    assert label.get_text() == "model\n(not reliable; given learned noise_scale)"


def test_wrong_bounds_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        EvidenceBoundsDisplay.from_bounds({})
    with pytest.raises(TypeError, match=r"bounds\['a'\] must be EvidenceBounds"):
        EvidenceBoundsDisplay.from_bounds({"a": -55.0})


def test_evidence_from_estimator(data):
    model = BayesianLogisticRegression(prior="normal")
    model = make_pipeline(StandardScaler(), model).fit(*data)
    display = EvidenceBoundsDisplay.from_estimator(
        model, *data, n_draws=256, random_state=0, plot_kwargs={"values": False}
    )
    expected = skvi.evidence_bounds(model, *data, n_draws=256, random_state=0)
    assert display.bounds == {"BayesianLogisticRegression": expected}
    assert display.values_ is None
    unfitted = make_pipeline(StandardScaler(), BayesianLogisticRegression())
    with pytest.raises(NotFittedError):
        EvidenceBoundsDisplay.from_estimator(unfitted, *data)
    with pytest.raises(TypeError, match="no method evidence_bounds"):
        EvidenceBoundsDisplay.from_estimator(LogisticRegression(), *data)


# Pairs of draws


def test_pairs_are_where_their_names_are():
    """Wrong variants: rows for columns; a reference in the order of its own dict."""
    rng = np.random.default_rng(0)
    draws = {"a": rng.normal(5, 1, 300), "b": rng.normal([0, 50], 1, (300, 2))}
    reference = {"b": draws["b"] + 3, "a": draws["a"] + 100}
    display = CornerDisplay.from_draws(
        draws, names=["b[1]", "a"], reference=reference, figure=Figure()
    )
    assert display.names == ["b[1]", "a"]
    below, mine = display.axes_[1, 0].get_lines()
    x, y = mine.get_data()
    assert np.mean(x) == pytest.approx(50, abs=0.3)
    assert np.mean(y) == pytest.approx(5, abs=0.3)
    x, y = below.get_data()
    assert np.mean(x) == pytest.approx(53, abs=0.3)
    assert np.mean(y) == pytest.approx(105, abs=0.3)
    assert not display.axes_[0, 1].get_visible()
    assert display.axes_[1, 0].get_xlabel() == "b[1]"
    assert display.axes_[1, 0].get_ylabel() == "a"


def test_what_cannot_be_drawn():
    draws = {"a": np.zeros((10, 11))}
    with pytest.raises(ValueError, match="at most 10 parameters; got 11"):
        CornerDisplay.from_draws(draws, figure=Figure())
    with pytest.raises(ValueError, match="Got 'c'"):
        CornerDisplay.from_draws(draws, names=["c"], figure=Figure())


@pytest.mark.parametrize(
    ("draws", "reference", "words"),
    [
        (np.zeros((10, 2)), None, "draws must be a dict"),
        ({}, None, "draws must be a dict"),
        ({"a": np.zeros(9), "b": np.zeros(10)}, None, r"\{'a': 9, 'b': 10\}"),
        ({"a": 3.0}, None, r"\{'a': 0\}"),
        ({"a": np.r_[np.zeros(9), np.nan]}, None, r"infinite: \['a'\]"),
        ({"a": np.zeros(9)}, {"b": np.zeros(9)}, r"draws of \['a'\]"),
        ({"a": np.zeros((9, 2))}, {"a": np.zeros(9)}, r"draws of \['a\[0\]'"),
    ],
)
def test_wrong_draws_are_named(draws, reference, words):
    with pytest.raises(ValueError, match=words):
        CornerDisplay.from_draws(draws, reference=reference, figure=Figure())


def test_estimators_without_draws_are_refused():
    with pytest.raises(TypeError, match="LinearRegression has no sample_posterior"):
        CornerDisplay.from_estimator(LinearRegression())


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


def labels(axis):
    return [label.get_text() for label in axis.get_yticklabels()]


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
