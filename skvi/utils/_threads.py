"""Thread limits that live only inside a call."""

from contextlib import AbstractContextManager, nullcontext
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


def limit_threads(work: float, n_jobs: int | None = None) -> AbstractContextManager:
    """Limit all thread pools inside a block, and restore them after it.

    Parameters
    ----------
    work : float
        Multiply-adds of one pass; small ones get one thread.
    n_jobs : int, default=None
        Upper limit; None leaves the pools as they are, -1 is every core, -2 all but
        one.

    Returns
    -------
    context manager
    """
    limit = None if n_jobs is None else max(1, effective_n_jobs(n_jobs))
    if work <= SMALL_WORK:
        limit = 1
    if limit is None:
        return nullcontext()
    return _controller().limit(limits=limit)
