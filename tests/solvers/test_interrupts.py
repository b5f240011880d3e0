"""Ctrl-C raises, and leaves an estimator that is fitted or is not, in every phase.

What a usable estimator owes is in `check`: predictions, and a `lower_bound_` that is
the ELBO of the posterior that was kept, which no fit of the table below may have left
worse than its start.
"""

import math
import pickle
import signal
import threading
import time
from contextlib import suppress
from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

from skvi import _regressors, _variational
from skvi._progress import FitProgress
from skvi.evidence import _bounds as evidence_module
from skvi.evidence import lower_bound
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
    _regression_evidence,
)
from skvi.model_selection import EvidenceSearch
from skvi.model_selection import _search as search_module
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.objectives import ELBO
from skvi.priors import Normal
from skvi.sampling import HamiltonianChains
from skvi.solvers import (
    _alternating,
    _moment_matching,
    _natural_gradient,
    _quasi_newton_solver,
    _stochastic,
    _tilted,
)
from skvi.solvers._conjugate import Conjugate
from skvi.targets import SupervisedTarget
from skvi.utils._interrupts import raising_interrupts
from skvi.utils._random import make_generator

quick = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
unix = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="needs a timer that sends signals"
)
Logistic, Linear = BayesianLogisticRegression, BayesianLinearRegression
SMALL = {"hidden_layer_sizes": (3,), "n_draws": 2, "random_state": 0}
FEW = {"max_iter": 1, "random_state": 0}


def classes():
    X, y = load_iris(return_X_y=True)
    return scale(X[50:]), y[50:]


def numbers():
    X, y = load_diabetes(return_X_y=True)
    return scale(X[:100, :4]), y[:100]


def columns():
    X, y = numbers()
    return X, np.column_stack([y, X[:, 0] + 1e-2 * y, y**2])


def counts():
    X, y = numbers()
    return X, np.floor(y / 20)


# Every solver, and every phase before one.
MODELS = {
    "natural gradient": (Logistic(), classes),
    "natural gradient of counts": (BayesianPoissonRegressor(), counts),
    "quasi-Newton": (Logistic(posterior="low_rank"), classes),
    "coordinate ascent": (Linear(), numbers),
    "coordinate ascent, ARD": (Linear(prior="ard"), numbers),
    "empirical Bayes": (Logistic(prior=Normal("learn")), classes),
    "alternating": (Linear(loss="beta"), numbers),
    "alternating, learnt noise": (Linear(loss="beta", noise_scale="learn"), numbers),
    "robust start": (Linear(loss="beta", noise_scale=20.0, prior="normal"), numbers),
    "moment matching": (Logistic(objective="eubo", random_state=0), classes),
    "tilted moments": (Logistic(objective="renyi", random_state=0), classes),
    "tilted moments, mean field": (
        Logistic(objective="renyi", posterior="mean_field", random_state=0),
        classes,
    ),
    "stochastic": (Logistic(solver="stochastic", **FEW), classes),
    "minibatches": (Logistic(batch_size=30, **FEW), classes),
    "weighted": (Logistic(objective="iwelbo", **FEW), classes),
    "weighted regression": (Linear(objective="iwelbo", **FEW), numbers),
    "network": (BayesianMLPClassifier(max_iter=10, **SMALL), classes),
    "weighted network": (
        BayesianMLPRegressor(objective="eubo", max_iter=3, **SMALL),
        numbers,
    ),
    "columns": (Linear(), columns),
}
WARM = ("natural gradient", "coordinate ascent", "alternating", "tilted moments")


# --- what is left ---------------------------------------------------------------------


def target_of(model, X, y):
    """The target of a fitted model, at its learnt scales."""
    codes = model._encode(y, reset=False)
    target = model._build_target(X, codes, None, model._fitted_predictor)
    target.hyper = torch.from_numpy(model._hyper.copy())
    return target.frozen()


def elbo(target, posterior):
    return lower_bound(target, posterior, torch.Generator().manual_seed(1))


def elbo_of_start(model, X, y):
    """ELBO of the posterior that a fit starts with, at the scales that it found."""
    target, generator = target_of(model, X, y), make_generator(model.random_state)
    posterior = model.posterior_family_.build(target.layout, generator)
    if hasattr(target.predictor, "initial_normal"):
        posterior.set_normal(target.predictor.initial_normal(generator))
    return elbo(target, posterior)[0]


