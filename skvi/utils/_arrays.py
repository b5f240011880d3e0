"""Arrays: numpy outside, torch inside."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor that shares memory if torch allows it, else a copy.

    It must not be written to: the memory can be a read-only memory map.
    """
    shareable = array.dtype.isnative and all(
        s >= 0 and s % array.itemsize == 0 for s in array.strides
    )
    if not shareable:
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array if array.flags.writeable else _Writeable.view(array))


class _Writeable:
    """Memory of an array that claims to be writeable, as torch requires."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array  # keeps the memory
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}

    @classmethod
    def view(cls, array: np.ndarray) -> np.ndarray:
        return np.asarray(cls(array))


# Elements of a buffer, and of several temporaries, that stay in the cache.
CACHE_ELEMENTS, TEMPORARY_ELEMENTS = 2**17, 2**18


def row_chunks(
    n_rows: int, width: int, elements: int = TEMPORARY_ELEMENTS
) -> list[slice]:
    """Slices of rows whose temporaries of the given width have a bounded size."""
    step = max(1, math.ceil(elements / max(width, 1)))
    return [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]


def like_rows(vector: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """View a vector, (n,), so that it multiplies the rows of `other`, (n, ...)."""
    return vector.reshape(-1, *[1] * (other.ndim - 1))


def weighted_sum(losses: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Sum over rows, (S,), in double precision."""
    if weight is None:
        return losses.sum(1, dtype=torch.float64)
    # Single precision outputs have single precision losses; weights are double.
    return losses.to(weight.dtype) @ weight


def log_(values: torch.Tensor) -> torch.Tensor:
    """Logarithm in place; in the CPU's memory numpy's takes a fraction of the time."""
    if values.requires_grad or not values.is_cpu:
        return values.log_()
    np.log(values.numpy(), out=values.numpy())
    return values


def exp_(values: torch.Tensor) -> torch.Tensor:
    """Exponential in place, as `log_`."""
    if values.requires_grad or not values.is_cpu:
        return values.exp_()
    np.exp(values.numpy(), out=values.numpy())
    return values


def weighted_median(values: np.ndarray, w: np.ndarray) -> float:
    """Smallest value with half of the weight at or below it."""
    order = np.argsort(values)
    below = np.cumsum(w[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def median_distance(values: np.ndarray, w: np.ndarray, center: float) -> float:
    """1.4826 times the median distance from the center: a standard deviation."""
    return 1.4826 * weighted_median(np.abs(values - center), w)


def elements(draws: Mapping[str, Any]) -> tuple[list[str], np.ndarray]:
    """Names of all elements, "mu" or "theta[0,1]", and draws of them, (n, k)."""
    labels, columns = [], []
    for name, given in draws.items():
        values = np.asarray(given, dtype=np.float64)
        for index in np.ndindex(values.shape[1:]):
            place = ",".join(map(str, index))
            labels.append(f"{name}[{place}]" if place else name)
        columns.append(values.reshape(len(values), -1))
    return labels, np.concatenate(columns, 1)
