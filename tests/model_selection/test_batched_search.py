"""BatchedGridSearchCV finds what GridSearchCV finds."""

import warnings

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning, NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler, scale

from skvi._estimator import _fitting, _side_by_side
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.exceptions import SkviWarning
from skvi.metrics import log_predictive_density_scorer
from skvi.model_selection import BatchedGridSearchCV, _batched
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.objectives import RenyiBound
from skvi.objectives._analytic import AnalyticSteps
from skvi.posteriors import Ensemble, FullRankNormal
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


def test_structures_have_stacks_of_their_own(stacks):
    """Orders, weights, sizes; and a family that no stack takes.

    Wrong variant: outcomes in the order of the stacks.
    """
    grid = [
        {"divergence": [RenyiDivergence()], "divergence__alpha": [0.5, 1.0, 1.5]},
        {"hidden_layer_sizes": [(4,), (3, 2)], "max_iter": [3, 4]},
        {"posterior": [FullRankNormal()], "max_iter": [1]},
        {"posterior": [Ensemble(n_members=2)], "posterior__n_members": [2, 3]},
    ]
    found = compare(network(max_iter=2), grid, *waves(80))
    assert sorted(n for n in stacks if n > 3)[-4:] == [6, 6, 9, 9]
    assert len(set(found.cv_results_["mean_test_score"])) == 10


def test_first_phases_are_in_a_stack_too(stacks):
    """Bounds of log weights start at the ELBO's posterior, and have no stack.

    Wrong variant: the second phase starts where the first one did.
    """
    grid = {"objective": [RenyiBound()], "objective__alpha": [0.3, 0.7]}
    compare(network(max_iter=2), grid, *waves(40), cv=2)
    assert stacks[0] == 4


def test_large_stacks_are_split(stacks, monkeypatch):
    """Wrong variant: what is left over is lost."""
    monkeypatch.setattr(_side_by_side, "STACK_ELEMENTS", 5 * 10 * (2 * 21 + 4 * 32))
    grid = {"divergence__weight": [0.1, 0.3, 1.0, 2.0]}
    compare(network(batch_size=32), grid, *waves())
    assert stacks[:3] == [4, 4, 4]


def test_fold_sizes_whose_batches_differ():
    """Training parts of 657 and 656 rows, in 17 and 16 batches of at most 39 and 41.

    Wrong variant: the batches of the first fold are the largest.
    """
    X, y = waves(985)
    grid = {"divergence__weight": [0.5]}
    splits = [*KFold(3).split(X)][::-1]
    assert [len(train) for train, _ in splits] == [657, 657, 656]
    compare(network(max_iter=2), grid, X, y, cv=splits)


class Counting(TransformerMixin, BaseEstimator):
    """Scales the features, and counts how often it is fitted."""

    n_fits = 0

    def __init__(self, factor=1.0):
        self.factor = factor

    def fit(self, X, y=None):
        Counting.n_fits += 1
        self.mean_ = X.mean(0)
        return self

    def transform(self, X):
        return self.factor * (X - self.mean_)


def test_pipelines_transform_each_fold_once():
    """Once for each setting of the transformers.

    Wrong variants: transformers that are fitted to all rows; those of the first split
    for all.
    """
    X, y = waves()
    model = make_pipeline(Counting(), PolynomialFeatures(2), network())
    weights = {"bayesianmlpregressor__divergence__weight": [0.1, 0.5, 1.0]}
    Counting.n_fits = 0
    BatchedGridSearchCV(model, weights, cv=3, refit=False).fit(X, y)
    assert Counting.n_fits == 3
    compare(model, weights, X, y)
    Counting.n_fits = 0
    grid = weights | {"counting__factor": [0.5, 2.0]}
    compare(model, grid, X, y, refit=True)
    assert Counting.n_fits == 2 * 3 + 1 + 6 * 3 + 1


def test_classes_and_several_scores():
    """Of a table with names."""
    pandas = pytest.importorskip("pandas")
    X, y = load_iris(return_X_y=True)
    X, y = pandas.DataFrame(scale(X), columns=list("abcd")), np.array([*"xyz"])[y]
    model = BayesianMLPClassifier(
        posterior="mean_field",
        solver=Stochastic(n_draws=4),
        batch_size=200,
        **SMALL | {"divergence": KLDivergence(), "max_iter": 10},
    )
    grid = {"divergence__weight": [0.2, 1.0], "class_weight": [None, "balanced"]}
    scoring = ["accuracy", "neg_log_loss"]
    options = {"scoring": scoring, "refit": "neg_log_loss", "return_train_score": True}
    found = compare(model, grid, X, y, **options)
    assert set(found.scorer_) == set(scoring)
    np.testing.assert_allclose(
        found.predict_proba(X), found.best_estimator_.predict_proba(X)
    )
    assert list(found.classes_) == ["x", "y", "z"]
    assert list(found.feature_names_in_) == ["a", "b", "c", "d"]


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


