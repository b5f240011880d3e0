"""Devices: which one a fit runs on, and how objects that hold tensors move there."""

import math
from typing import Any, Self

import torch

__all__ = ["CPU", "Movable", "device_or_cpu", "resolve_device", "to_device"]

CPU = torch.device("cpu")
# Multiply-adds of a pass over the data from which on a GPU is worth it. One core takes
# about a tenth of a second for them; the GPU starts some thousand operations in that
# time, which is what an iteration and the copy of the data cost. An estimate.
WORTH_MOVING = 2**28


def resolve_device(device: str, work: float = math.inf) -> torch.device:
    """Return the device that a parameter names.

    Parameters
    ----------
    device : str
        "auto" is "cuda" where there is one and the work is worth it, else "cpu".
    work : float, default=inf
        Multiply-adds of a pass over the data: "auto" takes the CPU below 2**28.
        Networks make so many passes that any amount is worth it.

    Returns
    -------
    torch.device

    Raises
    ------
    ValueError
        It is not known, not there, or has no double precision.

    Examples
    --------
    >>> from skvi.utils._device import resolve_device
    >>> resolve_device("cpu")
    device(type='cpu')
    >>> resolve_device("abacus")
    Traceback (most recent call last):
        ...
    ValueError: device='abacus' is not a device of this machine, ...
    """
    if device == "auto":
        return _best_device() if work >= WORTH_MOVING else CPU
    try:
        found = torch.device(device)
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
    """Return the device that a parameter names, or the CPU where it is not there.

    What was fitted on another machine predicts all the same.
    """
    try:
        return resolve_device(device)
    except ValueError:
        return CPU


def _best_device() -> torch.device:
    return torch.device("cuda") if torch.cuda.is_available() else CPU


def _names_of_devices() -> list[str]:
    n_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ["cpu", *["cuda"][:n_cuda], *(f"cuda:{i}" for i in range(n_cuda))]


class Movable:
    """Mixin: an object whose tensors can move to a device, all together."""

    def to(self, device: torch.device) -> Self:
        """Return a copy with all tensors on a device.

        Parameters
        ----------
        device : torch.device

        Returns
        -------
        Self
            What is there already, and what holds no tensors, is shared.
        """
        other = object.__new__(type(self))  # `copy` would go through a pickle
        moved = {k: to_device(v, device) for k, v in self.__dict__.items()}
        other.__dict__.update(moved)
        return other


def to_device(value: Any, device: torch.device) -> Any:
    """Move a tensor, an object that holds some, or a list, tuple or dict of them."""
    if isinstance(value, torch.Tensor | Movable):
        return value.to(device)
    if type(value) in (list, tuple):
        return type(value)(to_device(v, device) for v in value)
    if type(value) is dict:
        return {k: to_device(v, device) for k, v in value.items()}
    return value
