"""Torch modules as functions of their tensors, and as plain objects for pickles."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from skvi.utils._tensors import CPU

#: Held while something is changed that all threads share.
PROCESS_WIDE = threading.RLock()


def is_lazy(module: nn.Module) -> bool:
    """Whether parameters or buffers have no shape before a first call."""
    tensors = [*module.parameters(), *module.buffers()]
    return any(nn.parameter.is_lazy(tensor) for tensor in tensors)


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Draw from torch's global generator with a seed, and restore its state.

    One thread after the other, as modules that are made have no generator of their own.
    """
    with PROCESS_WIDE, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class Function:
    """A module as a function of its tensors, in one thread after the other.

    torch puts the tensors into the module for the time of a call, and a module may keep
    values of its own meanwhile.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self._lock = module, threading.RLock()

    def __call__(
        self,
        tensors: Mapping[str, torch.Tensor],
        args: tuple,
        kwargs: dict[str, Any] | None = None,
        tie_weights: bool = True,
    ) -> Any:
        """Evaluate the module with these tensors in the place of its own."""
        with self._lock:
            return functional_call(
                self.module, dict(tensors), args, kwargs, tie_weights=tie_weights
            )

    def __getstate__(self) -> dict[str, Any]:
        """Arrays in the place of tensors, and no lock."""
        return {"module": store_module(self.module)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Build the module again."""
        self.__init__(state["module"].build())  # type: ignore[misc]


@dataclass
class StoredTensor:
    """A tensor as an array."""

    array: np.ndarray | None  # None on "meta", which has no numbers
    shape: list[int]
    dtype: str
    is_parameter: bool
    requires_grad: bool


@dataclass
class StoredModule:
    """A module, or one inside of it, with all tensors as arrays."""

    kind: type[nn.Module]
    state: dict[str, Any]

    def build(self) -> nn.Module:
        """Build the module again, on the CPU."""
        return _build(self, {})


def store_module(module: nn.Module) -> StoredModule:
    """Copy a module into plain objects: its types, attributes and arrays.

    Tensors and modules used in several places are stored once.
    """
    return _store(module, {})


def _store(value: Any, known: dict[int, Any]) -> Any:
    """Replace tensors and modules, at every depth; equal objects stay equal."""
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, torch.Tensor):
        stored: Any = _store_tensor(value)
    elif isinstance(value, nn.Module):
        # Before its contents: they may refer to it.
        stored = known[id(value)] = StoredModule(type(value), {})
        stored.state.update(_map(value.__getstate__(), lambda v: _store(v, known)))
    else:
        return _map(value, lambda v: _store(v, known))
    known[id(value)] = stored
    return stored


def _store_tensor(value: torch.Tensor) -> StoredTensor:
    array = None
    if not value.is_meta:
        held = value.detach().cpu()
        # numpy has no bfloat16.
        held = held.float() if held.dtype == torch.bfloat16 else held
        array = held.numpy().copy()
    dtype = str(value.dtype).removeprefix("torch.")
    is_parameter = isinstance(value, nn.Parameter)
    return StoredTensor(
        array, list(value.shape), dtype, is_parameter, value.requires_grad
    )


def _build(value: Any, known: dict[int, Any]) -> Any:
    """Undo `_store`."""
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, StoredTensor):
        built: Any = _build_tensor(value)
    elif isinstance(value, StoredModule):
        built = known[id(value)] = value.kind.__new__(value.kind)
        built.__setstate__(_map(value.state, lambda v: _build(v, known)))
    else:
        return _map(value, lambda v: _build(v, known))
    known[id(value)] = built
    return built


def _build_tensor(stored: StoredTensor) -> torch.Tensor:
    dtype = getattr(torch, stored.dtype)
    if stored.array is None:
        tensor = torch.empty(stored.shape, dtype=dtype, device="meta")
    else:
        tensor = torch.as_tensor(np.array(stored.array), dtype=dtype, device=CPU)
    if stored.is_parameter:
        return nn.Parameter(tensor, stored.requires_grad)
    return tensor.requires_grad_(stored.requires_grad)


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    """Copy a list, tuple or dict with changed contents; return other objects."""
    if isinstance(value, dict):
        items = [(key, change(v)) for key, v in value.items()]
        return type(value)(items) if type(value) is not dict else dict(items)
    if type(value) in (list, tuple):
        return type(value)(change(v) for v in value)
    return value
