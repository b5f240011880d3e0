"""What the weight of the divergence is, and who predicts: chosen by held-out rows."""

import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from skvi.changepoint import BayesianChangepointDetector
from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.linear_model import BayesianLogisticRegression
from skvi.neural_network import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    _base,
    _choice,
    _mlp,
)
from skvi.posteriors import Ensemble
from skvi.solvers import Stochastic

pytestmark = pytest.mark.filterwarnings(
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


@pytest.fixture
def choices(monkeypatch):
    """What the fits of a test chose."""
    found, original = [], _base.choose

    def choose(*parts):
        found.append(original(*parts))
        return found[-1]

    monkeypatch.setattr(_base, "choose", choose)
    return found


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


def test_stacked_mixtures_have_the_best_held_out_density():
    """Beside a grid over the simplex; a weight of 2 is a row twice.

    Wrong variants: equal weights; the best alone; sample weights left out.
    """
    source = np.random.default_rng(0)
    scores = source.normal(size=(3, 40)) + [[0.4], [0.3], [0.0]]
    weight = source.integers(1, 4, 40).astype(float)
    found = _choice.stacked(scores, weight)

    def value(shares):
        return weight @ np.log(shares @ np.exp(scores))

    grid = [(i, j, 100 - i - j) for i in range(101) for j in range(101 - i)]
    best = max(value(np.array(shares) / 100) for shares in grid)
    assert found.sum() == pytest.approx(1)
    assert value(found) > best - 0.05
    repeated = np.repeat(scores, weight.astype(int), 1)
    same = _choice.stacked(repeated, np.ones(repeated.shape[1]))
    np.testing.assert_allclose(same, found, atol=1e-6)
    # One that is clearly best has everything.
    sure = _choice.stacked(scores + [[9], [0], [0]], weight)
    np.testing.assert_array_equal(sure, [1, 0, 0])


@pytest.mark.parametrize("model", [BayesianMLPRegressor, BayesianMLPClassifier])
def test_a_constant_that_predicts_is_named(model):
    """Wrong variant: the remedies of a network, whose weights were tried."""
    source = np.random.default_rng(4)
    X, noise = source.normal(size=(80, 3)), source.normal(size=80)
    network = model(hidden_layer_sizes=4, random_state=0)
    network.fit(X, noise if model is BayesianMLPRegressor else noise > 0)
    assert network.diagnostics_["shares"]["constant"] > 0.5
    assert "predicted best by a constant" in network.diagnostics_["message"]
    assert "weight=" not in network.diagnostics_["message"]


@pytest.mark.parametrize("gain", [1.5, 2.5])
def test_a_gain_by_chance_is_none(gain):
    """The first of three is ahead of the last one by so many nats; a row is two.

    Wrong variants: no limit; a limit for the mean of the rows; weights left out.
    """
    scores = np.tile([[gain / 40], [-1.0], [0.0]], (1, 20)) - 0.7
    shares = _choice.beyond_chance(scores, np.full(20, 2.0))
    np.testing.assert_array_equal(shares, [1, 0, 0] if gain > 2 else [0, 0, 1])


def test_held_out_rows_choose_the_scale_of_the_noise():
    """Rows whose residuals are three times the noise of a fit.

    Wrong variants: the factor's inverse; a factor of the mean; none.
    """
    network = BayesianMLPRegressor(
        divergence=KLDivergence(0.3), posterior="mean_field", max_iter=60, **SMALL
    ).fit(X, y)
    source = np.random.default_rng(1)
    mean, own = network.predict(X), network.sample_y(X, 1, random_state=0).ravel()
    far = mean + 3 * (own - mean) * source.choice([-1, 1], len(X))
    held = _choice._Held()
    held.add(network, X, far, X)
    factor, scores = held.best(np.ones(len(X)))
    assert factor == pytest.approx(np.log(3), abs=0.3)
    wider = _choice.with_noise(network, factor)
    np.testing.assert_allclose(scores, wider.predict_log_density(X, far), atol=0.05)
    np.testing.assert_allclose(wider.predict(X), mean, atol=0.02)  # nearly symmetric
    assert scores.sum() > network.predict_log_density(X, far).sum() + 10


@pytest.mark.parametrize("model", [BayesianMLPRegressor, BayesianMLPClassifier])
@pytest.mark.parametrize("posterior", [Ensemble(n_members=2), "mean_field"])
def test_a_linear_signal_is_predicted_by_a_line(choices, model, posterior):
    """With a mixture over the parameters of the network, or by a network that is one.

    Wrong variants: a mixture whose shares are not those of its draws; a network
    instead of the linear model that won; one whose units add something.
    """
    source = np.random.default_rng(0)
    X = source.standard_normal((80, 4))
    f = 2 * X[:, 0] - X[:, 1]
    target = f + source.standard_normal(80)
    target = target if model is BayesianMLPRegressor else target > 0
    network = model(
        hidden_layer_sizes=10, posterior=posterior, max_iter=80, random_state=0
    ).fit(X, target)
    (choice,), parts = choices, network.posterior_.components
    assert max(choice.shares, key=choice.shares.get) != "constant"
    if posterior != "mean_field":
        shares = network.posterior_.log_weights.exp().numpy()
        assert shares.sum() == pytest.approx(1)
        assert shares[:2].sum() == pytest.approx(choice.shares["network"], abs=2e-3)
    elif choice.zeros:
        last = network.posterior_.layout["coef_1"].slice
        assert not parts[0].as_normal().mean[last].any()
    new = source.standard_normal((500, 4))
    at = 2 * new[:, 0] - new[:, 1]
    if model is BayesianMLPClassifier:
        assert np.corrcoef(network.predict_proba(new)[:, 1], at)[0, 1] > 0.9
    else:
        mean, std = network.predict(new, return_std=True)
        assert np.mean((mean - at) ** 2) < 0.35
        assert 0.8 < np.median(std) < 1.6


def test_parts_of_the_mixture_predict_as_they_did_alone(choices, monkeypatch):
    """A linear model, as a network with hidden units, at its own noise.

    Wrong variants: the level of the noise of the other fit; an intercept of hidden
    units; units at the width of their prior.
    """
    source = np.random.default_rng(2)
    X = source.standard_normal((60, 3))
    target = X @ [1.0, -1.0, 0.0] + 0.3 * source.standard_normal(60)
    network = BayesianMLPRegressor(
        hidden_layer_sizes=6, max_iter=30, n_predict_draws=2000, random_state=0
    ).fit(X, target)
    (choice,) = choices
    for kind, alone in choice.simple.items():
        shares = dict.fromkeys(choice.shares, 0.0) | {kind: 1.0}
        one = replace(choice, shares=shares)
        monkeypatch.setattr(_base, "choose", lambda *_, one=one: one)
        found = clone(network).fit(X, target).predict(X, return_std=True)
        own = _choice.log_noise_of(alone, X)
        alone = _choice.with_noise(alone, float(choice.log_noise[kind][0] - own[0]))
        mean, std = alone.predict(X, return_std=True)
        np.testing.assert_allclose(found[0], mean, atol=0.1)
        np.testing.assert_allclose(found[1], std, rtol=0.15)


@pytest.mark.parametrize(
    ("model", "target", "sizes", "n_steps"),
    [
        (BayesianMLPRegressor, y, (50, 50), (2160, 5000)),
        (BayesianMLPClassifier, y > 0, (100,), (2160, 3000)),
    ],
)
@pytest.mark.usefixtures("usual")
def test_the_family_changes_nothing_else(model, target, sizes, n_steps):
    """120 rows are two minibatches of 100 at most, so many steps; here a few.

    Wrong variants: a mixture with other layers, noise, prior, weight or length than
    one network; the same length for numbers and classes.
    """
    found = []
    for posterior in ("auto", "mean_field", "low_rank", Ensemble(n_members=2)):
        network = model(posterior=posterior, random_state=0)
        assert network._max_iter(len(X)) == n_steps[0] // 2
        assert network._max_iter(10_000) == n_steps[1] // 100
        assert network._max_iter(1_000_000) == 8
        network.set_params(max_iter=2).fit(X, target)
        assert network.hidden_layer_sizes_ == sizes
        names = ("activation_", "divergence_", "prior_", "_noise")
        found.append([repr(getattr(network, name, None)) for name in names])
        found[-1].append(network._given_solver(len(X)).get_params())
    assert all(other == found[0] for other in found[1:])
    # The whole divergence, which bounds ask for, is trained to its optimum.
    assert model(divergence="kl")._max_iter(len(X)) == 4000


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


@pytest.mark.parametrize("model", [BayesianMLPRegressor, BayesianMLPClassifier])
@pytest.mark.usefixtures("usual")
def test_batches_go_on_with_one_network_of_a_default_fit(model):
    """With its noise, outputs and units; mixtures that were asked for are refused.

    The next batch has no weight, so that its posterior is its prior, to the noise of
    the gradient. Wrong variants: the prior of a new stream; units of one network.
    """
    target = 1e3 + y if model is BayesianMLPRegressor else y > 0
    small = {"hidden_layer_sizes": 4, "max_iter": 30, "random_state": 0}
    network = model(**small).fit(X, target)
    mixture, sizes = network.posterior_, network.hidden_layer_sizes_
    with pytest.warns(SkviWarning, match="one of the networks of the fit"):
        network.set_params(max_iter=1, solver__learning_rate=1e-9).partial_fit(
            X, target
        )
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


@pytest.mark.usefixtures("usual")
def test_a_length_that_was_chosen_is_no_fault(monkeypatch):
    """The objective still decreases after 40 steps: only given limits warn.

    Wrong variants: a warning of every default fit; one that says it has converged.
    """
    monkeypatch.setitem(_mlp.TRAINING, "n_steps", 40)
    network = BayesianMLPRegressor(hidden_layer_sizes=4, random_state=0)
    assert not network.fit(X, y).converged_
    assert "max_iter" not in network.diagnostics_["message"]
    limited = clone(network).set_params(max_iter=network.n_iter_).fit(X, y)
    assert "increase max_iter" in limited.diagnostics_["message"]
    np.testing.assert_array_equal(network.predict(X), limited.predict(X))


def test_few_rows_do_not_choose():
    """Numbers take a small weight, classes 1. Wrong variant: a score of two rows."""
    network = BayesianMLPRegressor(
        posterior="mean_field", divergence=KLDivergence("auto"), max_iter=2, **SMALL
    )
    assert network.fit(X[:9], y[:9]).divergence_.weight == 0.1
    labels = np.r_[[0], np.ones(79)]  # a class with one row
    network = BayesianMLPClassifier(
        posterior="mean_field", divergence=KLDivergence("auto"), max_iter=2, **SMALL
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


def test_others_refuse_it():
    """Wrong variant: a comparison of a string with numbers."""
    for model in (
        BayesianLogisticRegression(divergence=KLDivergence("auto")),
        BayesianChangepointDetector(divergence=KLDivergence("auto")),
    ):
        with pytest.raises(IncompatibleComponentsError, match="held-out rows"):
            model.fit(X, y > 0)


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
