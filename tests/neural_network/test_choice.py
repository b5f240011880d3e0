"""What a network chooses on rows held out."""

from collections import Counter

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split

from skvi.divergences import KLDivergence
from skvi.exceptions import SkviWarning
from skvi.model_selection import EvidenceSearch
from skvi.neural_network import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    BayesianModuleClassifier,
    _base,
    _choice,
)
from skvi.posteriors import Ensemble
from skvi.solvers import Stochastic
from skvi.solvers._stochastic._ends import Validation
from tests.interrupts import quick
from tests.modules import relu_network

quiet = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)

SOURCE = np.random.default_rng(0)
X = SOURCE.uniform(-2, 2, (120, 1))
y = np.sin(2 * X[:, 0]) + 0.1 * SOURCE.standard_normal(120)
SMALL = {
    "hidden_layer_sizes": 6,
    "random_state": 0,
    "solver": Stochastic(learning_rate=0.05),
}


@pytest.fixture
def usual(monkeypatch):
    """A weight that nothing was fitted for."""
    monkeypatch.setattr(_base, "choose", lambda *_: _choice.Choice(0.3))


@quiet
@pytest.mark.parametrize(
    ("model", "target"), [(BayesianMLPRegressor, y), (BayesianMLPClassifier, y > 0)]
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_weight_is_the_one_that_predicts_best(monkeypatch, order, model, target):
    """A weight of 1,000 keeps the prior, which is a constant.

    Wrong variants: the worst one, or the first one, or the last one.
    """
    monkeypatch.setattr(_choice, "WEIGHTS", (0.3, 1000.0)[::order])
    small = {"max_iter": 40, "skip_connection": False, **SMALL}
    network = model(**small).fit(X, target)
    assert network.divergence_.weight == 0.3
    assert network.divergence == "auto"
    assert network.diagnostics_["shares"]["network"] > 0.5
    # The network is that of this weight, with all rows.
    given = model(divergence=KLDivergence(0.3), **small).fit(X, target)
    found, own = (
        m.posterior_.components[0].as_normal().mean[:12] for m in (network, given)
    )
    np.testing.assert_array_equal(found, own)


@quiet
def test_candidates_do_not_see_the_rows_that_judge_them(monkeypatch):
    """And all rows tell the noise of what is left of them.

    Wrong variants: all rows for both; the other folds only if several are left.
    """
    monkeypatch.setattr(_choice, "N_ERRORS", 0.0)
    fits, original = [], _choice._Race._train

    def train(self, tried):
        fits.extend(tried)
        original(self, tried)

    monkeypatch.setattr(_choice._Race, "_train", train)
    judged, evaluate = [], _choice._Race._evaluate

    def record(self, key, fitted, fold):
        judged.append((key, fold, fitted, self.splits[fold][1]))
        evaluate(self, key, fitted, fold)

    monkeypatch.setattr(_choice._Race, "_evaluate", record)
    BayesianMLPRegressor(max_iter=2, **SMALL).fit(X, y)
    rows = {id(network): own for network, own in fits}
    # Two simple models and the best network five times, the others once.
    n_times = Counter(key for key, *_ in judged)
    assert sorted(n_times.values())[-3:] == [5, 5, 5]
    assert len(n_times) == 2 + len(_choice.WEIGHTS)
    for _, _, fitted, test in judged:
        assert len(test) == 24
        assert sorted([*rows[id(fitted)], *test]) == list(range(120))


@quiet
@pytest.mark.parametrize("model", [BayesianMLPRegressor, BayesianMLPClassifier])
@pytest.mark.usefixtures("usual")
def test_the_default_is_a_mixture_of_four(model):
    """Also of a clone; the evidence, other objectives, losses and streams: one network.

    Wrong variants: another number of members; mixtures in streams.
    """
    target = y if model is BayesianMLPRegressor else y > 0
    small = {"hidden_layer_sizes": 4, "max_iter": 2, "random_state": 0}
    found = model(**small).fit(X, target)
    four = model(posterior=Ensemble(n_members=4), **small).fit(X, target)
    np.testing.assert_array_equal(found.predict(X), four.predict(X))
    assert isinstance(found.posterior_family_, Ensemble)
    assert found.divergence_.weight == 0.3
    one = model(posterior="mean_field", **small)
    for change in ({"objective": "eubo"}, {"loss": "beta"}):
        chosen = model(**small, **change).fit(X, target)
        given = clone(one).set_params(**change).fit(X, target)
        np.testing.assert_array_equal(chosen.predict(X), given.predict(X))
        assert chosen.divergence_.weight == 1.0
    classes = {} if target is y else {"classes": [False, True]}
    streamed = model(**small).partial_fit(X, target, **classes)
    given = one.partial_fit(X, target, **classes)
    np.testing.assert_array_equal(streamed.predict(X), given.predict(X))


def test_a_row_far_out_bends_no_curve():
    """Wrong variant: a spline through all factors, which is positive beside -1e10."""
    held = _choice._Held()
    table = -((_choice.FACTORS - 0.4) ** 2) * np.ones((8, 1))
    table[0, :3] = -1e10, -1e7, -1e3
    held.rows.append(table)
    factor, scores = held.best(np.ones(8))
    assert factor == pytest.approx(0.4, abs=0.11)
    assert (scores <= 0).all()


@quiet
def test_candidates_say_nothing():
    """Of a constant y the fit speaks of all rows. Wrong variant: candidates do, too."""
    network = BayesianMLPRegressor(max_iter=2, **SMALL)
    with pytest.warns(SkviWarning) as found:
        network.fit(X[:60], np.ones(60))
    said = [str(w.message) for w in found if "equal values" in str(w.message)]
    assert len(said) == 1
    assert "60 rows" in said[0]


@quiet
def test_the_choice_is_a_stage_of_its_own(monkeypatch, capsys):
    """It is announced; Ctrl-C keeps the best candidate, or says that there is none.

    Wrong variants: silence; the start of the fit; a candidate's network with the noise
    of another one.
    """
    network = BayesianMLPRegressor(
        divergence=KLDivergence(weight="auto"), max_iter=2, verbose=1, **SMALL
    ).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "[BayesianMLPRegressor] chooses the weight of the divergence by held-out rows"
    )
    assert [line.split()[1] for line in lines[1:]] == ["iteration", "iteration", "2"]

    calls, original = [], _choice.fit_side_by_side

    def interrupt(fits):
        calls.append(fits)
        if len(calls) == at:
            raise KeyboardInterrupt
        return original(fits)

    monkeypatch.setattr(_choice, "fit_side_by_side", interrupt)
    at = 1
    with pytest.raises(KeyboardInterrupt, match="nothing is fitted yet"):
        network.fit(X, y)
    assert not hasattr(network, "posterior_")
    for later in (2, 3):  # a linear model, and then a network, are there
        at = later
        calls.clear()
        with pytest.raises(KeyboardInterrupt):
            network.fit(X, y)
        assert "interrupted" in network.diagnostics_["message"]
        assert np.mean((network.predict(X) - y) ** 2) < 1.1 * np.var(y)
        assert network.predict_log_density(X, y).mean() > -2


