"""What "auto" stands for in an ensemble, and the weight that held-out rows choose."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone

from skvi.changepoint import BayesianChangepointDetector
from skvi.divergences import KL
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.linear_model import BayesianLogisticRegression
from skvi.neural_network import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    _base,
    _mlp,
    _weights,
)
from skvi.posteriors import Ensemble

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)

SOURCE = np.random.default_rng(0)
X = SOURCE.uniform(-2, 2, (120, 1))
y = np.sin(2 * X[:, 0]) + 0.1 * SOURCE.standard_normal(120)
SMALL = {"hidden_layer_sizes": 6, "random_state": 0, "learning_rate": 0.05}


@pytest.mark.parametrize(
    ("model", "target"), [(BayesianMLPRegressor, y), (BayesianMLPClassifier, y > 0)]
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_weight_is_the_one_that_predicts_best(monkeypatch, order, model, target):
    """A weight of 1,000 keeps the prior, which is a constant.

    Wrong variants: the worst one, or the first one, or the last one.
    """
    monkeypatch.setattr(_weights, "WEIGHTS", (0.3, 1000.0)[::order])
    network = model(divergence=KL(weight="auto"), max_iter=40, **SMALL)
    network.fit(X, target)
    assert network.divergence_.weight == 0.3
    assert network.divergence.weight == "auto"
    # The fit is that of this weight, with all rows.
    given = model(divergence=KL(weight=0.3), max_iter=40, **SMALL).fit(X, target)
    np.testing.assert_array_equal(network.predict(X), given.predict(X))
    assert network.lower_bound_ == given.lower_bound_


def test_candidates_do_not_see_the_rows_that_judge_them(monkeypatch):
    """Wrong variant: all rows for both."""
    seen, original = [], _weights.pose

    def pose(network, X, y, weight):
        seen.append(X)
        return original(network, X, y, weight)

    def density(self, X, y):
        held_out.append(X)
        return np.zeros(len(X))

    held_out = []
    monkeypatch.setattr(_weights, "pose", pose)
    monkeypatch.setattr(BayesianMLPRegressor, "predict_log_density", density)
    BayesianMLPRegressor(
        posterior="mean_field", divergence=KL("auto"), max_iter=2, **SMALL
    ).fit(X, y)
    assert len(seen) == len(held_out) == 3
    for train, test in zip(seen, held_out, strict=True):
        assert (len(train), len(test)) == (96, 24)
        assert not set(train.ravel()) & set(test.ravel())


ACCURATE = {"divergence": KL(0.3), "activation": "relu", "n_draws": 2, "max_iter": 3}


@pytest.mark.parametrize(
    ("model", "target", "own", "n_steps"),
    [
        (
            BayesianMLPRegressor,
            y,
            {
                "hidden_layer_sizes": (50, 50),
                "noise": "heteroscedastic",
                "likelihood": "student_t",
            },
            5000,
        ),
        (
            BayesianMLPClassifier,
            y > 0,
            {"hidden_layer_sizes": 100, "learning_rate": 0.01},
            3000,
        ),
    ],
)
def test_auto_in_an_ensemble_is_what_predicts_best(
    monkeypatch, model, target, own, n_steps
):
    """120 rows are two minibatches of 100 at most, so many steps; here a few.

    Wrong variants: one value as in other families; the same for numbers and classes.
    """
    monkeypatch.setattr(_base, "weight_of_divergence", lambda *_: 0.3)
    parts = {"posterior": Ensemble(n_members=2), "random_state": 0}
    network = model(**parts)
    assert network._max_iter(len(X)) == n_steps // 2
    assert network._max_iter(10_000) == n_steps // 100
    assert network._max_iter(1_000_000) == 8
    found = model(**parts, max_iter=3).fit(X, target)
    same = ACCURATE | own | {"batch_size": 100}
    given = model(**parts, **same).fit(X, target)
    np.testing.assert_array_equal(found.predict(X), given.predict(X))
    assert found.lower_bound_ == given.lower_bound_
    # Other families have other settings.
    other = model(posterior="mean_field", random_state=0)
    assert other._max_iter(len(X)) == 4000
    assert repr(other._resolve("divergence")) == "KL()"


def test_another_weight_must_gain_more_than_its_error():
    """The usual weight, .3, unless another one is better beyond a standard error.

    A larger one must be so beyond two. Wrong variants: the largest sum; sums without
    sample weights; the error of one row; one error for all.
    """
    gains = np.r_[np.full(50, -1.0), np.full(50, 1.1)]  # mean .05, error .105
    scores = np.stack([np.zeros(100), np.zeros(100), gains])
    assert _weights.best_weight(scores, np.ones(100)) == 0.3
    assert _weights.best_weight(scores + [[0], [0], [0.1]], np.ones(100)) == 0.3
    assert _weights.best_weight(scores + [[0], [0], [0.2]], np.ones(100)) == 1.0
    assert _weights.best_weight(scores, np.r_[np.zeros(50), np.ones(50)]) == 1.0
    assert _weights.best_weight(scores[::-1], np.r_[np.zeros(50), np.ones(50)]) == 0.1
    both = np.stack([gains + 0.2, np.zeros(100), gains + 0.1])
    assert _weights.best_weight(both, np.ones(100)) == 0.1
    assert _weights.best_weight(-np.abs(both), np.ones(100)) == 0.3


@pytest.mark.parametrize("model", [BayesianMLPRegressor, BayesianMLPClassifier])
def test_the_default_is_a_mixture_of_four(monkeypatch, model):
    """Also of a clone; the evidence, other objectives, losses and streams: one network.

    Wrong variants: another number of members; mixtures in streams.
    """
    monkeypatch.setattr(_base, "weight_of_divergence", lambda *_: 0.3)
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


@pytest.mark.parametrize("model", [BayesianMLPRegressor, BayesianMLPClassifier])
def test_batches_go_on_with_one_network_of_a_default_fit(monkeypatch, model):
    """With its noise, outputs and units; mixtures that were asked for are refused.

    The next batch has no weight, so that its posterior is its prior, to the noise of
    the gradient. Wrong variants: the prior of a new stream; units of one network.
    """
    monkeypatch.setattr(_base, "weight_of_divergence", lambda *_: 0.3)
    target = 1e3 + y if model is BayesianMLPRegressor else y > 0
    small = {"hidden_layer_sizes": 4, "max_iter": 30, "random_state": 0}
    network = model(**small).fit(X, target)
    mixture, sizes = network.posterior_, network.hidden_layer_sizes_
    with pytest.warns(SkviWarning, match="one of the networks of the fit"):
        network.set_params(max_iter=1, learning_rate=1e-9).partial_fit(X, target)
    assert len(network.posterior_.components) == 1 < len(mixture.components)
    assert network.hidden_layer_sizes_ == sizes
    found, first = network.posterior_.as_normal(), mixture.components[0].as_normal()
    np.testing.assert_allclose(found.mean, first.mean, rtol=1e-3, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SkviWarning)
        network.partial_fit(X, target)  # now there is only one
    asked = model(posterior=Ensemble(n_members=2), **small).fit(X, target)
    with pytest.raises(IncompatibleComponentsError, match="posterior='mean_field'"):
        asked.partial_fit(X, target)


def test_a_length_that_was_chosen_is_no_fault(monkeypatch):
    """The objective still decreases after 40 steps: only given limits warn.

    Wrong variants: a warning of every default fit; one that says it has converged.
    """
    monkeypatch.setattr(_base, "weight_of_divergence", lambda *_: 0.3)
    monkeypatch.setitem(_mlp.ACCURATE, "n_steps", 40)
    network = BayesianMLPRegressor(hidden_layer_sizes=4, random_state=0)
    assert not network.fit(X, y).converged_
    assert "max_iter" not in network.diagnostics_["message"]
    limited = clone(network).set_params(max_iter=network.n_iter_).fit(X, y)
    assert "increase max_iter" in limited.diagnostics_["message"]
    np.testing.assert_array_equal(network.predict(X), limited.predict(X))


def test_few_rows_do_not_choose():
    """Numbers take a small weight, classes 1. Wrong variant: a score of two rows."""
    network = BayesianMLPRegressor(
        posterior="mean_field", divergence=KL("auto"), max_iter=2, **SMALL
    )
    assert network.fit(X[:39], y[:39]).divergence_.weight == 0.1
    labels = np.r_[[0], np.ones(79)]  # a class with one row
    network = BayesianMLPClassifier(
        posterior="mean_field", divergence=KL("auto"), max_iter=2, **SMALL
    )
    assert network.fit(X[:80], labels).divergence_.weight == 1.0


def test_candidates_say_nothing():
    """Of a constant y the fit speaks of all rows. Wrong variant: candidates do, too."""
    network = BayesianMLPRegressor(max_iter=2, **SMALL)
    with pytest.warns(SkviWarning) as found:
        network.fit(X[:60], np.ones(60))
    said = [str(w.message) for w in found if "equal values" in str(w.message)]
    assert len(said) == 1
    assert "60 rows" in said[0]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_fit_that_continues_keeps_its_weight(monkeypatch, is_stream):
    """Wrong variant: each batch has another divergence."""
    weights = iter([0.1, 1.0])
    monkeypatch.setattr(_base, "weight_of_divergence", lambda *_: next(weights))
    network = BayesianMLPRegressor(
        posterior="mean_field",
        divergence=KL("auto"),
        max_iter=2,
        warm_start=not is_stream,
        **SMALL,
    )
    learn = network.partial_fit if is_stream else network.fit
    for _ in range(2):
        learn(X, y)
        assert network.divergence_.weight == 0.1
    network.set_params(warm_start=False).fit(X, y)
    assert network.divergence_.weight == 1.0


def test_others_refuse_it():
    """Wrong variant: a comparison of a string with numbers."""
    for model in (
        BayesianLogisticRegression(divergence=KL("auto")),
        BayesianChangepointDetector(divergence=KL("auto")),
    ):
        with pytest.raises(IncompatibleComponentsError, match="held-out rows"):
            model.fit(X, y > 0)


def test_the_choice_is_a_stage_of_its_own(monkeypatch, capsys):
    """It is announced, and Ctrl-C in it says that nothing is fitted.

    Wrong variant: silence.
    """
    network = BayesianMLPRegressor(
        divergence=KL(weight="auto"), max_iter=2, verbose=1, **SMALL
    ).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "[BayesianMLPRegressor] chooses the weight of the divergence by held-out rows"
    )
    assert [line.split()[1] for line in lines[1:]] == ["iteration", "iteration", "2"]

    def interrupt(fits):
        raise KeyboardInterrupt

    monkeypatch.setattr(_weights, "fit_side_by_side", interrupt)
    with pytest.raises(KeyboardInterrupt, match="nothing is fitted yet"):
        network.fit(X, y)
    assert not hasattr(network, "posterior_")
