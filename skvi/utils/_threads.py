"""Thread limits that live only inside a call."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from joblib import effective_n_jobs
from threadpoolctl import ThreadpoolController

# Below about this many multiply-adds per pass, waking a second thread costs
# more than it saves; beside other busy processes it costs factors of hundreds.
SMALL_WORK = 20_000_000


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    # Scanning the loaded libraries takes milliseconds: once per process.
    return ThreadpoolController()


@contextmanager
def limit_threads(work: float, n_jobs: int | None = None) -> Iterator[None]:
    """Limit all thread pools inside a block, and restore them after it.

    Parameters
    ----------
    work : float
        Multiply-adds of one pass; small ones get one thread.
    n_jobs : int, default=None
        Upper limit; None leaves the pools as they are, -1 is every core, -2 all but
        one.

    Yields
    ------
    None
    """
    limit = None if n_jobs is None else max(1, effective_n_jobs(n_jobs))
    if work <= SMALL_WORK:
        limit = 1
    if limit is None:
        yield
        return
    # The controller's own context describes every pool first, which takes longer.
    before = [(pool, pool.num_threads) for pool in _controller().lib_controllers]
    try:
        for pool, _ in before:
            pool.set_num_threads(limit)
        yield
    finally:
        for pool, n_threads in before:
            pool.set_num_threads(n_threads)
