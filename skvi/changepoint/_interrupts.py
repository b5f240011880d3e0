"""Ctrl-C between two rows."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupt", "interrupts_between_rows"]


class Interrupt:
    """Remembers that Ctrl-C came."""

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True


@contextmanager
def interrupts_between_rows() -> Iterator[Interrupt]:
    """Hold Ctrl-C back until the block says it has finished a row.

    In the main thread, and unless the user has a handler of their own. The block looks
    at `came` after every row, and ends; KeyboardInterrupt is raised behind it.

    Yields
    ------
    Interrupt

    Raises
    ------
    KeyboardInterrupt
        The signal came.
    """
    interrupt = Interrupt()
    is_main = threading.current_thread() is threading.main_thread()
    installs = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if installs:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        if installs:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupt.came:
        raise KeyboardInterrupt