#: One network with the whole divergence and the plainest noise.
ONE = {
    "divergence": "kl",
    "posterior": "mean_field",
    "likelihood": "gaussian",
    "activation": "softplus",
    "skip_connection": False,
}

N = 100
# As many draws as score a state: then the scores are what predictions have.
SMALL_NET = {
    "hidden_layer_sizes": (4,),
    "solver": Stochastic(n_draws=4),
    "n_predict_draws": 20,
    "max_iter": 15,
    "validation_fraction": 0.2,
    "random_state": 0,
}
MLP = BayesianMLPRegressor(**(ONE | {"activation": "relu"} | SMALL_NET))


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


@quick
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
        model = kind(**{k: v for k, v in SMALL_NET.items() if k not in names})
        if kind is BayesianModuleClassifier:
            model.set_params(module=relu_network)
        model.set_params(class_weight="balanced").fit(X, codes)
        weight = N / (3 * np.bincount(codes)[codes[out]])
        expected = score(model, X[out], codes[out], weight)
        assert model.best_validation_score_ == pytest.approx(expected, rel=1e-9)


@quick
def test_the_best_state_is_returned():
    """Wrong variants: the last one; the average over the sweep that follows."""
    X, y = noise()
    model = clone(MLP).set_params(max_iter=60, solver__learning_rate=0.2).fit(X, y)
    scores, (_, out) = model.validation_scores_, split()
    assert model.best_validation_score_ == scores.max() > scores[-1]
    assert score(model, X[out], y[out]) == pytest.approx(scores.max(), rel=1e-9)


@quick
def test_a_state_of_the_warm_up_is_not_kept(monkeypatch):
    """Wrong variant: it is (`counts`)."""
    X, y = numbers()
    model, scores = clone(MLP).set_params(batch_size=4, max_iter=60), iter(range(60))
    monkeypatch.setattr(type(model), "_score", lambda self, state: -next(scores))
    model.fit(X, y)
    # 12 sweeps of 100 steps; a fifth of them, rounded down, is the warm-up.
    assert model.best_validation_score_ == -10


@quick
def test_steps_of_the_user_have_no_planned_length(monkeypatch):
    """Wrong variant: "unfinished" without a message, after steps that are too short."""
    X, y = numbers()
    monkeypatch.setattr("skvi.neural_network._mlp.FEW_STEPS", 100)
    own = {"hidden_layer_sizes": 2, "solver": Stochastic(learning_rate=1e-4)}
    model = BayesianMLPRegressor(**own, posterior="mean_field", random_state=0)
    with pytest.warns(ConvergenceWarning, match="increase max_iter"):
        model.fit(X, y)


@quick
def test_evidence_searches_hold_nothing_out():
    with pytest.raises(ValueError, match="validation_fraction=None"):
        EvidenceSearch(MLP, {"max_iter": [5, 6]}).fit(*numbers())


@quick
def test_rises_within_the_tolerance_are_no_progress():
    """But the best state is kept. Wrong variant: any rise of the score is progress."""
    scores = iter([0.0, 0.06, 0.09, 0.12, 0.15])
    rule = Validation(lambda state: next(scores), tol=0.1)
    found = [(*rule.judge(None, True), rule.waited) for _ in range(5)]
    assert [waited for *_, waited in found] == [0, 1, 2, 0, 1]
    assert all(is_best for _, is_best, _ in found)
