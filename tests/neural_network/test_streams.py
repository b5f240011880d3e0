"""Networks that learn on, and fits that were ended."""

import pickle
import re
import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from sklearn.base import clone

from skvi.exceptions import IncompatibleComponentsError
from skvi.neural_network import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    BayesianModuleRegressor,
)
from skvi.priors import Normal
from skvi.solvers import Stochastic
from skvi.solvers._checkpoint import CheckpointFile
from tests.interrupts import quick
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


@pytest.mark.parametrize("data", [numbers, classes])
def test_zeros_and_units_of_columns_do_not_matter(data):
    """Nor in later batches, where a column may vary for the first time.

    Wrong variants: features as they are given; no unit for what was constant; units of
    rows without a weight.
    """
    X, y = data()
    X, zero, unit = (
        np.c_[X, X[:, :1] > 0],
        np.array([1e7, -20.0, 3.0]),
        [1e6, 1e-4, 7.0],
    )
    X[:30, 2] = 0.0
    weight = np.r_[0.0, np.ones(29)]
    kind = BayesianMLPRegressor if data is numbers else BayesianMLPClassifier
    models = [kind(**(SMALL | {"divergence": "kl"})) for _ in range(2)]
    found = []
    for model, own in zip(models, (X, X * unit + zero), strict=True):
        own[0] *= 1e3
        known = {} if data is numbers else {"classes": CLASSES}
        model.partial_fit(own[:30], y[:30], sample_weight=weight, **known)
        model.partial_fit(own[30:], y[30:])
        predict = model.predict if data is numbers else model.predict_proba
        found.append(predict(own[1:]))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_units_and_noise_stay_those_of_the_first_batch():
    """Wrong variants: noise is learned from every batch; the noise of the first in the
    units of the fit; features in the units of every batch."""
    X, y = numbers()
    y = np.column_stack([y, y**2])
    model, (first, *rest) = clone(MLP), list(batches(X, y))
    units = model.partial_fit(*first)._model.units
    noise = model.noise_scale_.copy()
    for batch in rest:
        model.partial_fit(batch[0], 10 + 3 * batch[1])
        np.testing.assert_allclose(model.noise_scale_, noise, rtol=1e-12)
        np.testing.assert_array_equal(model._model.units.y_mean, units.y_mean)
        np.testing.assert_array_equal(model._model.units.x_mean, units.x_mean)
        np.testing.assert_array_equal(model._model.units.y_scale, units.y_scale)
        learned = model._model.likelihood.learned
        assert not learned
    _, std = model.predict(X, return_std=True)
    assert (std > noise).all()


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


def test_points_have_no_posterior():
    model = BayesianModuleRegressor(relu_network, deterministic="1.bias", max_iter=1)
    with pytest.raises(IncompatibleComponentsError, match=r"deterministic='1\.bias'"):
        model.partial_fit(*numbers())
    assert "_stream" not in vars(model)
    model.set_params(deterministic=()).partial_fit(*numbers()).partial_fit(*numbers())


@pytest.mark.slow
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


N = 120
STORED_SMALL = {
    "hidden_layer_sizes": (3,),
    "solver": Stochastic(n_draws=4),
    "random_state": 0,
}
STORED_MLP = BayesianMLPRegressor(batch_size=13, max_iter=15, **(ONE | STORED_SMALL))


class Killed(BaseException):
    """The end of a process."""


def data(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=N)
    return X, y > 0 if isinstance(model, BayesianMLPClassifier) else y


def fit(model, path=None, **params):
    """A fit that writes a checkpoint after every few steps."""
    model = clone(model)
    if path is not None:
        model.set_params(solver__checkpoint_path=path, solver__checkpoint_interval=0)
    return model.set_params(**params).fit(*data(model))


def fit_until(number, model, path, monkeypatch, **params):
    """End a fit right after some number of checkpoints."""
    save, count = CheckpointFile.write, []

    def counted(self, phase, state):
        save(self, phase, state)
        count.append(phase)
        if len(count) == number:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFile, "write", counted)
        with pytest.raises(Killed):
            fit(model, path, **params)


def test_other_fits_are_refused(tmp_path):
    """By name, before any training. Wrong variants: some rows of X are looked at; a
    component is described by its class."""
    path, model = tmp_path / "fit.npz", STORED_MLP
    model = fit(model, path)
    X, y = data(model)

    def refused(match, X=X, y=y, weight=None, **params):
        with pytest.raises(ValueError, match=match):
            clone(model).set_params(**params).fit(X, y, weight)

    refused(r"max_iter was 15, and is 16\. Use .*remove the file", max_iter=16)
    refused("prior was 'auto', and is .*Normal.*scale=2.0", prior=Normal(2.0))
    refused("batch_size was 13, and is 7; solver", solver__tol=0.01, batch_size=7)
    refused("random_state was 0, and is 1", random_state=1)
    for row in (7, N - 1):
        other = X.copy()
        other[row, 1] += 1e-12
        refused("X was .* and is ", X=other)
    refused("y was", y=np.append(y[:-1], 0.0))
    refused("weights was none, and is", weight=np.full(N, 2.0))
    for params in ({"verbose": False}, {"solver__checkpoint_interval": 5.0}):
        model.set_params(**params).fit(X, y)


def test_a_warm_start_is_another_fit(tmp_path):
    model = fit(STORED_MLP, tmp_path / "fit.npz", warm_start=True)
    with pytest.raises(ValueError, match="warm start was none, and is"):
        model.fit(*data(model))


def test_the_interval_is_that_between_writes(tmp_path, monkeypatch):
    """Wrong variants: it is counted in steps; from the start of the fit."""
    now, writes = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    file = CheckpointFile(tmp_path / "fit.npz", 10.0, {})
    for moment in range(0, 40, 3):
        now[0] = float(moment)
        if file.at("main").is_due:
            writes.append(moment)
            file.at("main").save({"moment": moment})
    assert writes == [12, 24, 36]
    assert CheckpointFile(tmp_path / "fit.npz", 10.0, {}).phases == {
        "main": {"moment": 36}
    }


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_first_of_processes_that_share_a_fit_writes(
    is_shared, tmp_path, monkeypatch, capsys
):
    """Wrong variant: no other process writes, whoever made the process group."""
    for name, value in (("is_initialized", True), ("get_rank", 1)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    place = "skvi.solvers._stochastic._solver.sharing"
    monkeypatch.setattr(place, lambda *_: nullcontext())  # one process in all
    path = tmp_path / "fit.npz"
    solver = Stochastic(
        checkpoint_path=path, checkpoint_interval=0, distributed=is_shared
    )
    clone(MLP).set_params(solver=solver, verbose=1).fit(*numbers())
    assert path.exists() == bool(capsys.readouterr().out) == (not is_shared)


def test_iterations_are_counted_on(tmp_path, monkeypatch, capsys):
    """Wrong variants: the first line after a checkpoint is of iteration 1; none says
    that there is a checkpoint."""
    path = tmp_path / "fit.npz"
    fit_until(4, STORED_MLP, path, monkeypatch)
    fit(STORED_MLP, path, verbose=2)
    first, *lines = capsys.readouterr().out.splitlines()
    assert re.search(r"resumes after iteration \d+ of '.*fit\.npz'", first)
    assert "iteration 1/15" not in lines[0]
    assert "iteration 15/15" in lines[-2]
    assert "15 iterations" in lines[-1]
