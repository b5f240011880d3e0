"""Corner plots: what is drawn where."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes

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


def test_a_linear_model():
    X, y = load_diabetes(return_X_y=True)
    model = BayesianLinearRegression().fit(X[:, :3], y)
    display = CornerDisplay.from_estimator(
        model, names=["coef"], n_samples=500, random_state=0, figure=Figure()
    )
    assert len(display.names) == 3
    np.testing.assert_allclose(
        display.draws.mean(0), model.coef_, atol=0.3 * model.coef_std_.max()
    )