def is_usable(model, X, y):
    """Whether the model is fitted; it must be one or the other, through and through."""
    assert "_problem" not in vars(model)
    if not hasattr(model, "posterior_"):
        with pytest.raises(NotFittedError):
            model.predict(X)
        return False
    assert np.isfinite(model.predict(X)).all()
    if "outputs_" in vars(model):
        pairs = zip(model.outputs_, y.T, strict=True)
        assert all(is_usable(output, X, column) for output, column in pairs)
        bounds = [output.lower_bound_ for output in model.outputs_]
        assert model.lower_bound_ == pytest.approx(sum(bounds))
        return True
    assert not model.posterior_.params.requires_grad
    assert math.isfinite(model.objective_value_)
    assert len(model.loss_curve_) >= model.n_iter_
    value, error = elbo(target_of(model, X, y), model.posterior_)
    noise = 6 * math.hypot(error, model.lower_bound_se_)
    assert model.lower_bound_ == pytest.approx(value, abs=noise + 1e-3)
    assert model.lower_bound_ > elbo_of_start(model, X, y) - noise - 1e-6
    return True


def interrupt(monkeypatch, owner, name, number=1):
    """Make one call of a function raise KeyboardInterrupt, as Ctrl-C would."""
    calls, original = [], getattr(owner, name)

    def counted(*args, **kwargs):
        calls.append(None)
        if len(calls) == number:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return calls


# --- at a chosen call -----------------------------------------------------------------


def test_a_grid_search_stops(monkeypatch):
    """Wrong variant: the fit returns as if nothing had been (`raise` in `_solve`)."""
    calls = interrupt(monkeypatch, _natural_gradient._Iteration, "_iterate", 2)
    search = GridSearchCV(Logistic(), {"prior": ["normal", "laplace"]})
    with pytest.raises(KeyboardInterrupt):
        search.fit(*classes())
    assert len(calls) == 2


PLACES = {
    # Before there is anything to keep.
    "mode": ("natural gradient", _natural_gradient, "find_mode", 1, False),
    "first mode": ("alternating", _natural_gradient, "find_mode", 1, False),
    "first state": ("coordinate ascent", Conjugate, "evaluate", 1, False),
    # In the middle of a step, which is then undone.
    "natural step": ("natural gradient", SupervisedTarget, "expected_loss_terms", 4, 1),
    "update": ("coordinate ascent", Conjugate, "evaluate", 4, True),
    "whitening": ("quasi-Newton", _quasi_newton_solver, "LBFGS", 2, True),
    "search": ("quasi-Newton", SupervisedTarget, "expected_loss_at", 25, True),
    "first scales": ("empirical Bayes", _natural_gradient, "point_at", 3, True),
    "shifted scales": ("empirical Bayes", SupervisedTarget, "frozen", 3, True),
    "trial scales": ("empirical Bayes", SupervisedTarget, "frozen", 4, True),
    "half-step": ("alternating", _alternating.GammaSteps, "step", 2, True),
    "other half-step": ("alternating", _natural_gradient, "point_at", 6, True),
    "learnt noise": ("alternating, learnt noise", _alternating, "minimize", 1, True),
    "first noise": ("robust start", SupervisedTarget, "expected_loss_terms", 3, True),
    "draws": ("moment matching", _moment_matching, "draw_weighted", 1, True),
    "tilt": ("tilted moments", _tilted._Sample, "moments", 5, True),
    "gradient": ("stochastic", ELBO, "surrogate", 90, True),
    "first gradients": ("network", ELBO, "surrogate", 30, True),
    # In a start that is not yet better than that of the family.
    "start": ("weighted regression", SupervisedTarget, "expected_loss_terms", 4, True),
    # While the result is judged.
    "quadrature": ("natural gradient", _natural_gradient, "refined_value", 1, True),
    "verdict": ("quasi-Newton", _quasi_newton_solver, "judge_quadrature", 1, True),
    "message": ("coordinate ascent", Conjugate, "is_at_limit", 1, False),
    "gain": ("stochastic", ELBO, "remaining_gain", 1, True),
    "weights": ("natural gradient", _variational, "weight_diagnostics", 1, True),
    "bound": ("weighted", _variational, "lower_bound", 1, True),
    "existence": ("network", _variational, "judge_existence", 1, True),
}


