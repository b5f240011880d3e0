"""Thread limits that live only inside a call."""

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

from threadpoolctl import ThreadpoolController

# Below about this many multiply-adds per pass, waking a second thread costs
# more than it saves; beside other busy processes it costs factors of hundreds.
SMALL_WORK = 20_000_000


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    # Scanning the loaded libraries takes milliseconds: once per process.
    return ThreadpoolController()


def limit_threads(work: float) -> AbstractContextManager:
    """Limit all thread pools to one thread while ``work`` operations are small."""
    if work > SMALL_WORK:
        return nullcontext()
    return _controller().limit(limits=1)
