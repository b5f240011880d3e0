"""Seconds that bounds may take, and what is to be done by when."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["UNLIMITED", "Clock", "OutOfTime", "check_time"]

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
