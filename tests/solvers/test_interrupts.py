"""Ctrl-C raises, and leaves an estimator that is fitted or is not, in every phase.

What a usable estimator must have is in `is_usable`: predictions, and a `lower_bound_`
that is the ELBO of the posterior that was kept, and not below that of the start.
"""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

from skvi._estimator import _evidence
from skvi._estimator._progress import FitProgress
from skvi.objectives import ELBO
from skvi.objectives._analytic import AnalyticSteps
from skvi.solvers import (
    Stochastic,
    _moment_matching,
    _node_run,
    _nodes,
)
from skvi.solvers._newton import Descent
from skvi.targets import SupervisedTarget
from tests.interrupts import (
    MODELS,
    PHASES,
    WARM,
    Linear,
    Logistic,
    Timer,
    check_process,
    classes,
    columns,
    duration,
    elbo_of_start,
    interrupt,
    is_usable,
    moments,
    quick,
    stop,
    unix,
)


def test_a_grid_search_stops(monkeypatch):
    """Wrong variant: the fit returns as if nothing had been (`raise` in `_solve`)."""
    calls = interrupt(monkeypatch, Descent, "step", 2)
    search = GridSearchCV(Logistic(), {"prior": ["normal", "laplace"]})
    with pytest.raises(KeyboardInterrupt):
        search.fit(*classes())
    assert len(calls) == 2


PLACES = {
    # Before there is anything to keep.
    "mode": ("natural gradient", _nodes, "find_mode", 1, False),
    # In the middle of a step, which is then undone.
    "natural step": ("natural gradient", _nodes.Nodes, "_lay", 1, 1),
    "first scales": ("empirical Bayes", Descent, "advance", 3, True),
    "shifted scales": ("empirical Bayes", SupervisedTarget, "frozen", 3, True),
    "trial scales": ("empirical Bayes", SupervisedTarget, "frozen", 4, True),
    "first noise": ("robust start", SupervisedTarget, "expected_loss_terms", 3, True),
    "draws": ("moment matching", _moment_matching, "draw_weighted", 1, True),
    "tilt": ("tilted moments", _moment_matching._Sample, "__init__", 5, True),
    "gradient": ("stochastic", ELBO, "surrogate", 90, True),
    "first gradients": ("network", AnalyticSteps, "differentiate", 30, True),
    # In a start that is not yet better than that of the family.
    "start": ("weighted regression", SupervisedTarget, "expected_loss_terms", 4, True),
    # While the result is judged.
    "scales": ("natural gradient", _nodes.Nodes, "_extend", 2, True),
    "quadrature": ("natural gradient", _nodes.Nodes, "_error", 1, True),
    "verdict": ("natural gradient", _node_run, "judge_quadrature", 1, True),
    "gain": ("stochastic", ELBO, "remaining_gain", 1, True),
    "weights": ("natural gradient", _evidence, "weight_diagnostics", 1, True),
    "bound": ("weighted", _evidence, "lower_bound", 1, True),
    "existence": ("network", _evidence, "judge_existence", 1, True),
}


@quick
@pytest.mark.parametrize("place", list(PLACES))
def test_an_interrupted_call(place, monkeypatch):
    """Wrong variants: none but the last statement of `_solve`; learned scales without
    the posterior at them; the attributes one by one; no `except` around what
    comes after the last iteration."""
    name, owner, method, number, usable = PLACES[place]
    model, data = MODELS[name]
    model, (X, y) = clone(model), data()
    interrupt(monkeypatch, owner, method, number)
    stop(model, X, y)
    monkeypatch.undo()
    assert is_usable(model, X, y) == usable


@quick
@pytest.mark.parametrize(
    ("name", "owner", "method", "number"),
    [
        ("weighted", SupervisedTarget, "expected_loss_terms", 3),
        ("weighted network", AnalyticSteps, "differentiate", 30),
        ("weighted regression", Descent, "advance", 3),
        ("robust start", SupervisedTarget, "expected_loss_terms", 3),
    ],
)
def test_the_phase_before_the_first(name, owner, method, number, monkeypatch):
    """A start near another problem's solution: what it found is kept, and that is all.

    Wrong variants: the interruption of the nested solve is ignored
    (`raise_interrupt` in `_initialize`, `approach`); the start is
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
    model = Logistic(solver=Stochastic(learning_rate=50.0), random_state=0)
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
        ("natural gradient", _nodes.Nodes, "_climb"),
        ("natural gradient", _nodes.Nodes, "_extend"),
        ("noise and scale", Descent, "advance"),
        ("tilted moments", _nodes, "find_mode"),
        ("moment matching", _moment_matching, "adapt_proposal"),
        ("network", AnalyticSteps, "differentiate"),
    ],
)
def test_a_warm_start_is_not_lost(name, owner, method, monkeypatch):
    """Ctrl-C before the first step: the posterior of the last fit is still the best.

    Wrong variants: `start` is None in `_run`; the ELBO's solution in the place of
    the last fit's (`kept` in `MomentMatching`); of several scales the likeliest alone
    (`continued_state`), or the first fit of the next mixture (`Nodes.run`).
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
    model, (X, y) = Linear(posterior="full_rank"), columns()
    fits = interrupt(monkeypatch, Descent, "advance", math.inf)
    model.fit(X, y)
    monkeypatch.undo()
    number = len(fits) if usable else len(fits) // 2
    interrupt(monkeypatch, Descent, "advance", number)
    stop(model, X, y)
    monkeypatch.undo()
    assert is_usable(model, X, y) == usable
    assert is_usable(model.fit(X, y[:, 0]), X, y[:, 0])


# --- at random moments ----------------------------------------------------------------


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
@pytest.mark.parametrize("name", PHASES)
def test_fits_at_random_moments(name):
    """Wrong variants: those of the tests above."""
    model, data = MODELS[name]
    strike(lambda: clone(model), *data(), 3)


@quick
@unix
@pytest.mark.parametrize("name", WARM)
def test_warm_fits_at_random_moments(name):
    """Wrong variants: those of the tests above."""
    model, data = MODELS[name]
    X, y = data()
    model = clone(model).set_params(warm_start=True).fit(X, y)
    strike(lambda: deepcopy(model), X, y, 3)


@quick
@unix
@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_fits_at_many_moments(name):
    """Wrong variants: those of the tests above."""
    model, data = MODELS[name]
    strike(lambda: clone(model), *data(), 12)
