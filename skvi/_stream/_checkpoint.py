"""The file from which another process can continue a stream."""

import os
import pickle
import time
from pathlib import Path
from typing import Any

__all__ = ["StreamCheckpoint"]


class StreamCheckpoint:
    """A pickle of what an estimator has learned, and of the scores so far.

    `identity` are the parameters of the stream; None for `path` keeps nothing.
    """

    def __init__(
        self, path: str | os.PathLike | None, interval: float, identity: dict[str, str]
    ) -> None:
        self.path = None if path is None else Path(path)
        self.interval, self.identity = interval, identity
        self.last_write = time.monotonic()

    def resume(self, estimator: Any, table: dict[str, list]) -> None:
        """Restore what the file has, if there is one."""
        if self.path is None or not self.path.exists():
            return
        state = pickle.loads(self.path.read_bytes())
        if state["identity"] != self.identity:
            pairs = self.identity.items()
            other = [name for name, v in pairs if state["identity"].get(name) != v]
            raise ValueError(
                f"checkpoint_path={str(self.path)!r} belongs to another stream: it has "
                f"another {', '.join(other)}. Delete the file, or use another path."
            )
        vars(estimator).update(state["estimator"])
        table.update(state["table"])

    def save(self, estimator: Any, table: dict[str, list], now: bool = False) -> None:
        """Write the file, atomically, if it is time for it."""
        if self.path is None:
            return
        if not now and time.monotonic() - self.last_write < self.interval:
            return
        state = {"identity": self.identity, "estimator": vars(estimator)}
        written = self.path.with_name(self.path.name + ".part")
        written.write_bytes(pickle.dumps(state | {"table": table}))
        os.replace(written, self.path)
        self.last_write = time.monotonic()
