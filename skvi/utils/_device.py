"""Devices: which one a fit runs on, and how objects that hold tensors move there."""

from typing import Any, Self

import torch

__all__ = ["CPU", "Movable", "to_device"]

CPU = torch.device("cpu")


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
