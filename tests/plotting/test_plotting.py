"""The displays show exactly the data they were given, and say what they are."""

import builtins
import math
from dataclasses import replace
from itertools import pairwise

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib import markers
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skvi
from skvi.evidence import EvidenceBounds
from skvi.evidence._table import NamedBound, elbo_row
from skvi.linear_model import BayesianLogisticRegression
from skvi.plotting import (
    EvidenceBoundsDisplay,
    LossCurveDisplay,
    PosteriorDisplay,
    WeightsDisplay,
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


def test_loss_curve_shows_the_estimators_values(fitted):
    display = LossCurveDisplay.from_estimator(fitted)
    x, y = display.line_.get_data()
    np.testing.assert_array_equal(y, fitted.loss_curve_)
    np.testing.assert_array_equal(x, np.arange(1, fitted.n_iter_ + 1))
    assert display.line_.get_markevery() == [-1]  # the end is marked
    assert display.ax_.get_xlabel() == "iteration"
    assert display.ax_.get_ylabel() == "negative ELBO [nats]"
    assert display.figure_ is display.ax_.figure
    (text,) = legend_texts(display.ax_)
    assert text.startswith("BayesianLogisticRegression: from ")
    assert float(text.split(" to ")[1]) == pytest.approx(
        -fitted.lower_bound_, abs=0.005
    )


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


def test_several_loss_curves_share_axes():
    displays = [LossCurveDisplay([9.0, 5.0, 4.0 + i], name=f"fit {i}") for i in (0, 1)]
    ax = displays[0].plot().ax_
    assert displays[1].plot(ax, linewidth=3).ax_ is ax
    lines = [display.line_ for display in displays]
    assert len(legend_texts(ax)) == len(ax.get_lines()) == 2
    # Color is not the only difference.
    assert lines[0].get_linestyle() != lines[1].get_linestyle()
    assert lines[0].get_marker() != lines[1].get_marker()
    assert lines[1].get_linewidth() == 3


def test_different_quantities_do_not_share_axes():
    ax = LossCurveDisplay([2.0, 1.0], loss_name="negative ELBO").plot().ax_
    with pytest.raises(ValueError, match=r"'negative ELBO'.*'EUBO'.*other axes"):
        LossCurveDisplay([2.0, 1.0], loss_name="EUBO").plot(ax)
    # Lines of other origin are no obstacle.
    _, other = plt.subplots()
    other.plot([0, 1])
    LossCurveDisplay([2.0, 1.0], loss_name="EUBO").plot(other)


def test_huge_early_values_are_cut_and_named():
    """Fails where the later values are squeezed, or where any of them is cut."""
    curve = np.r_[1e6, 1e4, np.linspace(70.0, 60.0, 18)]
    display = LossCurveDisplay(curve).plot()
    low, high = display.ax_.get_ylim()
    assert low < 60
    assert curve[5:].max() < high < 100
    assert "from 1,000,000.00 to 60.00" in legend_texts(display.ax_)
    assert LossCurveDisplay(curve).plot(cut=False).ax_.get_ylim()[1] > 1e6


def test_nothing_is_cut_without_need():
    curve = [56.0, 55.8, 55.5, 55.5, 55.5, 55.5, 55.5, 55.5]
    assert LossCurveDisplay(curve).plot().ax_.get_ylim()[1] > 56


def test_a_second_curve_widens_the_cut():
    first = LossCurveDisplay(np.r_[1e6, np.full(9, 50.0)]).plot()
    assert first.ax_.get_ylim()[1] < 60
    second = LossCurveDisplay(np.linspace(90.0, 80.0, 10)).plot(first.ax_)
    low, high = second.ax_.get_ylim()
    assert low < 50
    assert 87 < high < 200


@pytest.mark.parametrize("curve", [[3.0], [math.nan], [math.inf, 2.0, 1.0]])
def test_short_and_non_finite_curves(curve):
    display = LossCurveDisplay(curve).plot()
    display.figure_.canvas.draw()
    np.testing.assert_array_equal(display.line_.get_ydata(), curve)


@pytest.mark.parametrize("curve", [[], [[1.0, 2.0]]])
def test_curves_without_values_are_refused(curve):
    with pytest.raises(ValueError, match="one dimension and at least one value"):
        LossCurveDisplay(curve).plot()
    assert not plt.get_fignums()


def test_loss_curve_of_wrong_estimators(data):
    for unfitted in (
        BayesianLogisticRegression(),
        make_pipeline(StandardScaler(), BayesianLogisticRegression()),
        GridSearchCV(BayesianLogisticRegression(), {}),
    ):
        with pytest.raises(NotFittedError):
            LossCurveDisplay.from_estimator(unfitted)
    with pytest.raises(TypeError, match="LogisticRegression has no loss_curve_"):
        LossCurveDisplay.from_estimator(LogisticRegression().fit(*data))
    # Its loss curve is a mean over rows, with a penalty: not in nats.
    mlp = MLPClassifier(tol=10, n_iter_no_change=1)
    with pytest.raises(TypeError, match="MLPClassifier has no loss_curve_ and"):
        LossCurveDisplay.from_estimator(mlp.fit(*data))


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


def test_printed_intervals():
    """What `print` shows. Wrong variant: unreliable ends, in brackets."""
    minus = "\N{MINUS SIGN}"
    table = {"ELBO of q": elbo_row((-56.5, 0.0))}
    certain = replace(make_bounds(reliable=False), table=table)
    bounds = {
        "wide": make_bounds(),
        "exact": make_bounds(lower=-3.0, upper=-3.0, lower_se=0.0, upper_se=0.0),
        "bad": make_bounds(reliable=False),
        "ELBO": certain,
        "labels": certain.of_probability(),
    }
    display = EvidenceBoundsDisplay.from_bounds(bounds)
    texts = [label.get_text() for label in display.values_.get_yticklabels()]
    assert texts == [
        f"{minus}55.040 to {minus}54.960",
        f"{minus}3.00",
        "unknown",
        f"at least {minus}56.50",
        f"{minus}56.50 to 0.00",
    ]
    for text, one in zip(texts, bounds.values(), strict=True):
        for end in text.replace(minus, "-").removeprefix("at least ").split(" to "):
            assert end in str(one)
    assert EvidenceBoundsDisplay(bounds).plot(values=False).values_ is None


def test_unreliable_bounds_are_hollow_and_labeled():
    """Wrong variants: a bar between bounds that mean nothing, with an estimate; a
    legend for an estimate that nothing shows.
    """
    bounds = {"good": make_bounds(), "bad": make_bounds(-57.0, reliable=False)}
    display = EvidenceBoundsDisplay.from_bounds(bounds)
    good, bad = display.bars_
    assert (good.get_facecolor()[3], bad.get_facecolor()[3]) == (1, 0)
    assert (bool(good.get_hatch()), bool(bad.get_hatch())) == (False, True)
    labels = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert labels == ["good", "bad\n(not reliable)"]
    assert {"lower to upper bound", "not reliable"} <= set(legend_texts(display.ax_))
    assert bad.get_width() != bad.get_width()
    assert math.isnan(display.estimates_.get_xdata()[1])
    # No whiskers: the standard errors mean nothing there.
    assert set(display.whiskers_.get_ydata()) == {0.0}
    alone = EvidenceBoundsDisplay.from_bounds({"bad": bounds["bad"]})
    assert "estimate" not in legend_texts(alone.ax_)


def test_differences_from_a_reference():
    """All marks move by its estimate. Wrong variant: bars that stay."""
    bounds = {"a": make_bounds(-102.0), "b": make_bounds(-100.0)}
    display = EvidenceBoundsDisplay(bounds).plot(reference="b")
    np.testing.assert_allclose(display.estimates_.get_xdata(), [-2.0, 0.0])
    lower = [bar.get_x() for bar in display.bars_]
    expected = [value.lower - bounds["b"].estimate for value in bounds.values()]
    np.testing.assert_allclose(lower, expected)
    assert display.ax_.get_xlabel() == "log evidence minus that of b [nats]"
    low, high = display.ax_.get_xlim()
    assert low < min(lower)
    assert high > display.bars_[1].get_x() + display.bars_[1].get_width()
    with pytest.raises(ValueError, match="reference must be one of"):
        display.plot(reference="c")


def test_missing_parts():
    display = EvidenceBoundsDisplay.from_bounds(make_bounds(table=False), name="m")
    assert display.elbo_ is display.eubo_ is None
    assert "ELBO of the fit" not in legend_texts(display.ax_)
    assert list(display.bounds) == ["m"]
    hidden = EvidenceBoundsDisplay.from_bounds(make_bounds(), fit_bounds=False)
    assert hidden.elbo_ is None
    bad = EvidenceBoundsDisplay.from_bounds(make_bounds(reliable=False))
    assert bad.whiskers_ is None


def test_learned_hyperparameters_are_named():
    bounds = make_bounds(plug_in=("noise_scale",), reliable=False)
    (label,) = EvidenceBoundsDisplay.from_bounds(bounds).ax_.get_yticklabels()
    assert label.get_text() == "model\n(not reliable; given learned noise_scale)"


def test_non_finite_bounds_can_be_drawn():
    bad = make_bounds(
        lower=-math.inf, upper=math.inf, estimate=math.nan, reliable=False, table=False
    )
    display = EvidenceBoundsDisplay.from_bounds({"bad": bad, "good": make_bounds()})
    display.figure_.canvas.draw()
    assert np.isfinite(display.ax_.get_xlim()).all()


def test_quantities_are_not_mixed():
    bounds = {"a": make_bounds(), "b": make_bounds(quantity="generalized log evidence")}
    with pytest.raises(ValueError, match=r"different quantities.*generalized"):
        EvidenceBoundsDisplay.from_bounds(bounds)
    assert not plt.get_fignums()
    display = EvidenceBoundsDisplay.from_bounds(bounds["b"])
    assert display.ax_.get_xlabel() == "generalized log evidence [nats]"


def test_wrong_bounds_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        EvidenceBoundsDisplay.from_bounds({})
    with pytest.raises(TypeError, match=r"bounds\['a'\] must be EvidenceBounds"):
        EvidenceBoundsDisplay.from_bounds({"a": -55.0})


def test_axes_and_keywords_of_the_user():
    _, ax = plt.subplots()
    display = EvidenceBoundsDisplay.from_bounds(
        make_bounds(),
        ax=ax,
        bar_kwargs={"height": 0.2},
        whisker_kwargs={"lw": 4},
        estimate_kwargs={"ms": 11},
        fit_kwargs={"color": "k"},
    )
    assert display.ax_ is ax
    assert display.bars_[0].get_height() == pytest.approx(0.2)
    assert display.whiskers_.get_linewidth() == 4
    assert display.estimates_.get_markersize() == 11
    assert display.elbo_.get_color() == display.eubo_.get_color() == "k"
    assert plt.get_fignums() == [ax.figure.number]


@pytest.mark.parametrize("n", [1, 6, 10])
def test_labels_do_not_overlap(n):
    bounds = {f"{i}": make_bounds(-50.0 * i, reliable=i % 3 > 0) for i in range(n)}
    display = EvidenceBoundsDisplay.from_bounds(bounds)
    display.figure_.canvas.draw()
    ax, below = display.ax_, display.ax_.get_legend().get_window_extent()
    groups = [
        [label.get_window_extent() for label in ax.get_yticklabels()],
        [label.get_window_extent() for label in display.values_.get_yticklabels()],
        [ax.xaxis.label.get_window_extent(), below],
    ]
    for boxes in groups:
        for upper, lower in pairwise(boxes):
            assert upper.y0 >= lower.y1
    width, height = display.figure_.canvas.get_width_height()
    right = max(box.x1 for box in groups[1])
    assert max(right, below.x1) <= width
    assert min(below.x0, below.y0) >= 0
    assert groups[0][0].y1 <= height


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


# Without matplotlib


@pytest.mark.parametrize(
    ("call", "caller"),
    [
        (lambda f, d: LossCurveDisplay([1.0]).plot(), "LossCurveDisplay.plot"),
        (
            lambda f, d: LossCurveDisplay.from_estimator(f),
            "LossCurveDisplay.from_estimator",
        ),
        (
            lambda f, d: EvidenceBoundsDisplay({"a": make_bounds()}).plot(),
            "EvidenceBoundsDisplay.plot",
        ),
        (
            lambda f, d: EvidenceBoundsDisplay.from_bounds(make_bounds()),
            "EvidenceBoundsDisplay.plot",
        ),
        (
            lambda f, d: EvidenceBoundsDisplay.from_estimator(f, *d),
            "EvidenceBoundsDisplay.from_estimator",
        ),
        (lambda f, d: WeightsDisplay({}).plot(), r"WeightsDisplay\.\w+"),
        (lambda f, d: WeightsDisplay.from_estimator(f, *d), r"WeightsDisplay\.\w+"),
        (lambda f, d: PosteriorDisplay.from_estimator(f), r"PosteriorDisplay\.\w+"),
    ],
)
def test_without_matplotlib(monkeypatch, fitted, data, call, caller):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ImportError("no module named matplotlib")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=rf"{caller} needs.*skvi\[examples\]"):
        call(fitted, data)
