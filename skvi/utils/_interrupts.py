"""Ctrl-C that is never lost, and that leaves the process as it was."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

__all__ = ["raising_interrupts"]


class _Memory:
    """Signal handler: as Python's own, but it remembers that it was called."""

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of a block in which Ctrl-C got lost.

    Python prints and drops what a signal handler raises inside a ``__del__``, a
    callback of a weak reference, or a callback from C. In the main thread, and
    unless the user has another handler, the signal is remembered beside it. The
    gradient mode of torch is restored, which an exception inside its context
    managers can leave changed.

    Yields
    ------
    None

    Raises
    ------
    KeyboardInterrupt
        The signal came and what the block raised is no KeyboardInterrupt.

    Examples
    --------
    >>> import signal
    >>> from skvi.utils._interrupts import raising_interrupts
    >>> try:
    ...     with raising_interrupts():
    ...         try:
    ...             signal.raise_signal(signal.SIGINT)
    ...         except KeyboardInterrupt:
    ...             pass
    ... except KeyboardInterrupt:
    ...     print("raised again")
    raised again
    """
    memory, mode = signal.getsignal(signal.SIGINT), torch.is_grad_enabled()
    is_main = threading.current_thread() is threading.main_thread()
    installs = is_main and memory is signal.default_int_handler
    if installs:
        memory = _Memory()
        signal.signal(signal.SIGINT, memory)
    try:
        try:
            yield
        finally:  # twice: Ctrl-C may come here, too
            _restore(installs, mode)
    except Exception as error:
        if is_main and isinstance(memory, _Memory) and memory.came:
            raise KeyboardInterrupt from error
        raise
    finally:
        _restore(installs, mode)
    if is_main and isinstance(memory, _Memory) and memory.came:
        raise KeyboardInterrupt


def _restore(installs: bool, mode: bool) -> None:
    if installs:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_grad_enabled(mode)
