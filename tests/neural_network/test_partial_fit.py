"""Batch after batch: the posterior so far is the prior of what follows."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.base import clone

from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.likelihoods import GaussianLikelihood
from skvi.neural_network import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    BayesianModuleRegressor,
)
from skvi.objectives._analytic import AnalyticSteps
from skvi.solvers import Stochastic
from tests.interrupts import interrupt, quick
from tests.modules import relu_network
from tests.neural_network.test_conjugate import closed_form, kl

#: One network with the whole divergence and the plainest noise.
ONE = {
    "divergence": "kl",
    "posterior": "mean_field",
    "likelihood": "gaussian",
    "activation": "softplus",
    "skip_connection": False,
}

pytestmark = quick
SMALL = {
    "hidden_layer_sizes": (4,),
    "solver": Stochastic(n_draws=4),
    "max_iter": 10,
    "random_state": 0,
}
MLP = BayesianMLPRegressor(**(ONE | SMALL))
CLASSES = ["a", "b", "c"]


def numbers(n=90):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, 50 + 10 * np.sin(2 * X[:, 0]) + rng.normal(size=n)


def classes(n=90):
    X, y = numbers(n)
    return X, np.array(CLASSES)[np.digitize(y, [45.0, 55.0])]


def batches(X, y, n=3):
    return zip(np.array_split(X, n), np.array_split(y, n), strict=True)


def test_batches_come_to_the_posterior_of_all_rows():
    """In a conjugate case whose posterior is factorized, so that all of them are exact:
    and their bounds come to the evidence, by the chain rule. Wrong variants: the prior
    of the first batch again; that one, but where the last batch ended."""
    rng = np.random.default_rng(0)
    X = np.tile([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], (15, 1))
    y = X @ [0.8, -0.3] + 0.5 * rng.normal(size=60)
    y = (y - y.mean()) / y.std()
    model = BayesianMLPRegressor(
        hidden_layer_sizes=(),
        normalize_y=False,
        solver=Stochastic(n_draws=20, learning_rate=0.1),
        max_iter=40,
        random_state=0,
        **(ONE | {"likelihood": GaussianLikelihood(0.5)}),
    )
    bounds = [model.partial_fit(*batch).lower_bound_ for batch in batches(X, y)]
    mean, covariance, evidence = closed_form(X, y, 0.5)
    assert kl(model.posterior_.as_normal(), mean, covariance) < 0.05
    assert sum(bounds) == pytest.approx(evidence, abs=0.5)
    separate = 0.0  # each with the prior of the first
    for rows, targets in batches(X, y):
        A = np.c_[rows, np.ones(len(rows))]
        marginal = 0.5**2 * np.eye(len(rows)) + (A * [0.5, 0.5, 1.0]) @ A.T
        separate += multivariate_normal(cov=marginal).logpdf(targets)
    assert separate < evidence - 2
    # That of the last batch alone is far away.
    alone = clone(model).fit(*list(batches(X, y))[-1])
    assert kl(alone.posterior_.as_normal(), mean, covariance) > 1


def test_the_first_batch_is_a_fit():
    """And a batch goes on with what a fit has found."""
    (X, y), (Z, z), _ = batches(*numbers())
    first, fitted = clone(MLP).partial_fit(X, y), clone(MLP).fit(X, y)
    np.testing.assert_array_equal(first.predict(Z), fitted.predict(Z))
    np.testing.assert_array_equal(
        first.partial_fit(Z, z).predict(X), fitted.partial_fit(Z, z).predict(X)
    )
    np.testing.assert_array_equal(
        first.fit(X, y).predict(Z), clone(MLP).fit(X, y).predict(Z)
    )


def test_a_batch_starts_where_the_last_one_ended():
    """Wrong variant: it starts afresh (`_continues`)."""
    (X, y), (Z, z), _ = batches(*numbers())
    model = clone(MLP).set_params(max_iter=200).fit(X, y)
    before = model.posterior_.params
    model.set_params(max_iter=1, solver__learning_rate=1e-6).partial_fit(Z, z)
    np.testing.assert_allclose(model.posterior_.params, before, atol=1e-3)


def test_units_and_noise_stay_those_of_the_first_batch():
    """Wrong variants: noise is learned from every batch; the noise of the first in the
    units of the fit."""
    X, y = numbers()
    y = np.column_stack([y, y**2])
    model, (first, *rest) = clone(MLP), list(batches(X, y))
    units = model.partial_fit(*first)._model.units
    noise = model.noise_scale_.copy()
    for batch in rest:
        model.partial_fit(batch[0], 10 + 3 * batch[1])
        np.testing.assert_allclose(model.noise_scale_, noise, rtol=1e-12)
        np.testing.assert_array_equal(model._model.units.y_mean, units.y_mean)
        np.testing.assert_array_equal(model._model.units.y_scale, units.y_scale)
        learned = model._model.likelihood.learned
        assert not learned
    _, std = model.predict(X, return_std=True)
    assert (std > noise).all()


def test_single_precision_goes_on_in_double():
    (X, y), (Z, z), _ = batches(*numbers())
    model = clone(MLP).partial_fit(X.astype(np.float32), y).partial_fit(Z, z)
    assert model.predict(Z).dtype == np.float64
    model.partial_fit(Z.astype(np.float32), z)
    assert model.posterior_.params.numpy().dtype == np.float32


def test_batches_with_some_of_the_classes():
    """Wrong variants: a batch needs two classes; its codes are those of its own."""
    X, y = classes(300)
    model = BayesianMLPClassifier(
        skip_connection=False,
        divergence="kl",
        posterior="mean_field",
        **{**SMALL, "max_iter": 100},
    )
    model.partial_fit(X[:150], y[:150], classes=CLASSES)
    assert model.score(X, y) > 0.6
    for label in ("c", "a", "b"):
        own = np.flatnonzero(y[150:] == label)[:8] + 150
        model.partial_fit(X[own], y[own], np.full(len(own), 1.5))
        assert model.predict_proba(X).shape == (300, 3)
    assert model.score(X, y) > 0.6
    few = BayesianMLPClassifier(
        skip_connection=False, divergence="kl", posterior="mean_field", **SMALL
    ).partial_fit(X[:2], ["b", "b"], classes=CLASSES)
    assert list(few.classes_) == CLASSES
    np.testing.assert_allclose(few.predict_proba(X).sum(1), 1.0)


def test_classes_are_known_from_the_start():
    X, y = classes()
    model = BayesianMLPClassifier(
        skip_connection=False, divergence="kl", posterior="mean_field", **SMALL
    )
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        model.partial_fit(X, y)
    with pytest.raises(ValueError, match="only one class"):
        model.partial_fit(X, y, classes=["a"])
    with pytest.raises(ValueError, match="labels that were not in the fit"):
        model.partial_fit(X, y, classes=["a", "b"])
    model.fit(X, y)
    with pytest.raises(ValueError, match="not the same as on last call"):
        model.partial_fit(X, y, classes=["a", "b", "d"])
    with pytest.raises(ValueError, match="labels that were not in the fit"):
        model.partial_fit(X[:2], ["a", "d"])
    with pytest.raises(ValueError, match="needs all rows"):
        model.set_params(class_weight="balanced").partial_fit(X, y)
    model.set_params(class_weight={"a": 2.0}).partial_fit(X, y)


@pytest.mark.parametrize("known", [["a", "c"], ["a", "c", "d"]])
def test_new_classes_get_outputs_of_their_own(known):
    """Wrong variants: new outputs in the place of known ones; two classes whose log
    odds have twice the mean, or variance."""
    X, y = classes(60)
    rename = dict(zip(CLASSES, ["a", "c", known[-1]], strict=True))
    model = BayesianMLPClassifier(**SMALL)
    model.partial_fit(X, [rename[label] for label in y], classes=known)
    old, before = model.posterior_, pickle.dumps(vars(model))
    with pytest.raises(ValueError, match="not in the fit"):
        model.partial_fit(X[:1], ["x"], classes=["b", *known])
    with pytest.raises(ValueError, match="not the same as on last call"):
        model.partial_fit(X[:1], ["b"], classes=["a", "b"])
    assert pickle.dumps(vars(model)) == before
    model.set_params(max_iter=1, solver__learning_rate=1e-12)  # it learns nothing
    model.partial_fit(X[:1], ["b"], classes=["b", *known])
    assert list(model.classes_) == sorted(["b", *known])
    where = np.searchsorted(model.classes_, known)
    a, b = (
        p.layout.unpack(torch.stack([p.as_normal().mean, p.as_normal().variance]))
        for p in (old, model.posterior_)
    )
    for name, values in a.items():
        if name.endswith("_0"):
            np.testing.assert_allclose(b[name], values, rtol=1e-6, atol=1e-9)
            continue
        new = np.delete(b[name].numpy(), where, -1)[..., 0]
        np.testing.assert_allclose(new[0], 0.0, atol=1e-6)
        assert (new[1] > 0.2).all()
        mean, variance = b[name][..., where].numpy()
        if len(known) == 2:  # one output, the difference of two
            mean, variance = np.diff(mean), variance.sum(-1, keepdims=True)
        np.testing.assert_allclose(mean, values[0], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(variance, values[1], rtol=1e-6)


def test_networks_without_outputs_for_new_classes():
    X, y = classes()
    model = BayesianMLPClassifier(**SMALL, posterior="full_rank").fit(X, y)
    with pytest.raises(IncompatibleComponentsError, match="cannot get more classes"):
        model.partial_fit(X, y, classes=[*CLASSES, "d"])


REFUSED = {
    "a checkpoint": ({"solver__checkpoint_path": "fit.npz"}, ValueError, "every batch"),
    "a mixture": ({"posterior": "ensemble"}, IncompatibleComponentsError, "normal"),
    "other sizes": (
        {"hidden_layer_sizes": (5,)},
        IncompatibleComponentsError,
        "other parameters|this model has",
    ),
    "other noise": (
        {"likelihood": "heteroscedastic"},
        IncompatibleComponentsError,
        "this model has",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_batch_that_is_refused_leaves_the_model_as_it_was(name):
    """Wrong variant: it is not fitted after that."""
    (X, y), (Z, z), _ = batches(*numbers())
    params, error, match = REFUSED[name]
    model = clone(MLP).fit(X, y)
    kept, before = model.get_params(), pickle.dumps(vars(model))
    with pytest.raises(error, match=match):
        model.set_params(**params).partial_fit(Z, z)
    model.set_params(**kept)
    assert pickle.dumps(vars(model)) == before


def test_bad_batches_leave_the_model_as_it_was():
    """Wrong variant: `n_features_in_` is that of the last batch."""
    (X, y), (Z, z), _ = batches(*numbers())
    model = clone(MLP).fit(X, y)
    before = model.predict(Z)
    bad = {
        "is expecting 2 features": (Z[:, :1], z),
        "NaN": (Z, z + np.nan),
        "y should be a 1d array": (Z, np.column_stack([z, z])),
    }
    for match, batch in bad.items():
        with pytest.raises(ValueError, match=match):
            model.partial_fit(*batch)
        np.testing.assert_array_equal(model.predict(Z), before)
    assert "_stream" not in vars(model)


def test_points_have_no_posterior():
    model = BayesianModuleRegressor(relu_network, deterministic="1.bias", max_iter=1)
    with pytest.raises(IncompatibleComponentsError, match=r"deterministic='1\.bias'"):
        model.partial_fit(*numbers())
    assert "_stream" not in vars(model)
    model.set_params(deterministic=()).partial_fit(*numbers()).partial_fit(*numbers())


@pytest.mark.parametrize(
    "params", [{"early_stopping": True}, {"validation_fraction": 0.2}]
)
def test_batches_are_learned_to_the_end(params):
    """Wrong variant: a batch whose posterior is not near its optimum is a prior."""
    model = clone(MLP).set_params(**params)
    with pytest.raises(ValueError, match=f"{next(iter(params))}=.* are for fits"):
        model.partial_fit(*numbers())
    assert not hasattr(model, "posterior_")


def test_ctrl_c_keeps_the_batches_before(monkeypatch):
    """In the first batch it stays unfitted. Wrong variant: a batch is taken in by half,
    and the model says nothing of it."""
    (X, y), (Z, z), _ = batches(*numbers())
    model = clone(MLP)
    interrupt(monkeypatch, AnalyticSteps, "differentiate", 20)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X, y)
    monkeypatch.undo()
    assert not hasattr(model, "posterior_")
    model.fit(X, y)
    before, expected = model.predict(Z), pickle.loads(pickle.dumps(model))
    interrupt(monkeypatch, AnalyticSteps, "differentiate", 20)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(Z, z)
    monkeypatch.undo()
    np.testing.assert_array_equal(model.predict(Z), before)
    np.testing.assert_array_equal(
        model.partial_fit(Z, z).predict(X), expected.partial_fit(Z, z).predict(X)
    )


def test_a_batch_without_signal_is_no_bad_fit():
    """Wrong variant: a batch is compared with a constant."""
    X, y = numbers()
    model = clone(MLP).set_params(max_iter=200).fit(X, y)
    place = np.full((200, 2), 0.3)
    noise = model.noise_scale_ * np.random.default_rng(1).normal(size=200)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SkviWarning)
        model.partial_fit(place, model.predict(place) + noise)
    assert model.converged_


def test_evidence_is_that_of_the_last_batch():
    """Given the ones before: of a single row, whose predictive density it is."""
    X, y = numbers()
    model = clone(MLP).set_params(max_iter=50, n_predict_draws=2000)
    density = model.fit(X[:-1], y[:-1]).predict_log_density(X[-1:], y[-1:])
    model.partial_fit(X[-1:], y[-1:])
    assert model.lower_bound_ <= density[0] + 0.02
    options = {"method": "importance", "n_draws": 128, "random_state": 0}
    bounds = model.evidence_bounds(X[-1:], y[-1:], **options)
    assert bounds.estimate == pytest.approx(density[0], abs=0.05)
    with pytest.raises(ValueError, match="1 rows of the fit"):
        model.evidence_bounds(X, y)
