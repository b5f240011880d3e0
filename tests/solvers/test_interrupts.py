"""Ctrl-C at any moment keeps the best place."""

import signal
from contextlib import suppress
from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn.base import clone

from skvi.objectives import ELBO
from skvi.objectives._analytic import AnalyticSteps
from skvi.solvers import (
    Stochastic,
    _moment_matching,
    _nodes,
)
from skvi.solvers._normal_noise import NormalNoise
from skvi.utils._interrupts import raising_interrupts
from tests.interrupts import (
    MODELS,
    PHASES,
    WARM,
    Logistic,
    Timer,
    check_process,
    classes,
    duration,
    elbo_of_start,
    interrupt,
    is_usable,
    moments,
    quick,
    stop,
    unix,
)


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
        ("noise and scale", NormalNoise, "at"),
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


def test_blocks_that_raise_what_was_swallowed():
    """Nested ones share their memory; other errors become the cause.

    Wrong variants: the outer block installs a second handler; the user's own handler
    is replaced; torch's gradient or inference mode stays as the exception left it.
    """
    for left_over in (torch.no_grad(), torch.inference_mode()):
        modes = []
        with pytest.raises(KeyboardInterrupt):
            swallow_in_two_blocks(left_over, modes)
        assert modes == [(True, False)]
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


def swallow_in_two_blocks(left_over, modes):
    with raising_interrupts():
        with suppress(KeyboardInterrupt), raising_interrupts():
            left_over.__enter__()
            swallow()
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))


def swallow_and_fail():
    with raising_interrupts():
        swallow()
        raise ValueError
