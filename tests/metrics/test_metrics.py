"""Scores agree with their definitions, and scorers with scikit-learn's machinery."""

import math
import pickle

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import lognorm, norm
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import (
    ARDRegression,
    BayesianRidge,
    LinearRegression,
    LogisticRegression,
    RidgeClassifier,
)
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
)
from skvi.metrics import (
    interval_coverage_scorer,
    interval_score,
    log_predictive_density_scorer,
    neg_crps_scorer,
    neg_interval_score_scorer,
    normal_crps,
    sample_crps,
)
from skvi.metrics._scorers import (
    IntervalCoverage,
    LogPredictiveDensity,
    NegIntervalScore,
)

PREDICTIVE = (
    log_predictive_density_scorer,
    neg_crps_scorer,
    neg_interval_score_scorer,
    interval_coverage_scorer,
)


def crps_by_quadrature(cdf, y, low=-40.0, high=40.0):
    """The definition: the squared distance of distribution functions."""
    below = quad(lambda t: cdf(t) ** 2, low, y, limit=400)[0]
    return below + quad(lambda t: (1 - cdf(t)) ** 2, y, high, limit=400)[0]


@pytest.fixture(scope="module")
def regression():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    return X, 3 * X[:, 0] - X[:, 1] + 2 * rng.normal(size=60) + 7


@pytest.fixture(scope="module")
def classes(regression):
    X, y = regression
    return X, np.where(y > 7, "high", "low")


@pytest.fixture(scope="module")
def linear(regression):
    return BayesianLinearRegression().fit(*regression)


# Formulas


@pytest.mark.parametrize("n_draws", [2, 7])
def test_crps_of_draws_has_no_bias(n_draws, global_random_seed):
    """Mean over 20,000 sets of draws. Wrong variant: S^2 for S (S - 1)."""
    draws = np.random.default_rng(global_random_seed).normal(size=(20_000, n_draws))
    found = sample_crps(np.full(20_000, 0.8), draws)
    expected = normal_crps([0.8], [0.0], [1.0])[0]
    assert abs(found.mean() - expected) < 5 * found.std() / math.sqrt(20_000)


def test_crps_of_draws_is_its_definition():
    rng = np.random.default_rng(0)
    y, draws = rng.normal(size=(4, 3)), rng.normal(size=(4, 3, 6))
    pairs = np.abs(draws[..., None] - draws[..., None, :]).sum((-1, -2)) / (2 * 6 * 5)
    expected = np.abs(draws - y[..., None]).mean(-1) - pairs
    np.testing.assert_allclose(sample_crps(y, draws), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: normal_crps([0.0], [0.0, 1.0], [1.0, 1.0]), r"shape of y.*Got y \(1,"),
        (lambda: normal_crps([0.0], [0.0], [1.0], [1.0]), "that weights need"),
        (lambda: normal_crps([0.0], [0.0], [[1.0]]), "shape of y"),
        (lambda: sample_crps([0.0], [[1.0]]), "at least two draws"),
        (lambda: sample_crps([0.0], [1.0, 2.0]), "shape of y"),
        (lambda: interval_score([0.0], [[1.0, 2.0]], 90), "'coverage' parameter"),
        (lambda: interval_score([0.0], [1.0, 2.0], 0.9), r"shape \(n_samples, 2\)"),
        (lambda: NegIntervalScore(1.0), "'coverage' parameter of NegIntervalScore"),
        (lambda: IntervalCoverage(0), "'coverage' parameter of IntervalCoverage"),
    ],
)
def test_wrong_arguments(call, match):
    with pytest.raises(ValueError, match=match):
        call()


# Scorers


def test_several_targets(regression):
    """Log densities add up over targets; the others are means over them."""
    X, y = regression
    Y = np.stack([y, 10 * y + X[:, 0], -X[:, 1] + y], 1)
    model = BayesianLinearRegression().fit(X, Y)
    for scorer in PREDICTIVE:
        parts = [scorer(o, X, c) for o, c in zip(model.outputs_, Y.T, strict=True)]
        combine = np.sum if scorer is log_predictive_density_scorer else np.mean
        assert scorer(model, X, Y) == pytest.approx(combine(parts), rel=1e-9)
    drawn = [
        sample_crps(Y, model.sample_y(X, 1000, random_state=0)).mean(),
        -neg_crps_scorer(model, X, Y),
    ]
    assert drawn[0] == pytest.approx(drawn[1], rel=0.02)


