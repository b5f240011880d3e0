"""Fits that are judged by rows that they do not see."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split

from skvi.likelihoods import (
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    StudentTLikelihood,
)
from skvi.model_selection import BatchedGridSearchCV, EvidenceSearch
from skvi.neural_network import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    BayesianModuleClassifier,
)
from skvi.objectives._analytic import AnalyticSteps
from skvi.solvers import Stochastic
from skvi.solvers._stochastic._ends import Validation
from tests.interrupts import interrupt, quick, stop
from tests.modules import relu_network

#: One network with the whole divergence and the plainest noise.
ONE = {
    "divergence": "kl",
    "posterior": "mean_field",
    "likelihood": "gaussian",
    "activation": "softplus",
    "skip_connection": False,
}

pytestmark = quick
N = 100
# As many draws as score a state: then the scores are what predictions have.
SMALL = {
    "hidden_layer_sizes": (4,),
    "solver": Stochastic(n_draws=4),
    "n_predict_draws": 20,
    "max_iter": 15,
    "validation_fraction": 0.2,
    "random_state": 0,
}
MLP = BayesianMLPRegressor(**(ONE | {"activation": "relu"} | SMALL))


def numbers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    return X, 50 + 10 * np.sin(2 * X[:, 0]) + rng.normal(size=N)


def noise():
    """Nothing to learn: scores fall as a network learns it nevertheless."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 8)), rng.normal(size=N)


def split(random_state=0, y=None):
    """Rows of the fit, and those held out, as scikit-learn draws them."""
    parts = train_test_split(
        np.arange(N), test_size=0.2, random_state=random_state, stratify=y
    )
    return [np.sort(part) for part in parts]


def score(model, X, y, weight=None):
    return np.average(model.predict_log_density(X, y), weights=weight)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"loss": "beta", "likelihood": GaussianLikelihood(2.0)},
        {"likelihood": HeteroscedasticLikelihood(StudentTLikelihood())},
        {"posterior": "ensemble", "normalize_y": False},
        {"objective": "iwelbo", "max_iter": 3},
    ],
    ids=str,
)
def test_the_score_is_what_predictions_have(params):
    """In units of y, and weighted. Wrong variants: without the Jacobian of the units;
    the loss of the fit in the place of the density; the mean of logs; no weights."""
    X, y = numbers()
    weight = np.random.default_rng(1).uniform(0.1, 2.0, size=N)
    model = clone(MLP).set_params(**params).fit(X, y, weight)
    _, out = split()
    expected = score(model, X[out], y[out], weight[out])
    assert model.best_validation_score_ == pytest.approx(expected, rel=1e-9)
    assert len(model.validation_scores_) == model.n_iter_


def test_scores_of_classes_and_of_columns():
    X, y = numbers()
    columns = np.column_stack([y, y**2])
    model = clone(MLP).fit(X, columns)
    _, out = split()
    found = model.best_validation_score_
    assert found == pytest.approx(score(model, X[out], columns[out]), rel=1e-9)
    codes = np.digitize(y, [48.0, 52.0])
    _, out = split(y=codes)
    for kind in (BayesianMLPClassifier, BayesianModuleClassifier):
        names = {"hidden_layer_sizes"} if kind is BayesianModuleClassifier else set()
        model = kind(**{k: v for k, v in SMALL.items() if k not in names})
        if kind is BayesianModuleClassifier:
            model.set_params(module=relu_network)
        model.set_params(class_weight="balanced").fit(X, codes)
        weight = N / (3 * np.bincount(codes)[codes[out]])
        expected = score(model, X[out], codes[out], weight)
        assert model.best_validation_score_ == pytest.approx(expected, rel=1e-9)


def test_the_best_state_is_returned():
    """Wrong variants: the last one; the average over the sweep that follows."""
    X, y = noise()
    model = clone(MLP).set_params(max_iter=60, solver__learning_rate=0.2).fit(X, y)
    scores, (_, out) = model.validation_scores_, split()
    assert model.best_validation_score_ == scores.max() > scores[-1]
    assert score(model, X[out], y[out]) == pytest.approx(scores.max(), rel=1e-9)


def test_a_state_of_the_warm_up_is_not_kept(monkeypatch):
    """Wrong variant: it is (`counts`)."""
    X, y = numbers()
    model, scores = clone(MLP).set_params(batch_size=4, max_iter=60), iter(range(60))
    monkeypatch.setattr(type(model), "_score", lambda self, state: -next(scores))
    model.fit(X, y)
    # 12 sweeps of 100 steps; a fifth of them, rounded down, is the warm-up.
    assert model.best_validation_score_ == -10


@pytest.mark.parametrize("n_iter_no_change", [1, 7])
def test_it_stops_where_the_score_no_longer_rises(n_iter_no_change):
    """After the warm-up, a fifth of the iterations, in sweeps of seven.

    Wrong variants: where the bound does not; only at the end of a sweep; scores of the
    warm-up count.
    """
    X, y = noise()
    model = clone(MLP).set_params(max_iter=500, early_stopping=True)
    model.solver.set_params(n_iter_no_change=n_iter_no_change, tol=0.01)
    model.fit(X, y)
    scores, mark, waited = model.validation_scores_, -np.inf, [0] * 98
    for value in scores[98:]:
        waited.append(0 if value > mark + 0.01 else waited[-1] + 1)
        mark = value if value > mark + 0.01 else mark
    assert model.n_iter_ == len(scores) == waited.index(n_iter_no_change) + 1
    assert model.converged_
    assert model.best_validation_score_ == scores[98:].max()


def test_an_unfinished_fit_says_so():
    X, y = numbers()
    model = clone(MLP).set_params(early_stopping=True, max_iter=2)
    with pytest.warns(
        ConvergenceWarning, match="score .* still increasing after max_iter"
    ):
        model.fit(X, y)


