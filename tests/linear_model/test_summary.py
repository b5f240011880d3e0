"""Tables of coefficients."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

import skvi
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.posteriors import Ensemble
from skvi.solvers import Stochastic

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 2))
F = X @ [1.0, -0.5] + 0.5


def test_rows_are_intercept_and_features():
    """Ends at normal quantiles. Wrong variant: two deviations for 90 %."""
    model = BayesianLinearRegression(noise_scale=0.3, prior="normal")
    table = model.fit(X, F + 0.3 * RNG.normal(size=80)).summary(coverage=0.9)
    assert table.names == ("intercept", "x0", "x1")
    np.testing.assert_allclose(table.mean, [model.intercept_, *model.coef_])
    np.testing.assert_allclose(table.std, [model.intercept_std_, *model.coef_std_])
    expected = stats.norm(table.mean, table.std).interval(0.9)
    np.testing.assert_allclose([table.lower, table.upper], expected)
    assert len(model.summary().to_dict()["mean"]) == 3
    assert "noise_scale_" in str(table)


def test_intervals_of_draws_are_their_quantiles():
    """Of a posterior that is no normal. Wrong variant: a normal with its moments."""
    y = (F + RNG.logistic(size=80) > 0).astype(int)
    model = BayesianLogisticRegression(
        posterior=Ensemble(n_members=2),
        max_iter=3,
        tol=1.0,
        random_state=0,
        prior="normal",
    )
    with pytest.warns(UserWarning, match="max_iter"):
        model.fit(X, y)
    table = model.summary(coverage=0.5)
    draws = model._coefficients.theta
    coef = np.quantile(draws[:, :2], [0.25, 0.75], axis=0)
    np.testing.assert_allclose([table.lower[1:], table.upper[1:]], coef)


def test_classes_and_targets_are_groups():
    """Wrong variant: rows of one class after the other feature's."""
    data, labels = load_iris(return_X_y=True, as_frame=True)
    model = BayesianLogisticRegression(prior="normal").fit(data / data.std(), labels)
    table = model.summary()
    assert len(table) == 15
    assert table.groups[:6] == (0, 0, 0, 0, 0, 1)
    assert table.names[1] == "sepal length (cm)"
    np.testing.assert_allclose(table.mean[6:10], model.coef_[1])
    both = BayesianLinearRegression().fit(X, np.column_stack([F, -F]) + X[:, :1] ** 2)
    table = both.summary()
    assert table.to_dict()["target"] == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(table.mean[4:], both.coef_[1])


def test_pandas_and_text():
    """Wrong variants: pandas is needed to print; all rows have the same decimals."""
    pd = pytest.importorskip("pandas")
    y = RNG.poisson(np.exp(F))
    model = BayesianPoissonRegressor(fit_intercept=False, prior="normal").fit(X, y)
    table = model.summary()
    frame = table.to_frame()
    assert list(frame.index) == ["x0", "x1"]
    assert list(frame.columns) == ["mean", "std", "lower", "upper"]
    pd.testing.assert_frame_equal(
        frame, pd.DataFrame(table.to_dict()).set_index("name")
    )
    lines = str(table).splitlines()
    assert lines[0] == "BayesianPoissonRegressor: 90 % credible intervals"
    assert len({len(line) for line in lines[1:4]}) == 1
    uneven = replace(table, std=np.array([4.2e-5, 310.0]), mean=np.array([9e-5, 7e3]))
    rows = [line.split() for line in str(uneven).splitlines()[2:4]]
    assert [row[1:3] for row in rows] == [["0.0000900", "0.0000420"], ["7000", "310"]]


def test_pandas_is_not_needed(monkeypatch):
    """Wrong variant: an import of pandas where nobody asked for it."""

    class Refusal:
        def find_spec(self, name, *_):
            if name.partition(".")[0] == "pandas":
                raise ImportError("pandas was asked for")

    for name in [n for n in sys.modules if n.partition(".")[0] == "pandas"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Refusal(), *sys.meta_path])
    model = BayesianLinearRegression().fit(X, F)
    assert "x1" in str(model.summary())
    with pytest.raises(ImportError):
        model.summary().to_frame()


def test_names_of_a_pipeline():
    """Wrong variant: x0, x1, ... of what the last step sees."""
    model = make_pipeline(
        PolynomialFeatures(2, include_bias=False), BayesianLinearRegression()
    ).fit(X, F**2)
    names = skvi.summary(model).names
    assert names == ("intercept", "x0", "x1", "x0^2", "x0 x1", "x1^2")


def test_what_cannot_be_summarized():
    """Wrong variants: an unfitted model; a coverage of 90."""
    with pytest.raises(NotFittedError):
        BayesianLinearRegression().summary()
    model = BayesianLinearRegression().fit(X, F)
    with pytest.raises(ValueError, match="coverage"):
        model.summary(coverage=90)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_probability_intervals(n_classes):
    """Against draws of coefficients. Wrong variants: of predictions without draws;
    classes exchanged; quantiles of log odds that are not turned around."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 2))
    codes = (X[:, 0] + rng.logistic(size=60) > 0).astype(int)
    codes = codes + (X[:, 1] > 0.5) if n_classes == 3 else codes
    model = BayesianLogisticRegression(prior="normal").fit(X, codes)
    found = model.predict_proba_interval(X[:5], coverage=0.8)
    assert found.shape == (5, 2, n_classes)
    draws = model.sample_posterior(40_000, random_state=0)
    f = np.einsum("skd,nd->snk", draws["coef"], X[:5]) + draws["intercept"][:, None]
    if n_classes == 2:
        f = np.concatenate([np.zeros_like(f), f], 2)
    p = np.exp(f - np.logaddexp.reduce(f, 2)[..., None])
    expected = np.quantile(p, [0.1, 0.9], axis=0).transpose(1, 0, 2)
    np.testing.assert_allclose(found, expected, atol=0.01)
    rows = [model.predict_proba_interval(row[None], coverage=0.8)[0] for row in X[:5]]
    np.testing.assert_allclose(rows, found, rtol=1e-12)
    mean = model.predict_proba(X[:5])
    assert np.all((found[:, 0] < mean) & (mean < found[:, 1]))
    with pytest.raises(ValueError, match="coverage"):
        model.predict_proba_interval(X, coverage=1.0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_probability_intervals_of_other_models():
    """Of draws: other posteriors, and networks. Wrong variant: rows and levels."""
    from skvi.neural_network import BayesianMLPClassifier

    y = (F + RNG.logistic(size=80) > 0).astype(int)
    network = BayesianMLPClassifier(
        posterior="mean_field",
        divergence="kl",
        hidden_layer_sizes=(),
        max_iter=60,
        solver=Stochastic(tol=1.0),
        random_state=0,
    ).fit(X, y)
    found = network.predict_proba_interval(X)
    assert found.shape == (80, 2, 2)
    np.testing.assert_allclose(found[:, 0, 0], 1 - found[:, 1, 1], atol=1e-12)
    exact = (
        BayesianLogisticRegression(prior="normal").fit(X, y).predict_proba_interval(X)
    )
    np.testing.assert_allclose(found.mean((0, 1)), exact.mean((0, 1)), atol=0.03)
