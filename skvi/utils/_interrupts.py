"""Ctrl-C that is never lost, callbacks, seconds, and threads of a call."""

import gc
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import FrameType
from typing import Any, TypeVar

import torch
from joblib import effective_n_jobs
from threadpoolctl import LibController, ThreadpoolController

Method = TypeVar("Method", bound=Callable)

_LEFT_OVER: list[torch.inference_mode] = []


class _Memory:
    """Signal handler: Python's own, but it records that it was called."""

    def __init__(self) -> None:
        self.came = False

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


try:
    from sklearn.callback import CallbackSupportMixin
    from sklearn.callback import with_callbacks as _with_callbacks
except ImportError:  # below 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Replaces scikit-learn's; there are no callbacks to set."""

    def _with_callbacks(method: Callable) -> Callable:
        return method


def with_callbacks(method: Method) -> Method:
    """Make a fit call scikit-learn's callbacks, if this version has them."""
    return _with_callbacks(method)


def has_callbacks(estimator: Any) -> bool:
    """Whether callbacks are registered for the fit."""
    return hasattr(estimator, "_skl_callbacks")


_END: ContextVar[float] = ContextVar("end", default=math.inf)


class OutOfTime(Exception):
    """The seconds were over before there was a result."""


def check_time() -> None:
    """Raise OutOfTime after the end of a `Clock.enforced` block, between evaluations.

    What can end with less looks at a deadline instead; this is for all that cannot.
    """
    if time.monotonic() > _END.get():
        raise OutOfTime


class Clock:
    """What is left of `max_seconds`; None is no limit.

    A phase looks at it between batches and never at values: which draws are kept does
    not depend on them. What is chosen from draws is chosen from those of pilot runs.
    """

    def __init__(self, seconds: float | None) -> None:
        self.begin = time.monotonic()
        self.seconds = math.inf if seconds is None else seconds

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit at all."""
        return self.seconds < math.inf

    def until(self, share: float) -> float:
        """Reading of `time.monotonic` when a fraction of the seconds is over."""
        return self.begin + share * self.seconds

    def left(self) -> float | None:
        """Seconds that are left, at least 0; None without a limit."""
        if not self.is_limited:
            return None
        return max(self.until(1.0) - time.monotonic(), 0.0)

    def part(self, share: float) -> "Clock":
        """Clock that ends earlier, when a fraction of what is left is over."""
        left = self.left()
        return Clock(None if left is None else share * left)

    def affordable(self, per_item: float, share: float) -> float:
        """Number of items, `per_item` seconds each, in a fraction of what is left."""
        left = self.left()
        return math.inf if left is None else share * left / max(per_item, 1e-12)

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """End every phase within a block by OutOfTime when the seconds are over."""
        token = _END.set(min(_END.get(), self.until(1.0)))
        try:
            yield
        finally:
            _END.reset(token)


UNLIMITED = Clock(None)


# Below about this many multiply-adds per pass, waking a second thread costs
# more than it saves; with other busy processes it is slower by factors of hundreds.
SMALL_WORK = 20_000_000


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    # Scanning the loaded libraries takes milliseconds: once per process.
    return ThreadpoolController()


@contextmanager
def limit_threads(work: float, n_jobs: int | None = None) -> Iterator[None]:
    """Limit all thread pools within a block, and restore them afterwards.

    Passes of few multiply-adds (`work`) get one thread; `n_jobs` is as in joblib.
    """
    limit = None if n_jobs is None else max(1, effective_n_jobs(n_jobs))
    if work <= SMALL_WORK:
        limit = 1
    if limit is None:
        yield
        return
    with _limited(_controller().lib_controllers, limit):
        yield


class _SharedLimit:
    """Threads of linear algebra: a limit holds for all threads of the process.

    Blocks of several threads overlap: the last one to end restores what was before.
    """

    def __init__(self) -> None:
        self.lock, self.limits = threading.Lock(), list[int]()
        self.before: list[tuple[LibController, int]] = []

    def push(self, pools: list[LibController], limit: int) -> None:
        """Begin a block with a limit."""
        with self.lock:
            if not self.limits:
                self.before = [(pool, pool.num_threads) for pool in pools]
            self.limits.append(limit)
            self._set()

    def pop(self, limit: int) -> None:
        """End a block with that limit."""
        with self.lock:
            self.limits.remove(limit)
            self._set()

    def _set(self) -> None:
        for pool, n_threads in self.before:
            # threadpoolctl 3.8 ignores all threads but the first that set OpenBLAS's.
            release = getattr(pool, "clear_controlling_thread", lambda force: None)
            release(force=True)
            pool.set_num_threads(self.limits[-1] if self.limits else n_threads)
            release(force=True)


_BLAS = _SharedLimit()


@contextmanager
def _limited(pools: list[LibController], limit: int) -> Iterator[None]:
    # The controller's own context describes every pool first, which takes longer.
    blas = [pool for pool in pools if pool.user_api == "blas"]
    # OpenMP has a limit for each thread.
    before = [(pool, pool.num_threads) for pool in pools if pool not in blas]
    _BLAS.push(blas, limit)
    try:
        for pool, _ in before:
            pool.set_num_threads(limit)
        yield
    finally:
        _BLAS.pop(limit)
        for pool, n_threads in before:
            pool.set_num_threads(n_threads)


Part = TypeVar("Part")


def over_threads(work: Callable[[slice], Part], n_rows: int, cost: float) -> list[Part]:
    """Call a function on slices of rows in threads; return the results in order.

    Linear algebra gets one thread each: its own threads wait actively, as torch's do,
    and would slow these down. `cost` is in multiply-adds of all rows.
    """
    count = min(torch.get_num_threads(), n_rows)
    if count == 1 or cost <= SMALL_WORK:
        return [work(slice(0, n_rows))]
    ends = [n_rows * i // count for i in range(count + 1)]
    blas = _controller().select(user_api="blas").lib_controllers
    with _limited(blas, 1), ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, map(slice, ends, ends[1:])))
