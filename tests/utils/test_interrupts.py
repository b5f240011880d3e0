"""Ctrl-C that Python swallows is raised all the same."""

import gc
import signal
import threading
from contextlib import suppress

import pytest
import torch

from skvi.solvers import _natural_gradient
from skvi.utils._interrupts import raising_interrupts
from tests.interrupts import Logistic, classes, is_usable


class Interrupting:
    """Where it is dropped, Ctrl-C comes, and Python swallows the exception."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_swallowed_signal_is_raised_at_the_end(monkeypatch):
    """Wrong variant: no memory of the signal; the handler stays after the fit."""
    original = _natural_gradient.Descent.advance

    def iterate(self, which):
        Interrupting()
        return original(self, which)

    monkeypatch.setattr(_natural_gradient.Descent, "advance", iterate)
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


def test_what_an_interrupt_left_open_is_not_closed_later():
    """Its traceback is destroyed at any time, here in the middle of other work.

    Wrong variant: contexts without their exit are destroyed with it.
    """
    caught = interrupted_in_a_context()
    with torch.inference_mode():
        del caught
        gc.collect()
        assert torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()


def interrupted_in_a_context():
    left_over = torch.inference_mode()
    try:
        with raising_interrupts():
            left_over.__enter__()
            signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
        return error


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


def test_other_threads_set_no_handler():
    """Python allows it in the main thread only."""
    model, found = Logistic(), []
    thread = threading.Thread(target=lambda: found.append(model.fit(*classes())))
    thread.start()
    thread.join()
    assert found[0].converged_
