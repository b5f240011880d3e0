"""Arrays: numpy outside, torch inside, and pickles that hold numpy only."""

import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch

from skvi.utils._device import Movable


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor that shares memory where torch allows it, else a copy.

    Nobody may write to it: the memory may be a map of a file that is read only.
    """
    shareable = array.dtype.isnative and all(
        s >= 0 and s % array.itemsize == 0 for s in array.strides
    )
    if not shareable:
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array if array.flags.writeable else _Writeable.view(array))


class _Writeable:
    """Memory of an array that claims to be writeable, as torch wants it to be."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array  # keeps the memory
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}

    @classmethod
    def view(cls, array: np.ndarray) -> np.ndarray:
        return np.asarray(cls(array))


def row_chunks(n_rows: int, width: int, elements: int) -> list[slice]:
    """Slices of rows whose temporaries of that width have about so many elements."""
    step = max(1, math.ceil(elements / max(width, 1)))
    return [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]


def like_rows(vector: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """View a vector, (n,), so that it multiplies the rows of `other`, (n, ...)."""
    return vector.reshape(-1, *[1] * (other.ndim - 1))


class NumpyState(Movable):
    """Mixin: tensors in the instance are pickled as numpy, rebuilt on the CPU.

    Those in lists, tuples and dictionaries, too, at every depth.
    """

    def __copy__(self) -> Self:
        """Share all that the instance holds, tensors with their gradients as well."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Replace every tensor by a numpy array; "tensors" says where they were."""
        places: list[str] = []

        def to_numpy(place: str, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            places.append(place)
            return value.detach().cpu().numpy().copy()

        return {"tensors": places, **_map_leaves(self.__dict__, "", to_numpy)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the tensors on the CPU."""
        places = set(state.pop("tensors"))

        def to_tensor(place: str, value: Any) -> Any:
            return torch.from_numpy(np.array(value)) if place in places else value

        self.__dict__.update(_map_leaves(state, "", to_tensor))


def _map_leaves(value: Any, place: str, change: Callable[[str, Any], Any]) -> Any:
    """Change what lists, tuples and dictionaries hold, given where: "/a/0"."""
    if type(value) is dict:
        return {k: _map_leaves(v, f"{place}/{k}", change) for k, v in value.items()}
    if type(value) in (list, tuple):
        parts = enumerate(value)
        return type(value)(_map_leaves(v, f"{place}/{i}", change) for i, v in parts)
    return change(place, value)