@pytest.mark.parametrize("scorer", PREDICTIVE)
def test_weights_equal_repetition(regression, linear, scorer):
    """Also zero, even where the row's score is not finite. Wrong variant: sums."""
    X, y = regression
    w = np.arange(60) % 3
    rows = np.repeat(np.arange(60), w)
    found = scorer(linear, X, y, sample_weight=w)
    assert found == pytest.approx(scorer(linear, X[rows], y[rows]), rel=1e-12)
    far = y.copy()
    far[0] = 1e200
    assert scorer(linear, X, far, sample_weight=w) == pytest.approx(found)
    for bad in (np.zeros(60), -np.ones(60)):
        with pytest.raises(ValueError, match=r"zero|[Nn]egative"):
            scorer(linear, X, y, sample_weight=bad)


def test_classifiers(classes):
    X, y = classes
    model = BayesianLogisticRegression(prior="normal").fit(X, y)
    expected = -log_loss(y, model.predict_proba(X))
    assert log_predictive_density_scorer(model, X, y) == pytest.approx(expected)
    with pytest.raises(TypeError, match=r"needs numbers.*predicts classes"):
        neg_crps_scorer(model, X, y)
    for scorer in PREDICTIVE[1:]:
        with pytest.raises(TypeError, match=r"needs numbers.*predicts classes"):
            scorer(model, X, y)
    with pytest.raises(TypeError, match=r"no method predict_log.*predict_proba"):
        log_predictive_density_scorer(RidgeClassifier().fit(X, y), X, y)
    other = LogisticRegression().fit(X, y)
    found = log_predictive_density_scorer(other, X, y)
    assert found == pytest.approx(-log_loss(y, other.predict_proba(X)))
    with pytest.raises(ValueError, match="label middle, which was not in the fit"):
        log_predictive_density_scorer(other, X, np.where(X[:, 0] > 1, "middle", y))


def test_one_scoring_for_all_regressors(regression):
    """Normals of scikit-learn's estimators; a target in logs in its own units.

    Wrong variants: the CRPS from draws; scores of the logs.
    """
    X, y = regression
    y = np.exp(0.2 * y)
    kernel = ConstantKernel() * RBF() + WhiteKernel()
    process = GaussianProcessRegressor(kernel, normalize_y=True, optimizer=None)
    for model in (BayesianRidge(), ARDRegression(), process):
        pipe = make_pipeline(StandardScaler(), model).fit(X, y)
        mean, std = model.predict(pipe[:-1].transform(X), return_std=True)
        ends = np.stack(norm(mean, std).interval(0.9), 1)
        inside = (ends[:, 0] <= y) & (y <= ends[:, 1])
        expected = [
            norm(mean, std).logpdf(y).mean(),
            -normal_crps(y, mean, std).mean(),
            -interval_score(y, ends, 0.9).mean(),
            inside.mean(),
        ]
        found = [scorer(pipe, X, y) for scorer in PREDICTIVE]
        np.testing.assert_allclose(found, expected)
    logs = TransformedTargetRegressor(BayesianRidge(), func=np.log, inverse_func=np.exp)
    logs.fit(X, y)
    mean, std = logs.regressor_.predict(X, return_std=True)
    law = lognorm(std, scale=np.exp(mean))
    crps = np.mean(
        [
            crps_by_quadrature(lognorm(s, scale=np.exp(m)).cdf, one, 0, 400)
            for one, m, s in zip(y[:5], mean, std, strict=False)
        ]
    )
    assert neg_crps_scorer(logs, X[:5], y[:5]) == pytest.approx(-crps, rel=0.1)
    density = log_predictive_density_scorer(logs, X, y)
    assert density == pytest.approx(law.logpdf(y).mean())


@pytest.mark.parametrize("scorer", PREDICTIVE)
def test_wrong_estimators_are_refused(regression, scorer):
    X, y = regression
    with pytest.raises(TypeError, match=r"LinearRegression has no method.*return_std"):
        scorer(LinearRegression().fit(X, y), X, y)
    certain = GaussianProcessRegressor(RBF(), optimizer=None).fit(X, y)
    with pytest.raises(ValueError, match=r"deviation of 0.*WhiteKernel"):
        scorer(Certain().fit(X, y), X, y)
    assert np.isfinite(scorer(certain, X + 0.1, y))


class Certain(LinearRegression):
    """Says that it knows y."""

    def predict(self, X, return_std=False):
        mean = super().predict(X)
        return (mean, 0 * mean) if return_std else mean


def test_scorers_pickle_and_say_what_they_are():
    scorer = NegIntervalScore(0.5).set_score_request(sample_weight=True)
    assert repr(pickle.loads(pickle.dumps(scorer))) == "NegIntervalScore(coverage=0.5)"
    assert repr(neg_crps_scorer) == "NegCRPS(n_draws=1000, random_state=0)"
    assert repr(LogPredictiveDensity()) == "LogPredictiveDensity()"
