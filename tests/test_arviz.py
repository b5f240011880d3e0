"""Draws for ArviZ: every array agrees with the other answers of the estimator."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.base import is_classifier

from skvi.inference import VariationalInference
from skvi.linear_model import (
    BayesianBinomialRegressor,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.neural_network import BayesianMLPRegressor

S, RNG = 1000, np.random.default_rng(0)
X, EXPOSURE = RNG.normal(size=(60, 2)), RNG.uniform(1, 3, 60)
F = X[:, 0] + 0.5
Y = 50 + 20 * (F + 0.5 * RNG.normal(size=60))
CLASSES = np.digitize(F + RNG.normal(size=60), [0, 1])
COUNTS = RNG.poisson(EXPOSURE * np.exp(F))
TRIALS = RNG.integers(2, 9, 60)
SUCCESSES = RNG.binomial(TRIALS, 1 / (1 + np.exp(-F)))
NETWORK = {"hidden_layer_sizes": 2, "max_iter": 9, "n_predict_draws": 4000}


@pytest.fixture
def groups(monkeypatch):
    """Stand-in for arviz-base, which is no dependency: the groups as they are."""
    fake = SimpleNamespace(from_dict=lambda groups, dims, coords: groups)
    monkeypatch.setitem(sys.modules, "arviz_base", fake)


@pytest.mark.parametrize(
    ("model", "y", "rows"),
    [
        (BayesianLinearRegression(), np.column_stack([Y, F + EXPOSURE]), {}),
        (BayesianLogisticRegression(), CLASSES, {}),
        (BayesianPoissonRegressor(), COUNTS, {"exposure": EXPOSURE}),
        (BayesianBinomialRegressor(), SUCCESSES, {"n_trials": TRIALS}),
        (BayesianMLPRegressor(**NETWORK, random_state=0), Y, {}),
    ],
    ids=["numbers", "classes", "counts", "trials", "network"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_groups_agree_with_predictions(model, y, rows, groups):
    """Wrong variants: log densities in units of the fit; new targets without noise."""
    tree = model.fit(X, y, **rows).to_arviz(X, y, n_draws=S, random_state=0, **rows)
    log_density = tree["log_likelihood"]["y"].reshape(S, -1)
    averaged = logsumexp(log_density, 0) - np.log(S)
    error = np.exp(log_density - averaged).std(0) / np.sqrt(S)
    expected = model.predict_log_density(X, y, **rows)
    assert (abs(averaged - expected) < 6 * error + 1e-6).all()
    ratio = tree["sample_stats"]["log_p"] - tree["sample_stats"]["log_q"]
    error = np.hypot(ratio.std() / np.sqrt(S), model.lower_bound_se_)
    assert abs(ratio.mean() - model.lower_bound_) < 5 * error + 1e-6
    new = tree["posterior_predictive"]["y"].reshape(S, *y.shape)
    is_number = not is_classifier(model)
    mean = (
        model.predict(X, **rows) * rows.get("n_trials", 1)
        if is_number
        else model.predict_proba(X) @ range(3)
    )
    assert (abs(new.mean(0) - mean) < 6 * new.std(0) / np.sqrt(S)).all()


def test_parameters_are_in_the_units_of_the_data(groups):
    """They give the log likelihood, times the weights of rows. Rows without are out."""
    weight = np.arange(60) % 4 / 2
    model = BayesianLinearRegression().fit(X, Y, weight)
    tree = model.to_arviz(X, Y, sample_weight=weight, n_draws=10, random_state=0)
    b = {name: values.reshape(10, -1) for name, values in tree["posterior"].items()}
    x, y, weight = X[weight > 0], Y[weight > 0], weight[weight > 0]
    expected = norm.logpdf(y, b["coef"] @ x.T + b["intercept"], b["noise_scale"])
    found = tree["log_likelihood"]["y"][0]
    np.testing.assert_allclose(found, weight * expected, rtol=1e-9)


def test_densities_of_ones_own(groups):
    """The posterior is in the family: the ratio of the densities is the evidence."""
    vi = VariationalInference(lambda p: -0.5 * p["a"] ** 2, {"a": ()}).fit()
    tree = vi.to_arviz(8)
    assert tree["posterior"]["a"].shape == (4, 2)
    ratio = tree["sample_stats"]["log_p"] - tree["sample_stats"]["log_q"]
    np.testing.assert_allclose(ratio, 0.5 * np.log(2 * np.pi), atol=1e-4)


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz_base", None)
    with pytest.raises(ImportError, match="needs arviz-base"):
        BayesianLinearRegression().fit(X, Y).to_arviz(X, Y)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")
def test_leave_one_out_does_not_depend_on_units():
    """Wrong variant: a prior at the origin of the features, not at their means."""
    stats = pytest.importorskip("arviz_stats")
    pytest.importorskip("arviz_base")
    pytest.importorskip("xarray_einstats")  # of the summary
    found = []
    for x in (X, X * [1e3, 1e-2] - [5.0, 7.0]):
        model = BayesianLogisticRegression().fit(x, CLASSES)
        tree = model.to_arviz(x, CLASSES, random_state=0)
        assert not stats.summary(tree).isna().any(axis=None)
        logs = tree["sample_stats"]["log_p"], tree["sample_stats"]["log_q"]
        found.append(stats.loo_approximate_posterior(tree, *logs).elpd)
    assert found[0] == pytest.approx(found[1], abs=1e-6)
