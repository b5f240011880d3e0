"""Tables that are computed once."""

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

import torch

__all__ = ["table"]

P = ParamSpec("P")
T = TypeVar("T")


def table(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Cache the results of a function, for use in every mode of torch.

    Tensors that are created in inference mode, which solvers use, can never be part of
    a graph; this must not depend on the first caller.

    Parameters
    ----------
    maxsize : int
        Maximum number of cached tables.

    Returns
    -------
    callable
        A decorator.

    Examples
    --------
    >>> import torch
    >>> from skvi.utils._tables import table
    >>> @table(maxsize=2)
    ... def halves(n):
    ...     return torch.arange(n) / 2
    >>> with torch.inference_mode():
    ...     halves(3).is_inference()
    False
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        return lru_cache(maxsize)(torch.inference_mode(False)(function))  # type: ignore[return-value]

    return decorate