@quick
@pytest.mark.parametrize("place", list(PLACES))
def test_an_interrupted_call(place, monkeypatch):
    """Wrong variants: none but the last statement of `_solve`; `lbfgs` apart from its
    coordinates; learnt scales without the posterior at them; the attributes one by
    one; no `except` around what comes after the last iteration."""
    name, owner, method, number, usable = PLACES[place]
    model, data = MODELS[name]
    model, (X, y) = clone(model), data()
    interrupt(monkeypatch, owner, method, number)
    stop(model, X, y)
    monkeypatch.undo()
    assert is_usable(model, X, y) == usable


def stop(model, X, y):
    """Fit, and expect Ctrl-C."""
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    if hasattr(model, "posterior_") and "outputs_" not in vars(model):
        assert not model.converged_
        assert model.diagnostics_["ending"] == "interrupted"
        assert "interrupted" in model.diagnostics_["message"]


@quick
@pytest.mark.parametrize(
    ("name", "owner", "method", "number"),
    [
        ("weighted", SupervisedTarget, "expected_loss_terms", 3),
        ("weighted network", _stochastic._Training, "_gradient", 30),
        ("weighted regression", SupervisedTarget, "expected_loss_terms", 15),
        ("alternating", SupervisedTarget, "expected_loss_terms", 15),
        ("robust start", SupervisedTarget, "expected_loss_terms", 3),
    ],
)
def test_the_phase_before_the_first(name, owner, method, number, monkeypatch):
    """A start near another problem's solution: what it found is kept, and that is all.

    Wrong variants: the interruption of the nested solve is ignored
    (`raise_interrupt` in `_initialize`, `approach` and `_solve_near`); the start is
    not taken over.
    """
    model, data = MODELS[name]
    model, (X, y) = clone(model), data()
    interrupt(monkeypatch, owner, method, number)
    solves = interrupt(monkeypatch, FitProgress, "__call__", math.inf)
    stop(model, X, y)
    monkeypatch.undo()
    assert not solves
    assert is_usable(model, X, y)
    assert model.n_iter_ == len(model.loss_curve_) == 0
    start = elbo_of_start(model, X, y)
    end = clone(model).set_params(objective="elbo").fit(X, y).lower_bound_
    assert model.lower_bound_ > 0.5 * (start + end)


def test_the_first_stretch_of_gradients(monkeypatch):
    """Of 100 steps the last is not made: no average yet, but 99 good steps.

    Wrong variant: the start is kept, with the words "the best posterior so far"
    (`state = self.kept` before the first stretch is over).
    """
    X, y = load_breast_cancer(return_X_y=True)
    X, model = scale(X), Logistic(solver="stochastic", random_state=0)
    interrupt(monkeypatch, ELBO, "surrogate", 100)
    stop(model, X, y)
    monkeypatch.undo()
    assert is_usable(model, X, y)
    assert elbo_of_start(model, X, y) < -400
    assert model.lower_bound_ > -80  # the optimum is -55.5


def test_a_worse_state_is_not_kept(monkeypatch):
    """Steps far too long lead away from the start.

    Wrong variant: the state is kept without a comparison.
    """
    X, y = classes()
    model = Logistic(solver="stochastic", learning_rate=50.0, random_state=0)
    interrupt(monkeypatch, ELBO, "surrogate", 10)
    stop(model, X, y)
    monkeypatch.undo()
    start = elbo_of_start(model, X, y)
    assert model.lower_bound_ == pytest.approx(start, abs=1e-9)
    assert is_usable(model.set_params(warm_start=True), X, y)


