"""Tables that are computed once, and decimals that are printed."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def table(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Cache up to `maxsize` results of a function, for use in every mode of torch.

    Tensors made in inference mode can never be part of a graph.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        return lru_cache(maxsize)(torch.inference_mode(False)(function))  # type: ignore[return-value]

    return decorate


def n_decimals(width: float) -> int:
    """Return the decimals, 2 to 6, that show two digits of a width (2 for 0, inf)."""
    if not 0 < width < math.inf:
        return 2
    return min(max(1 - math.floor(math.log10(width)), 2), 6)
