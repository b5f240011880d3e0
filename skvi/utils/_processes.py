"""Training by several processes, each on its share of the rows of a step.

Every process runs the same program with the same seeds, so that draws, minibatches and
decisions are equal; only the rows of a step differ, and gradients and values are
averaged.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import distributed

_is_shared: ContextVar[bool] = ContextVar("is_shared", default=False)


def repeats_another(estimator: Any) -> bool:
    """Whether this process only repeats what the first writes to files and terminals.

    A process group alone says nothing: its processes may run different fits.
    """
    solver = getattr(estimator, "solver", None)
    is_shared = getattr(solver, "distributed", False) and _has_group()
    return is_shared and distributed.get_rank() > 0


def _has_group() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def share_of_rows() -> tuple[int, int]:
    """Number of this process, and of those that share rows: 0 and 1 if it is alone."""
    if not _is_shared.get():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def average(x: torch.Tensor) -> torch.Tensor:
    """The mean over the processes that share rows, in place."""
    _, size = share_of_rows()
    if size > 1:
        distributed.all_reduce(x)
        x /= size
    return x


@contextmanager
def sharing(is_shared: bool, same: Any) -> Iterator[None]:
    """Let the processes of the default group share rows; `same` must be equal in all.

    Raises
    ------
    RuntimeError
        There is no process group, or its processes do not run the same fit.
    """
    if is_shared and not _has_group():
        raise RuntimeError(
            "distributed=True shares rows among the processes of torch.distributed, "
            "and there is no process group. Start the program by torchrun, and call "
            "torch.distributed.init_process_group() first; or leave distributed out."
        )
    if is_shared:
        found: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(found, same)
        if any(other != same for other in found):
            raise RuntimeError(
                "distributed=True needs the same fit in every process: the same "
                "parameters, rows and int random_state. Got different ones."
            )
    token = _is_shared.set(is_shared)
    try:
        yield
    finally:
        _is_shared.reset(token)
