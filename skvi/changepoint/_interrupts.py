"""Ctrl-C between two rows."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupt", "interrupts_between_rows"]


class Interrupt:
    """Record of whether Ctrl-C was pressed."""

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True


@contextmanager
def interrupts_between_rows() -> Iterator[Interrupt]:
    """Defer Ctrl-C until the current row is finished: yields an `Interrupt`.

    The block checks `came` after every row, and returns; then KeyboardInterrupt is
    raised. Only in the main thread, and if the user has no handler installed.
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
