"""BatchedGridSearchCV finds what GridSearchCV finds."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skvi._estimator import _fitting
from skvi.divergences import KLDivergence
from skvi.metrics import log_predictive_density_scorer
from skvi.model_selection import BatchedGridSearchCV, _batched
from skvi.neural_network import BayesianMLPRegressor
from skvi.objectives._analytic import AnalyticSteps
from skvi.priors import Normal
from skvi.solvers import Stochastic
from tests.interrupts import (
    Timer,
    check_process,
    duration,
    interrupt,
    moments,
    unix,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
SMALL = {"hidden_layer_sizes": (4,), "max_iter": 3, "random_state": 0}
# Rounding that stacks do in another order, after some steps of Adam.
RTOL = 1e-4


def waves(n=121):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=n)


def network(**params):
    parts = {"posterior": "mean_field", "divergence": KLDivergence(), "prior": Normal()}
    parts |= {
        "solver": Stochastic(n_draws=10),
        "batch_size": 200,
        "likelihood": "gaussian",
    }
    parts |= {"skip_connection": False, "activation": "softplus"}
    return BayesianMLPRegressor(**parts | SMALL | params)


def compare(estimator, grid, X, y, fit_params=None, **options):
    """Both searches, with equal tables but for times."""
    options = {"cv": 3} | options
    own = BatchedGridSearchCV(estimator, grid, **options).fit(X, y, **fit_params or {})
    other = GridSearchCV(estimator, grid, **options).fit(X, y, **fit_params or {})
    assert list(own.cv_results_) == list(other.cv_results_)
    for name, expected in other.cv_results_.items():
        if name == "params" or name.startswith("param_"):
            assert list(own.cv_results_[name]) == list(expected)
        elif not name.endswith("_time"):
            found = own.cv_results_[name]
            np.testing.assert_allclose(found, expected, rtol=RTOL, err_msg=name)
    assert (own.cv_results_["mean_fit_time"] > 0).all()
    for name in ("best_index_", "best_params_", "n_splits_", "multimetric_"):
        assert getattr(own, name, None) == getattr(other, name, None)
    assert own.best_score_ == pytest.approx(other.best_score_, rel=RTOL)
    assert type(own.best_estimator_) is type(other.best_estimator_)
    np.testing.assert_array_equal(own.predict(X), other.predict(X))
    assert own.score(X, y) == other.score(X, y)
    return own


@pytest.fixture
def stacks(monkeypatch):
    """Numbers of members of the stacks that are made."""
    counts = []
    original = AnalyticSteps.__init__

    def count(self, members, *args, **kwargs):
        counts.append(len(members))
        original(self, members, *args, **kwargs)

    monkeypatch.setattr(AnalyticSteps, "__init__", count)
    return counts


def test_continuous_hyperparameters(stacks):
    """Weights, prior scales, step sizes and lengths: all in one stack.

    Wrong variants: another seed for each member; parameters of the first candidate
    for all; the rows of the first fold for all.
    """
    grid = {
        "divergence__weight": [0.1, 1.0],
        "prior__scale": [0.5, 2.0],
        "solver__learning_rate": [0.01, 0.1],
    }
    compare(network(), grid, *waves())
    assert stacks[0] == 8 * 3
    assert set(stacks[1:]) == {1}  # the refit, and the other search


def test_scorers_see_the_estimator():
    """Those of skvi look into pipelines; a user's function may look at anything.

    Wrong variant: they get what stands in for the estimator.
    """
    X, y = waves(60)
    model = make_pipeline(StandardScaler(), network())
    grid = {"bayesianmlpregressor__divergence__weight": [0.1, 1.0]}
    scoring = {
        "density": log_predictive_density_scorer,
        "r2": "r2",
        "mine": lambda estimator, X, y: len(estimator.steps) + estimator.score(X, y),
    }
    found = compare(model, grid, X, y, scoring=scoring, refit="density")
    assert found.scorer_["density"] is log_predictive_density_scorer
    compare(model, grid, X, y, scoring="neg_mean_absolute_error")
    compare(model, grid, X, y, scoring=lambda e, X, y: {"a": e.score(X, y)}, refit="a")


@pytest.mark.parametrize(
    ("owner", "method", "number", "message"),
    [
        (_batched, "pose", 5, "there is no score yet"),
        (AnalyticSteps, "differentiate", 20, "but no best_estimator_"),
        (BayesianMLPRegressor, "score", 3, "but no best_estimator_"),
        (_fitting, "judge_fit", 1, "and best_estimator_"),
    ],
    ids=["before", "in a stack", "in a score", "in the last fit"],
)
def test_ctrl_c_keeps_the_scores_so_far(owner, method, number, message, monkeypatch):
    """Of all members of a stack, as far as they came.

    Wrong variants: nothing is kept; a fit to all data is begun after Ctrl-C; scores of
    the last search stay.
    """
    X, y = waves()
    search = BatchedGridSearchCV(network(), {"divergence__weight": [0.1, 1.0]}, cv=3)
    search.fit(X, y)
    calls = interrupt(monkeypatch, owner, method, number)
    with pytest.raises(KeyboardInterrupt, match=message):
        search.fit(X, y)
    monkeypatch.undo()
    assert len(calls) < 100  # and few steps that compare states with their starts
    assert hasattr(search, "best_estimator_") == ("and best" in message)
    if "no score" in message:
        assert not [name for name in vars(search) if name.endswith("_")]
    else:
        scores = search.cv_results_["mean_test_score"]
        assert np.isfinite(scores).all()
        assert search.best_score_ == scores.max()
        assert search.best_index_ == scores.argmax()
    if "and best" in message:
        assert np.isfinite(search.predict(X)).all()
        assert search.best_estimator_.diagnostics_["ending"] == "interrupted"
    else:
        with pytest.raises((NotFittedError, AttributeError)):
            search.predict(X)


@unix
@pytest.mark.slow
def test_searches_at_random_moments():
    """Scores, or no search. Wrong variants: those of the test above."""
    X, y = waves()
    grid = {"divergence__weight": [0.1, 1.0], "hidden_layer_sizes": [2, 3]}
    search = BatchedGridSearchCV(network(), grid, cv=2)
    with Timer() as timer:
        for moment in moments(duration(lambda: search.fit(X, y)), 10):
            came = timer.interrupts(lambda: search.fit(X, y), moment)
            if hasattr(search, "cv_results_"):
                assert np.isfinite(search.best_score_)
            else:
                assert came
            check_process()
