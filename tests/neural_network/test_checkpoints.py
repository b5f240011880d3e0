"""A fit that was ended at any moment goes on, and comes to the same end bit for bit."""

import pickle
import re
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
import torch
from sklearn.base import clone

from skvi._estimator import _evidence
from skvi._estimator._side_by_side import can_pose
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.neural_network import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    BayesianModuleRegressor,
)
from skvi.objectives._analytic import AnalyticSteps
from skvi.posteriors import Ensemble
from skvi.priors import Normal
from skvi.solvers import SolverOptions, Stochastic
from skvi.solvers._checkpoint import CheckpointFile
from skvi.solvers._stochastic import _resumable
from skvi.solvers._stochastic._solver import solve_members
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
N = 120
SMALL = {"hidden_layer_sizes": (3,), "solver": Stochastic(n_draws=4), "random_state": 0}
MLP = BayesianMLPRegressor(batch_size=13, max_iter=15, **(ONE | SMALL))
#: Estimators, and checkpoints after which the fit is ended.
FITS = {
    "minibatches": (MLP, 1, 3, 5),
    "all rows": (
        BayesianMLPRegressor(batch_size=N, max_iter=15, **(ONE | SMALL)),
        2,
        8,
    ),
    "early stopping": (
        BayesianMLPRegressor(
            early_stopping=True,
            max_iter=60,
            **ONE | SMALL | {"solver": Stochastic(n_draws=4, n_iter_no_change=2)},
        ),
        9,
    ),
    "held-out rows": (
        BayesianMLPRegressor(
            validation_fraction=0.2, batch_size=13, max_iter=15, **(ONE | SMALL)
        ),
        3,
    ),
    "waiting for held-out rows": (
        BayesianMLPRegressor(
            validation_fraction=0.5,
            early_stopping=True,
            **ONE | SMALL | {"solver": Stochastic(n_draws=4, tol=1.0)},
        ),
        2,
    ),
    "ensemble": (
        BayesianMLPRegressor(posterior=Ensemble(n_members=2), max_iter=9, **SMALL),
        3,
    ),
    "low rank": (
        BayesianMLPRegressor(max_iter=15, **(ONE | SMALL | {"posterior": "low_rank"})),
        3,
    ),
    # A start that another objective finds, and then autograd.
    "two phases": (
        BayesianMLPRegressor(objective="iwelbo", max_iter=2, **(ONE | SMALL)),
        2,
        4,
    ),
    "classes": (
        BayesianMLPClassifier(
            skip_connection=False,
            divergence="kl",
            posterior="mean_field",
            prior="laplace",
            max_iter=9,
            **SMALL,
        ),
        3,
    ),
    "module": (
        BayesianModuleRegressor(
            relu_network, deterministic="1.bias", max_iter=2, random_state=0
        ),
        2,
    ),
}


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


def assert_same(model, other):
    """All that was fitted, bit by bit."""
    assert torch.equal(model.posterior_.params, other.posterior_.params)
    for name in ("_hyper", "_theta", "loss_curve_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(other, name))
    np.testing.assert_equal(model.validation_scores_, other.validation_scores_)
    for name in ("lower_bound_", "objective_value_", "objective_value_se_", "n_iter_"):
        assert getattr(model, name) == getattr(other, name)
    assert model.diagnostics_ == other.diagnostics_


@pytest.mark.parametrize("name", list(FITS))
def test_a_fit_that_was_ended_goes_on(name, tmp_path, monkeypatch):
    """Wrong variants: the seeds that new steps take come from the generator as it is
    (`_set_generator` in `go_on`); noise begins with a new block (`position`); the
    dealt rows, the moments of Adam or the sums for the average are left out."""
    model, *numbers = FITS[name]
    expected = fit(model)
    assert_same(fit(model, tmp_path / "whole.npz"), expected)
    for number in numbers:
        path = tmp_path / f"{number}.npz"
        fit_until(number, model, path, monkeypatch)
        assert_same(fit(model, path), expected)


def test_it_may_end_several_times(tmp_path, monkeypatch):
    """And no step is made twice but those after the last checkpoint."""
    expected, path, steps = fit(MLP), tmp_path / "fit.npz", []
    record = _resumable.Resumable.save
    for number in (3, 2, 1):
        fit_until(number, MLP, path, monkeypatch)

    def counted(self, made):
        steps.append(len(self.history))
        record(self, made)

    monkeypatch.setattr(_resumable.Resumable, "save", counted)
    assert_same(fit(MLP, path), expected)
    assert steps[0] > 5
    assert steps == sorted(set(steps))


def test_a_finished_fit_is_not_trained_again(tmp_path, monkeypatch):
    """Wrong variant: the last checkpoint is the one before the end (`is_done`)."""
    path = tmp_path / "fit.npz"
    first = fit(MLP, path, solver__checkpoint_interval=1e9)
    before = path.read_bytes()
    monkeypatch.setattr(_resumable.Resumable, "save", None)
    for name in ("lower_bound", "weight_diagnostics"):  # nor are its estimates
        monkeypatch.setattr(_evidence, name, None)
    assert_same(fit(MLP, path), first)
    assert path.read_bytes() == before


def test_other_fits_are_refused(tmp_path):
    """By name, before any training. Wrong variants: some rows of X are looked at; a
    component is described by its class."""
    path, model = tmp_path / "fit.npz", MLP
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


def test_other_functions_and_modules_are_refused(tmp_path):
    """Of the same name. Wrong variant: they are described by their names."""

    def parts(power):
        class Net(torch.nn.Module):
            def __init__(self, n_features, n_outputs):
                super().__init__()
                self.last = torch.nn.Linear(n_features, n_outputs)

            if power == 1:

                def forward(self, X):
                    return self.last(X)

            else:

                def forward(self, X):
                    return self.last(X**2)

        def loss(f, y):
            return (f - y).abs() ** power

        return Net, loss

    (net, loss), (other_net, other_loss), path = parts(1), parts(2), tmp_path / "a.npz"
    model = BayesianModuleRegressor(
        module=net,
        loss=loss,
        likelihood=GaussianLikelihood(1.0),
        max_iter=1,
        random_state=0,
    )
    expected = fit(model, path)
    assert_same(fit(model.set_params(module=parts(1)[0]), path), expected)
    with pytest.raises(ValueError, match="fit: module differs"):
        fit(model, path, module=other_net)
    with pytest.raises(ValueError, match="fit: loss differs"):
        fit(model, path, loss=other_loss)
    torch.manual_seed(0)
    made, path = net(2, 1), tmp_path / "b.npz"
    fit(model, path, module=made)
    with pytest.raises(ValueError, match="fit: module differs"):
        fit(model, path, module=net(2, 1))


def test_a_warm_start_is_another_fit(tmp_path):
    model = fit(MLP, tmp_path / "fit.npz", warm_start=True)
    with pytest.raises(ValueError, match="warm start was none, and is"):
        model.fit(*data(model))


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(0)])
def test_other_seeds_than_numbers_are_refused(random_state, tmp_path):
    with pytest.raises(ValueError, match="needs an int as random_state"):
        fit(MLP, tmp_path / "fit.npz", random_state=random_state)
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused(tmp_path):
    """And stay as they are: no text, no archive, and none that ends too early."""
    path = tmp_path / "fit.npz"
    fit(MLP, path)
    whole = path.read_bytes()
    for content in (b"", b"notes", whole[:-100], pickle.dumps([1])):
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"not a checkpoint of skvi. Remove the file"
        ):
            fit(MLP, path)
        assert path.read_bytes() == content
    np.savez(path, header=np.array('{"format": 0, "tree": {}}'))
    with pytest.raises(ValueError, match="another version"):
        fit(MLP, path)


