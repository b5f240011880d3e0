"""Devices: which one a fit runs on, and how objects that hold tensors move there."""

import math
from collections.abc import Callable
from copy import copy
from typing import Any, Self

import numpy as np
import torch

__all__ = ["CPU", "Movable", "device_or_cpu", "resolve_device", "to_device"]

CPU = torch.device("cpu")
# Multiply-adds of a pass over the data above which a GPU is worthwhile. One core takes
# about a tenth of a second for them; the GPU launches some thousand operations in that
# time, about the cost of an iteration and of copying the data. An estimate.
WORTH_MOVING = 2**28


def resolve_device(device: str, work: float = math.inf) -> torch.device:
    """Return the device that a parameter names, or raise ValueError.

    "auto" takes the CPU below 2**28 multiply-adds (`work`) of a pass over the data.
    """
    if device == "auto":
        return _best_device() if work >= WORTH_MOVING else CPU
    try:
        found = torch.ones(1, device=device).device  # with its number
        float(torch.ones(1, device=found))
    except (RuntimeError, NotImplementedError, AssertionError, ImportError) as error:
        raise ValueError(
            f"device={device!r} is not a device of this machine, which has "
            f"{_names_of_devices()}. Use one of them, or device='auto'."
        ) from error
    try:
        torch.ones(1, dtype=torch.float64, device=found)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={device!r} has no double precision, which fits and evidences "
            f"need. Use one of {_names_of_devices()}, or device='auto'."
        ) from error
    return found


def device_or_cpu(device: str) -> torch.device:
    """Return the device that a parameter names, or the CPU if it is unavailable.

    Models fitted on another machine can predict nevertheless.
    """
    try:
        return resolve_device(device)
    except ValueError:
        return CPU


def _best_device() -> torch.device:
    if not torch.cuda.is_available():
        return CPU
    return torch.device("cuda", torch.cuda.current_device())


def _names_of_devices() -> list[str]:
    n_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ["cpu", *["cuda"][:n_cuda], *(f"cuda:{i}" for i in range(n_cuda))]


class Movable:
    """Mixin: an object whose tensors, at every depth, move to a device together.

    Pickles contain numpy arrays instead, which load on any CPU.
    """

    def __copy__(self) -> Self:
        """Share all tensors, with their gradients."""
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

    def to(self, device: torch.device) -> Self:
        """Return a copy with all tensors on a device.

        Parameters
        ----------
        device : torch.device

        Returns
        -------
        Self
            Tensors already on the device, and objects without tensors, are shared.
        """
        other = copy(self)
        other.__dict__.update(to_device(self.__dict__, device))
        return other


def to_device(value: Any, device: torch.device) -> Any:
    """Move a tensor, an object that holds some, or a list, tuple or dict of them."""

    def move(_: str, leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, torch.Tensor | Movable) else leaf

    return _map_leaves(value, "", move)


def _map_leaves(value: Any, place: str, change: Callable[[str, Any], Any]) -> Any:
    """Map the leaves of lists, tuples and dictionaries, given their path: "/a/0"."""
    if type(value) is dict:
        return {k: _map_leaves(v, f"{place}/{k}", change) for k, v in value.items()}
    if type(value) in (list, tuple):
        parts = enumerate(value)
        return type(value)(_map_leaves(v, f"{place}/{i}", change) for i, v in parts)
    return change(place, value)
