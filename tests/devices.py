"""An accelerator for tests on a machine that has none: its memory is the main memory.

Tensors on it say that they are on the device "meta", and hold their numbers all the
same. As on a real one, an operation takes tensors of one device only, numpy cannot read
them, and every copy of theirs to the host counts.
"""

import sys
from contextlib import contextmanager, nullcontext

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

META = torch.device("meta")
# Operations that wait for the device: what they return is on the host.
TO_HOST = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.unique_dim.default,
}


class _FromLists(TorchFunctionMode):
    """Numbers of Python reach the emulated device, as they reach a real one."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.new_tensor:
            own, data = args
            kwargs = {"dtype": own.dtype, "device": own.device} | kwargs
            func, args = torch.tensor, (data,)
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None:
            if torch.device(device) == META:
                del kwargs["device"]
                return func(*args, **kwargs).to(META)
        return func(*args, **kwargs)


class _OnDevice(torch.Tensor):
    """A tensor on the emulated device."""

    @staticmethod
    def __new__(cls, memory, mode):
        out = torch.Tensor._make_wrapper_subclass(
            cls,
            memory.size(),
            strides=memory.stride(),
            storage_offset=memory.storage_offset(),
            dtype=memory.dtype,
            device=META,
            requires_grad=memory.requires_grad,
        )
        out.memory, out.mode = memory, mode
        return out

    def __repr__(self):
        return f"on_device({self.memory!r})"

    def tolist(self):
        """Copy to the host, one number or all."""
        return self.detach().cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        first = next(t for t in tree_leaves((args, kwargs)) if isinstance(t, cls))
        return first.mode.run(func, args, kwargs or {})


class _HostGenerator(torch.Generator):
    """What `torch.Generator` makes while a device is emulated."""

    def __new__(cls, device="cpu"):
        kind = _Generator if torch.device(device) == META else _GENERATOR
        return super().__new__(kind)


_GENERATOR = torch.Generator


class _Generator(torch.Generator):
    """A generator that says it is on the emulated device."""

    device = META


class EmulatedDevice(TorchDispatchMode):
    """While it is active, the device "meta" holds numbers.

    Attributes
    ----------
    n_waits : int
        How often the host waited for the device: numbers read, copies to the host,
        shapes that depend on numbers.
    """

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # or torch imports its compiler

    def __init__(self):
        super().__init__()
        self.n_waits, self.waits = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.run(func, args, kwargs or {})

    def run(self, func, args, kwargs):
        """Compute in main memory, and say of the result where it is."""
        leaves = tree_leaves((args, kwargs))
        tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
        on = [t for t in tensors if isinstance(t, _OnDevice)]
        named = kwargs.get("device")
        if named is None and not on:
            return func(*args, **kwargs)
        moves = func is torch.ops.aten._to_copy.default
        if not moves and func is not torch.ops.aten.copy_.default:
            self._check_mix(func, args, tensors, on)
        here = on if named is None else torch.device(named) == META
        if on and (func in TO_HOST or not here):
            self._wait(func)
        inner = [
            t.memory
            if isinstance(t, _OnDevice)
            else (torch.device("cpu") if isinstance(t, torch.device) else t)
            for t in leaves
        ]
        position = iter(inner)
        args, kwargs = tree_map(lambda _: next(position), (args, kwargs))
        out = func(*args, **kwargs)
        if func is torch.ops.aten.copy_.default and on and len(on) < len(tensors):
            if not isinstance(leaves[0], _OnDevice):
                self._wait(func)
                return leaves[0]
        if torch.Tag.inplace_view in func.tags:
            self._follow(func, leaves)
        if not here:
            return out
        same = {id(a): b for a, b in zip(inner, leaves, strict=True)}

        def wrap(value):
            if not isinstance(value, torch.Tensor):
                return value
            return same[id(value)] if id(value) in same else _OnDevice(value, self)

        return tree_map(wrap, out)

    def _follow(self, func, leaves):
        """Change shape and strides of the tensor as those of its memory were."""
        before = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            with no_dispatch():
                func(*leaves)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)

    def _wait(self, func):
        self.n_waits += 1
        frame, place = sys._getframe(2), ""
        while frame is not None:
            if frame.f_globals.get("__name__", "").startswith("skvi"):
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                break
            frame = frame.f_back
        self.waits.append((str(func), place))

    def _check_mix(self, func, args, tensors, on):
        """As on a real device: only numbers and indices may be on the host."""
        if not on:
            return
        index = {
            torch.ops.aten.index.Tensor,
            torch.ops.aten.index_put_.default,
            torch.ops.aten.index_put.default,
            torch.ops.aten._index_put_impl_.default,
        }
        allowed = set()
        if func in index and isinstance(args[0], _OnDevice):
            allowed = {id(t) for t in tree_leaves(args[1])}
        for t in tensors:
            if not isinstance(t, _OnDevice) and t.device == META:
                raise RuntimeError(f"{func} got a tensor that has lost its numbers")
            on_host = not isinstance(t, _OnDevice)
            if on_host and t.ndim == 0 and _takes_numbers(func):
                continue
            if on_host and id(t) not in allowed:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device: {func} got "
                    f"shapes {[tuple(t.shape) for t in tensors]} on "
                    f"{[isinstance(t, _OnDevice) for t in tensors]}"
                )


def _takes_numbers(func):
    """Whether a number on the host may stand beside tensors on a device."""
    name = func.overloadpacket.__name__.rstrip("_")
    if name in ("index_put", "_index_put_impl", "fill", "masked_fill"):
        return True
    # Of functions of three tensors not all kernels do, nor in all versions of torch.
    return torch.Tag.pointwise in func.tags and name not in (
        "addcmul",
        "addcdiv",
        "lerp",
    )


@contextmanager
def emulated_device():
    """Make the device "meta" hold numbers; yields the `EmulatedDevice`."""
    mode = EmulatedDevice()
    inference_mode = torch.inference_mode
    try:
        torch.Generator = _HostGenerator
        # Subclasses of tensors have no inference mode: what it spares is kept here.
        torch.inference_mode = lambda mode=True: (
            torch.no_grad() if mode else nullcontext()
        )
        with mode, _FromLists():
            yield mode
    finally:
        torch.Generator = _GENERATOR
        torch.inference_mode = inference_mode
