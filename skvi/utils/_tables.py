"""Tables that are computed once."""

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

import torch

__all__ = ["table"]

P = ParamSpec("P")
T = TypeVar("T")


def table(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Cache up to `maxsize` results of a function, for use in every mode of torch.

    Tensors made in inference mode can never be part of a graph.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        return lru_cache(maxsize)(torch.inference_mode(False)(function))  # type: ignore[return-value]

    return decorate