def test_steps_of_the_user_have_no_planned_length(monkeypatch):
    """Wrong variant: "unfinished" without a message, after steps that are too short."""
    X, y = numbers()
    monkeypatch.setattr("skvi.neural_network._mlp.FEW_STEPS", 100)
    own = {"hidden_layer_sizes": 2, "solver": Stochastic(learning_rate=1e-4)}
    model = BayesianMLPRegressor(**own, posterior="mean_field", random_state=0)
    with pytest.warns(ConvergenceWarning, match="increase max_iter"):
        model.fit(X, y)


@pytest.mark.parametrize("normalize_y", [False, True])
def test_nothing_is_learned_from_rows_that_are_held_out(normalize_y):
    """A fit of the others makes the same steps. Wrong variants: units of all rows;
    the split takes numbers from the generator of the fit."""
    X, y = numbers()
    weight = np.ones(N)
    weight[::9] = 2.0
    model = clone(MLP).set_params(normalize_y=normalize_y).fit(X, y, weight)
    rest, out = split()
    alone = clone(model).set_params(validation_fraction=None)
    alone.fit(X[rest], y[rest], weight[rest])
    np.testing.assert_array_equal(model.loss_curve_, alone.loss_curve_)
    assert alone.validation_scores_ is alone.best_validation_score_ is None
    other = y.copy()
    other[out] += 100
    again = clone(model).fit(X, other, weight)
    np.testing.assert_array_equal(model.loss_curve_, again.loss_curve_)
    assert again.best_validation_score_ < model.best_validation_score_ - 10


def test_evidence_is_of_the_rows_of_the_fit(monkeypatch):
    """Of the same rows, whatever is asked later. Wrong variant: of all rows."""
    X, y = numbers()
    model, targets = clone(MLP).fit(X, y), []

    def bound(target, *_, **__):
        targets.append(target)
        raise InterruptedError

    monkeypatch.setattr("skvi._estimator._base.bound_evidence", bound)
    for params in ({}, {"validation_fraction": None, "random_state": 7}):
        model.set_params(**params)
        with pytest.raises(InterruptedError):
            model.evidence_bounds(X, y, method="importance")
    rest, _ = split()
    expected = (y[rest] - y[rest].mean()) / y[rest].std()
    for target in targets:
        np.testing.assert_allclose(target.y, expected, rtol=1e-9)
    with pytest.raises(ValueError, match="100 rows of the fit"):
        model.evidence_bounds(X[rest], y[rest])


def test_the_split():
    """Drawn by `random_state`, without rows of weight zero, of every class."""
    X, _ = numbers()
    rare = (np.arange(N) % 10 == 0).astype(int)
    weight = np.ones(N)
    weight[:10] = 0.0
    model = BayesianMLPClassifier(
        skip_connection=False, divergence="kl", posterior="mean_field", **SMALL
    ).fit(X, rare, weight)
    assert len(model._held_out) == 18
    assert rare[weight > 0][model._held_out].sum() == 2
    again, other = clone(model), clone(model).set_params(random_state=1)
    again.fit(X, rare, weight)
    other.fit(X, rare, weight)
    np.testing.assert_array_equal(again.validation_scores_, model.validation_scores_)
    assert set(other._held_out) != set(model._held_out)
    with pytest.raises(ValueError, match="least populated class"):
        clone(model).fit(X, np.arange(N) == 0)
    with pytest.raises(ValueError, match="validation_fraction"):
        clone(model).set_params(validation_fraction=1.0).fit(X, rare)


def test_fits_side_by_side():
    """Scores are those of each alone. Wrong variant: scores of the first member."""
    X, y = numbers()
    grid = {"solver__learning_rate": [0.02, 0.1]}
    search = BatchedGridSearchCV(MLP, grid, cv=2, refit=False).fit(X, y)
    for i, rate in enumerate(grid["solver__learning_rate"]):
        model = clone(MLP).set_params(solver__learning_rate=rate).fit(X[50:], y[50:])
        found = search.cv_results_["split0_test_score"][i]
        assert found == pytest.approx(model.score(X[:50], y[:50]), rel=1e-6)


def test_evidence_searches_hold_nothing_out():
    with pytest.raises(ValueError, match="validation_fraction=None"):
        EvidenceSearch(MLP, {"max_iter": [5, 6]}).fit(*numbers())


def test_ctrl_c_keeps_the_best_state(monkeypatch):
    """Wrong variants: that of the start, whose bound is better on the same draws; the
    last one."""
    (X, y), is_last = noise(), []
    for seed in range(3):
        model = clone(MLP).set_params(max_iter=200, random_state=seed).fit(X, y)
        model.set_params(warm_start=True, solver__learning_rate=0.5)
        steps = interrupt(monkeypatch, AnalyticSteps, "differentiate", 90)
        stop(model, X, y)
        monkeypatch.undo()
        assert len(steps) == 90
        _, out = split(seed)
        best = model.validation_scores_.max()
        assert model.best_validation_score_ == best
        assert score(model, X[out], y[out]) == pytest.approx(best, rel=1e-9)
        is_last.append(best == model.validation_scores_[-1])
    assert not all(is_last)


def test_rises_within_the_tolerance_are_no_progress():
    """But the best state is kept. Wrong variant: any rise of the score is progress."""
    scores = iter([0.0, 0.06, 0.09, 0.12, 0.15])
    rule = Validation(lambda state: next(scores), tol=0.1)
    found = [(*rule.judge(None, True), rule.waited) for _ in range(5)]
    assert [waited for *_, waited in found] == [0, 1, 2, 0, 1]
    assert all(is_best for _, is_best, _ in found)