@quick
@pytest.mark.parametrize(
    ("name", "owner", "method"),
    [
        ("natural gradient", _natural_gradient, "point_of"),
        ("coordinate ascent", Conjugate, "evaluate"),
        ("alternating", _natural_gradient, "point_of"),
        ("tilted moments", _natural_gradient, "find_mode"),
        ("moment matching", _moment_matching, "adapt_proposal"),
        ("network", ELBO, "surrogate"),
    ],
)
def test_a_warm_start_is_not_lost(name, owner, method, monkeypatch):
    """Ctrl-C before the first step: the posterior of the last fit is still the best.

    Wrong variants: `start` is None in `_run`; the ELBO's solution in the place of
    the last fit's (`kept` in `MomentMatching`).
    """
    model, data = MODELS[name]
    model, (X, y) = clone(model).set_params(warm_start=True), data()
    params = model.fit(X, y).posterior_.params
    interrupt(monkeypatch, owner, method)
    stop(model, X, y)
    monkeypatch.undo()
    assert is_usable(model, X, y)
    np.testing.assert_allclose(model.posterior_.params, params, rtol=1e-9)
    assert model.fit(X, y).diagnostics_["ending"] != "interrupted"


@pytest.mark.parametrize("usable", [False, True])
def test_several_targets(usable, monkeypatch):
    """Usable where every target has a posterior: Ctrl-C in the last one.

    Wrong variants: the targets so far are gathered; nothing is.
    """
    model, (X, y) = Linear(), columns()
    fits = interrupt(monkeypatch, Conjugate, "evaluate", math.inf)
    model.fit(X, y)
    monkeypatch.undo()
    number = len(fits) if usable else len(fits) // 2
    interrupt(monkeypatch, Conjugate, "evaluate", number)
    stop(model, X, y)
    monkeypatch.undo()
    assert is_usable(model, X, y) == usable
    assert is_usable(model.fit(X, y[:, 0]), X, y[:, 0])


# --- evidence and search --------------------------------------------------------------


def state_of(model):
    return pickle.dumps({k: v for k, v in vars(model).items() if k != "_record"})


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (_regressors, "_mean_units"),
        (_regression_evidence, "bound_evidence"),
        (HamiltonianChains, "run"),
    ],
)
def test_interrupted_evidence_bounds(owner, method, monkeypatch):
    """Nothing is returned, and the estimator is as before.

    Wrong variant: units that are set to 0 and 1 before they are found.
    """
    X, y = numbers()
    model = Linear(prior="laplace", noise_scale=50.0).fit(X, y)
    before, predictions = state_of(model), model.predict(X)
    interrupt(monkeypatch, owner, method)
    with pytest.raises(KeyboardInterrupt):
        model.evidence_bounds(X, y, n_draws=64)
    monkeypatch.undo()
    np.testing.assert_array_equal(model.predict(X), predictions)
    assert state_of(model) == before


def make_search():
    model = Logistic()
    return EvidenceSearch(model, {"fit_intercept": [True, False]}, random_state=0)


def is_fitted_search(search, X):
    if hasattr(search, "results_"):
        assert search.predict(X).shape == (len(X),)
        assert search.best_index_ in (0, 1)
        return True
    assert not [name for name in vars(search) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        search.predict(X)
    return False


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (_natural_gradient._Iteration, "_iterate"),
        (evidence_module, "importance_sides"),
        (search_module, "describe"),
    ],
)
def test_an_interrupted_search(owner, method, monkeypatch):
    """Unfitted, whatever it was before.

    Wrong variants: attributes are set one by one; those of the last fit stay.
    """
    X, y = classes()
    search = make_search().fit(X, y)
    assert is_fitted_search(search, X)
    interrupt(monkeypatch, owner, method)
    with pytest.raises(KeyboardInterrupt):
        search.fit(X, y)
    monkeypatch.undo()
    assert not is_fitted_search(search, X)


# --- what Python swallows -------------------------------------------------------------