def test_a_file_is_never_half_written(tmp_path, monkeypatch):
    """Wrong variant: it is written in place."""
    path = tmp_path / "fit.npz"
    fit_until(3, MLP, path, monkeypatch)
    before, sizes = path.read_bytes(), []

    def end(file, *arrays, **named):
        file.write(b"half")
        sizes.append(path.stat().st_size)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", end)
        with pytest.raises(Killed):
            fit(MLP, path)
    assert path.read_bytes() == before
    assert sizes == [len(before)]
    assert_same(fit(MLP, path), fit(MLP))


def test_a_file_holds_numbers_and_no_code(tmp_path):
    path = tmp_path / "fit.npz"
    fit(MLP, path)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            assert b"\x80\x04" not in archive.read(name)[:2]
    with np.load(path, allow_pickle=False) as arrays:
        assert all(arrays[name].dtype.kind in "fiubU" for name in arrays.files)


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


def test_iterations_are_counted_on(tmp_path, monkeypatch, capsys):
    """Wrong variants: the first line after a checkpoint is of iteration 1; none says
    that there is a checkpoint."""
    path = tmp_path / "fit.npz"
    fit_until(4, MLP, path, monkeypatch)
    fit(MLP, path, verbose=2)
    first, *lines = capsys.readouterr().out.splitlines()
    assert re.search(r"resumes after iteration \d+ of '.*fit\.npz'", first)
    assert "iteration 1/15" not in lines[0]
    assert "iteration 15/15" in lines[-2]
    assert "15 iterations" in lines[-1]


def test_a_stack_has_no_checkpoint():
    """And fits that want one are none of its members."""
    assert can_pose(MLP)
    assert not can_pose(clone(MLP).set_params(solver__checkpoint_path="fit.npz"))
    tasks = [(None, None, SolverOptions(checkpoint=1))] * 2
    with pytest.raises(ValueError, match="single member"):
        solve_members(tasks)


def test_linear_models_refuse_it():
    """Wrong variant: a file that is never written."""
    model = BayesianLogisticRegression(solver=Stochastic(checkpoint_path="fit.npz"))
    with pytest.raises(IncompatibleComponentsError, match="is for fits of networks"):
        model.fit([[0.0], [1.0]], [0, 1])


def test_ctrl_c_and_then_on(tmp_path, monkeypatch):
    """What Ctrl-C leaves is usable; the next fit goes on all the same."""
    path = tmp_path / "fit.npz"
    model = clone(MLP).set_params(
        solver__checkpoint_path=path, solver__checkpoint_interval=0
    )
    interrupt(monkeypatch, AnalyticSteps, "differentiate", 77)
    stop(model, *data(model))
    monkeypatch.undo()
    assert model.n_iter_ > 3
    assert_same(model.fit(*data(model)), fit(MLP))


# --- real ends of real processes ------------------------------------------------------

SCRIPT = """
import sys
from tests.neural_network.test_checkpoints import MLP, fit
sys.stdout.write("ready"); sys.stdout.flush()
while True:
    fit(MLP, sys.argv[1], max_iter=150)
    import os
    os.rename(sys.argv[1], sys.argv[1] + ".done")
"""


def kill_at(seconds, path):
    """Kill a process that fits, some time after it has begun to."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.read(5) == b"ready"
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def check_killed(n_times, tmp_path, seed):
    expected, path = fit(MLP, max_iter=150), tmp_path / "fit.npz"
    rng = np.random.default_rng(seed)
    for _ in range(n_times):
        kill_at(rng.uniform(0, 0.2), path)
    assert_same(fit(MLP, path, max_iter=150), expected)


unix = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")


@unix
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_processes_that_are_killed_again_and_again(seed, tmp_path):
    """Wrong variants: those above."""
    check_killed(2, tmp_path, seed)