def test_weights_and_groups():
    """Wrong variant: weights of the first rows for all folds."""
    X, y = waves()
    weight = np.random.default_rng(1).uniform(0.1, 3, len(y))
    grid = {"divergence__weight": [0.1, 1.0]}
    params = {"sample_weight": weight, "groups": np.arange(len(y)) % 7}
    compare(network(), grid, X, y, fit_params=params, cv=GroupKFold(3))
    for scoring in ("r2", ["r2", "neg_mean_squared_error"]):
        options = {"cv": GroupKFold(2), "scoring": scoring, "refit": scoring == "r2"}
        own, other = (
            search(network(), grid, **options).fit(X, y, **params).cv_results_
            for search in (BatchedGridSearchCV, GridSearchCV)
        )
        name = "mean_test_score" if scoring == "r2" else "mean_test_r2"
        np.testing.assert_allclose(own[name], other[name], rtol=RTOL)


def test_shuffled_folds_are_the_same_for_all():
    """Wrong variant: a second call of a splitter that shuffles anew."""
    X, y = waves()
    cv = KFold(3, shuffle=True)
    grid = {"max_iter": [2, 2]}
    model = network(batch_size=32)
    found = BatchedGridSearchCV(model, grid, cv=cv).fit(X, y).cv_results_
    scores = np.array([found[f"split{i}_test_score"] for i in range(3)])
    # Up to rounding, which depends on the place in a stack.
    np.testing.assert_allclose(scores[:, 0], scores[:, 1], rtol=RTOL)
    assert len(set(scores[:, 0])) == 3


def test_a_candidate_that_fails():
    """Leaves NaN in its row, or raises."""
    X, y = waves()
    grid = {"solver__learning_rate": [-1.0, 0.05]}
    with pytest.warns(FitFailedWarning, match="3 fits failed"):
        with pytest.warns(UserWarning, match="non-finite"):
            search = BatchedGridSearchCV(network(), grid, cv=3).fit(X, y)
    scores = search.cv_results_["mean_test_score"]
    assert np.isnan(scores).tolist() == [True, False]
    assert search.best_params_ == {"solver__learning_rate": 0.05}
    search = BatchedGridSearchCV(network(), grid, cv=3, error_score="raise")
    with pytest.raises(ValueError, match="learning_rate"):
        search.fit(X, y)


def test_a_stack_that_fails_is_fitted_one_by_one(monkeypatch):
    """Wrong variant: one bad fit makes all candidates fail."""

    def fail(fits):
        raise RuntimeError

    X, y = waves()
    grid = {"divergence__weight": [0.1, 1.0]}
    expected = BatchedGridSearchCV(network(), grid, cv=3).fit(X, y)
    monkeypatch.setattr("skvi.model_selection._batched.fit_side_by_side", fail)
    with pytest.warns(SkviWarning, match="RuntimeError.* one at a time"):
        found = BatchedGridSearchCV(network(), grid, cv=3).fit(X, y)
    np.testing.assert_allclose(
        found.cv_results_["mean_test_score"],
        expected.cv_results_["mean_test_score"],
        rtol=RTOL,
    )


def test_other_estimators_take_the_usual_path(stacks):
    X, y = waves()
    compare(Ridge(), {"alpha": [0.1, 1.0]}, X, y)
    compare(make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": [1.0]}, X, y)
    compare(
        network(verbose=0, posterior="full_rank", max_iter=1),
        {"solver__tol": [1.0]},
        X,
        y,
    )
    assert not stacks


def test_one_warning_for_all_that_did_not_converge():
    X, y = waves()
    search = BatchedGridSearchCV(
        network(max_iter=4), {"divergence__weight": [0.1, 1.0]}, cv=3, refit=False
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        search.fit(X, y)
    found = [str(w.message) for w in caught if w.category is ConvergenceWarning]
    assert len(found) == 1
    assert found[0].startswith("6 of 6 fits did not converge")
    assert "max_iter" in found[0]


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


@pytest.mark.slow
def test_several_processes():
    grid = {"divergence__weight": list(np.geomspace(0.1, 1, 15))}
    compare(network(), grid, *waves(), n_jobs=2)