class Interrupting:
    """Where it is dropped, Ctrl-C comes, and Python swallows the exception."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_swallowed_signal_is_raised_at_the_end(monkeypatch):
    """Wrong variant: no memory of the signal; the handler stays after the fit."""
    original = _natural_gradient._Iteration._iterate

    def iterate(self):
        Interrupting()
        return original(self)

    monkeypatch.setattr(_natural_gradient._Iteration, "_iterate", iterate)
    model, (X, y) = Logistic(), classes()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert is_usable(model, X, y)
    assert model.converged_
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    assert model.fit(X, y).converged_


def test_blocks_that_raise_what_was_swallowed():
    """Nested ones share their memory; other errors become the cause.

    Wrong variants: the outer block installs a second handler; the user's own handler
    is replaced; torch's gradient mode stays as the exception left it.
    """
    with pytest.raises(KeyboardInterrupt):
        swallow_in_two_blocks()
    with pytest.raises(KeyboardInterrupt) as caught:
        swallow_and_fail()
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ValueError, match="mine"), raising_interrupts():
        raise ValueError("mine")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with raising_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def swallow():
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def swallow_in_two_blocks():
    with raising_interrupts():
        with suppress(KeyboardInterrupt), raising_interrupts():
            torch._C._set_grad_enabled(False)
            swallow()
        assert torch.is_grad_enabled()


def swallow_and_fail():
    with raising_interrupts():
        swallow()
        raise ValueError


def test_other_threads_set_no_handler():
    """Python allows it in the main thread only."""
    model, found = Logistic(), []
    thread = threading.Thread(target=lambda: found.append(model.fit(*classes())))
    thread.start()
    thread.join()
    assert found[0].converged_


# --- at random moments ----------------------------------------------------------------


class Timer:
    """Sends SIGINT after so many seconds of processor time, and counts what came."""

    def __enter__(self):
        self.before, self.fired = signal.signal(signal.SIGPROF, self.fire), False
        return self

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self.before)

    def fire(self, *_):
        self.fired = True
        signal.raise_signal(signal.SIGINT)

    def interrupts(self, work, moment):
        """Whether the work was interrupted; it must be where the signal came."""
        self.fired = False
        try:
            try:
                signal.setitimer(signal.ITIMER_PROF, max(moment, 1e-6))
                work()
                came = self.fired
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        except KeyboardInterrupt:
            return True
        assert not came
        return False


def duration(work):
    work()
    start = time.process_time()
    work()
    return time.process_time() - start


def moments(seconds, n):
    return np.random.default_rng(0).uniform(0, seconds, n)


def check_process():
    assert torch.is_grad_enabled()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def strike(make, X, y, n):
    """Interrupt fits at n moments; each leaves a usable estimator, or none."""
    seconds, threads = duration(lambda: make().fit(X, y)), torch.get_num_threads()
    with Timer() as timer:
        for moment in moments(seconds, n):
            model = make()
            came = timer.interrupts(lambda m=model: m.fit(X, y), moment)
            usable = is_usable(model, X, y)
            assert usable or came
            check_process()
    assert torch.get_num_threads() == threads


@quick
@unix
@pytest.mark.parametrize("name", list(MODELS))
def test_fits_at_random_moments(name):
    """Wrong variants: those of the tests above."""
    model, data = MODELS[name]
    strike(lambda: clone(model), *data(), 10)


@quick
@unix
@pytest.mark.parametrize("name", WARM)
def test_warm_fits_at_random_moments(name):
    """Wrong variants: those of the tests above."""
    model, data = MODELS[name]
    X, y = data()
    model = clone(model).set_params(warm_start=True).fit(X, y)
    strike(lambda: deepcopy(model), X, y, 10)


@unix
@pytest.mark.parametrize("method", ["importance", "annealing"])
def test_evidence_bounds_at_random_moments(method):
    """Nothing of the estimator changes. Wrong variants: those of the tests above."""
    X, y = numbers()
    model = Linear(prior="laplace", noise_scale=50.0).fit(X, y)
    before = state_of(model)

    def work():
        return model.evidence_bounds(X, y, method=method, n_draws=64, random_state=0)

    with Timer() as timer:
        for moment in moments(duration(work), 10):
            timer.interrupts(work, moment)
            assert state_of(model) == before
            check_process()


@unix
def test_searches_at_random_moments():
    """Wrong variants: those of the tests above."""
    X, y = classes()
    search = make_search()
    with Timer() as timer:
        for moment in moments(duration(lambda: search.fit(X, y)), 10):
            came = timer.interrupts(lambda: search.fit(X, y), moment)
            assert is_fitted_search(search, X) or came
            check_process()


@quick
@unix
@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_fits_at_many_moments(name):
    """Wrong variants: those of the tests above."""
    model, data = MODELS[name]
    strike(lambda: clone(model), *data(), 60)
