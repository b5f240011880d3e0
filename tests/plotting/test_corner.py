"""Corner plots: what is drawn where."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression

from skvi.linear_model import BayesianLinearRegression
from skvi.plotting import CornerDisplay


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


def test_a_linear_model():
    X, y = load_diabetes(return_X_y=True)
    model = BayesianLinearRegression().fit(X[:, :3], y)
    display = CornerDisplay.from_estimator(
        model, names=["coef"], n_draws=500, random_state=0, figure=Figure()
    )
    assert len(display.names) == 3
    np.testing.assert_allclose(
        display.draws.mean(0), model.coef_, atol=0.3 * model.coef_std_.max()
    )
