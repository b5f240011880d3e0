"""Tables of numbers that are computed once."""

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

import torch

__all__ = ["table"]

P = ParamSpec("P")
T = TypeVar("T")


def table(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Cache what a function returns, for use in every mode of torch.

    Tensors that are made in inference mode, as solvers use it, can never be part of a
    graph; who asks first must not decide on that.

    Parameters
    ----------
    maxsize : int
        Tables that are kept.

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
