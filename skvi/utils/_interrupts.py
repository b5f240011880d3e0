"""Ctrl-C that is never lost, and leaves the state of the process intact."""

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

__all__ = ["raising_interrupts"]

_LEFT_OVER: list[torch.inference_mode] = []


class _Memory:
    """Signal handler: Python's own, but it records that it was called."""

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)


@contextmanager
def raising_interrupts(otherwise: str = "") -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of a block in which Ctrl-C was lost.

    `otherwise` is the message of one that came and has none.
    Python drops what a signal handler raises inside ``__del__`` or a callback from C.
    The modes of torch, which an exception can leave changed, are restored.
    """
    memory, modes = signal.getsignal(signal.SIGINT), _modes()
    is_main = threading.current_thread() is threading.main_thread()
    installs = is_main and memory is signal.default_int_handler
    if installs:
        memory = _Memory()
        signal.signal(signal.SIGINT, memory)
    try:
        try:
            yield
        finally:  # twice: Ctrl-C may come here as well
            _restore(installs, modes)
    except KeyboardInterrupt as error:
        error.args = error.args or (otherwise,)
        raise
    except Exception as error:
        if is_main and isinstance(memory, _Memory) and memory.came:
            raise KeyboardInterrupt from error
        raise
    finally:
        if is_main and isinstance(memory, _Memory) and memory.came:
            _keep_guards()
        _restore(installs, modes)
    if is_main and isinstance(memory, _Memory) and memory.came:
        raise KeyboardInterrupt


def _modes() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def _keep_guards() -> None:
    """Keep contexts that Ctrl-C left without their exit.

    A destroyed one would restore its mode at any later time, amid other computations.
    """
    _LEFT_OVER[:] = [o for o in gc.get_objects() if type(o) is torch.inference_mode]


def _restore(installs: bool, modes: tuple[bool, bool]) -> None:
    if installs:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if torch.is_inference_mode_enabled() != modes[1]:
        # Kept alive: what it would restore in the end is the mode that was left over.
        _LEFT_OVER.append(torch.inference_mode(modes[1]))
        _LEFT_OVER[-1].__enter__()
    torch.set_grad_enabled(modes[0])
