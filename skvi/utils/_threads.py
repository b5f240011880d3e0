"""Thread limits that hold only within a call."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import torch
from joblib import effective_n_jobs
from threadpoolctl import LibController, ThreadpoolController

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


@contextmanager
def _limited(pools: list[LibController], limit: int) -> Iterator[None]:
    # The controller's own context describes every pool first, which takes longer.
    before = [(pool, pool.num_threads) for pool in pools]
    try:
        for pool, _ in before:
            pool.set_num_threads(limit)
        yield
    finally:
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
