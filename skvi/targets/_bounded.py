"""Numbers that know their distances from the ends of their support."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch

from skvi.utils._tensors import rand

#: By the end: the sign of ``x - end``, and how to find ``log |x - end|``.
Ends = dict[float, tuple[int, Callable[[], torch.Tensor]]]
# Relative rounding of ends.
ROUNDING = 4 * torch.finfo(torch.float64).eps
# Log of the least float64.
LEAST = -708.0


class Bounded(torch.Tensor):
    """A tensor of numbers inside a support, with the logs of distances from its ends.

    A float64 near 1 has no digits of ``1 - x``. Here ``1 - x``, ``log1p(-x)``,
    ``logit(x)``, ``xlogy(a, x)``, products, powers, indices and whatever is written
    with them, such as the distributions of torch, have all digits at both ends. Other
    functions see a plain tensor, whose values stay inside the support.
    """

    ends: Ends

    @staticmethod
    def of(value: torch.Tensor, ends: Ends) -> Bounded:
        """Numbers with the ends that are known; logs are found where they are used."""
        x = value.as_subclass(Bounded)
        x.ends = {end: (side, cache(logs)) for end, (side, logs) in ends.items()}
        return x

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        """Apply a rule, or torch's function to plain numbers."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").removeprefix("special_")
        with torch._C.DisableTorchFunctionSubclass():
            found = NotImplemented
            with suppress(TypeError, IndexError):  # of arguments that no rule is for
                if name in RULES:
                    found = RULES[name](*args, **kwargs)
                elif name in MOVES:
                    found = _moved(func, *args, **kwargs)
            if name.endswith("_") and not name.endswith("__"):
                args[0].ends = {}  # written in place
            return func(*args, **kwargs) if found is NotImplemented else found

    def side(self, end: float) -> int:
        """Whether numbers are above or below an end; 0 if it is none."""
        return self.ends[end][0] if end in self.ends else 0

    def logs(self, end: float) -> torch.Tensor:
        """Logs of the distances from an end."""
        return self.ends[end][1]()


def exp_inside(logs: torch.Tensor) -> torch.Tensor:
    """Exponentials that are not 0; infinite ones are, so that densities end there."""
    return logs.clamp(min=LEAST).exp()


def nudged(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers that are changed in the last place; logs of distances are not."""
    plain = x.as_subclass(torch.Tensor)
    side = rand(generator, *x.shape).round()
    value = plain * (1 + (2 * side.to(x.device) - 1) * torch.finfo(torch.float64).eps)
    return Bounded.of(value, x.ends) if isinstance(x, Bounded) else value


def log1mexp(a: torch.Tensor) -> torch.Tensor:
    """``log(1 - exp(a))`` for a < 0, without cancellation."""
    is_near = a > -math.log(2)
    near = torch.where(is_near, a, -1.0).expm1().neg().log()
    return torch.where(is_near, near, torch.where(is_near, -1.0, a).exp().neg().log1p())


def _number(x: Any) -> float:
    """The value that all elements of a constant have; NaN for anything else."""
    if isinstance(x, torch.Tensor):
        is_special = isinstance(x, Bounded) or torch._C._functorch.is_batchedtensor(x)
        if is_special or x.requires_grad or not x.numel():
            return math.nan
        low, high = x.aminmax()
        return float(low) if low == high else math.nan
    return float(x) if isinstance(x, (int, float)) else math.nan


def _is_positive(x: Any) -> bool:
    return isinstance(x, Bounded) and x.side(0.0) > 0


def _has_zero(x: Any) -> bool:
    return isinstance(x, Bounded) and 0.0 in x.ends


def _negative(x: Bounded) -> Bounded:
    return Bounded.of(-x, {-end: (-sign, logs) for end, (sign, logs) in x.ends.items()})


def _plus(x: Bounded, by: Any) -> Any:
    """A number whose end is moved to 0 has all its digits."""
    c = _number(by)
    if not math.isfinite(c):
        return NotImplemented
    value = x + by
    x = _expanded(x, value.shape)
    ends = {_sum(end, c): pair for end, pair in x.ends.items()}
    if 0.0 in ends:
        value = ends[0.0][0] * exp_inside(ends[0.0][1]())
    return Bounded.of(value, ends)


def _sum(end: float, c: float) -> float:
    """0 if it is 0 to rounding, as with ends such as .1 + .2."""
    return end + c if abs(end + c) > ROUNDING * abs(c) else 0.0


def _add(x: Any, y: Any, *, alpha: float = 1) -> Any:
    if alpha != 1:
        return NotImplemented
    return _plus(x, y) if isinstance(x, Bounded) else _plus(y, x)


def _subtract(x: Any, y: Any, *, alpha: float = 1) -> Any:
    return _add(x, _negative(y) if isinstance(y, Bounded) else -y, alpha=alpha)


def _multiply(x: Any, y: Any) -> Any:
    if not isinstance(x, Bounded):
        x, y = y, x
    if not (_has_zero(x) and _has_zero(y)):
        return _scaled(x, _number(y), x * y, float.__mul__)
    found = Bounded.of(
        x * y, {0.0: (x.side(0.0) * y.side(0.0), lambda: x.logs(0.0) + y.logs(0.0))}
    )
    return _below_one(found, x.side(1.0) < 0 > y.side(1.0))


def _divide(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is not None:
        return NotImplemented
    if isinstance(y, Bounded):
        return _multiply(x, _reciprocal(y)) if _has_zero(y) else NotImplemented
    return _scaled(x, _number(y), x / y, float.__truediv__)


def _reciprocal(x: Bounded) -> Any:
    if not _has_zero(x):
        return NotImplemented
    return Bounded.of(1 / x, {0.0: (x.side(0.0), lambda: -x.logs(0.0))})


def _scaled(x: Bounded, c: float, value: torch.Tensor, by: Callable) -> Any:
    """A value that is x multiplied, or divided, by a number c."""
    if not math.isfinite(c) or c == 0:
        return NotImplemented
    sign, shift = int(math.copysign(1, c)), math.log(by(1.0, abs(c)))
    ends = {
        by(end, c): (sign * side, lambda logs=logs: logs() + shift)
        for end, (side, logs) in _expanded(x, value.shape).ends.items()
    }
    return Bounded.of(value, ends)


def _power(x: Any, exponent: Any) -> Any:
    if not _is_positive(x) or isinstance(exponent, Bounded):
        return NotImplemented
    a = torch.as_tensor(exponent)
    is_power = not torch._C._functorch.is_batchedtensor(a) and bool((a >= 0).all())
    found = Bounded.of(x**exponent, {0.0: (1, lambda: x.logs(0.0) * exponent)})
    return _below_one(found, is_power and x.side(1.0) < 0)


def _below_one(x: Bounded, is_below: bool) -> Bounded:
    """With the logs of ``1 - x``, if positive numbers are below 1."""
    if is_below:
        x.ends[1.0] = -1, cache(lambda: log1mexp(x.logs(0.0)))
    return x


def _product(x: Bounded, *args: Any, **kwargs: Any) -> Any:
    if not _is_positive(x):
        return NotImplemented
    product = lambda: x.logs(0.0).sum(*args, **kwargs)
    found = Bounded.of(x.prod(*args, **kwargs), {0.0: (1, product)})
    return _below_one(found, x.side(1.0) < 0)


def _exp(x: Bounded) -> Any:
    """Of negative numbers."""
    value = x.as_subclass(torch.Tensor)
    if x.side(0.0) >= 0:
        return NotImplemented
    return _below_one(Bounded.of(value.exp(), {0.0: (1, lambda: value)}), True)


def _absolute(x: Bounded) -> Any:
    if not _has_zero(x):
        return NotImplemented
    return x if _is_positive(x) else _negative(x)


def _log(x: Bounded) -> Any:
    return x.logs(0.0) if _is_positive(x) else NotImplemented


def _log1p(x: Bounded) -> Any:
    return _log(_plus(x, 1.0))


def _logit(x: Bounded, eps: float | None = None) -> Any:
    if eps is not None or not (x.side(0.0) > 0 > x.side(1.0)):
        return NotImplemented
    return x.logs(0.0) - x.logs(1.0)


def _times_log(log: Callable) -> Callable:
    """``a log(x)``, which is 0 where a is."""

    def apply(a: Any, x: Any) -> Any:
        found = log(x) if isinstance(x, Bounded) else NotImplemented
        if found is NotImplemented:
            return found
        a = torch.as_tensor(a, dtype=found.dtype)
        return torch.where(a == 0, 0.0, a * found)

    return apply


def _clamp(x: Bounded, min: Any = None, max: Any = None) -> Any:
    """Limits within rounding of an end are guards of floats, which are not needed."""
    if any(isinstance(limit, torch.Tensor) for limit in (min, max)):
        return NotImplemented
    low, high = -math.inf if min is None else min, math.inf if max is None else max
    rounding = ROUNDING * builtins.max((abs(end) for end in x.ends), default=0.0)
    ends: Ends = {}
    for end, (sign, logs) in x.ends.items():
        near, far = sorted((sign * (low - end), sign * (high - end)))
        if far > rounding:
            limits = math.log(near) if near > rounding else -math.inf, math.log(far)
            ends[end] = sign, lambda logs=logs, limits=limits: logs().clamp(*limits)
    return Bounded.of(x.clamp(min, max), ends)


def _set(x: torch.Tensor, where: Any, by: Any) -> Any:
    """Write a number in place; the ends of others are lost."""
    if not isinstance(x, Bounded):
        return NotImplemented
    c = _number(by)

    def written(logs: torch.Tensor, end: float) -> torch.Tensor:
        logs = logs.clone()
        logs[where] = math.log(abs(c - end)) if c != end else -math.inf
        return logs

    ends = x.ends if math.isfinite(c) else {}
    x.ends = {
        end: (sign, cache(lambda logs=logs, end=end: written(logs(), end)))
        for end, (sign, logs) in ends.items()
    }
    return NotImplemented


def _broadcast(*tensors: torch.Tensor) -> tuple:
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    return tuple(_expanded(x, shape) for x in tensors)


def _expanded(x: torch.Tensor, shape: tuple) -> Any:
    found = _moved(torch.Tensor.expand, x, shape)
    return x.expand(shape) if found is NotImplemented else found


def _moved(func: Callable, *args: Any, **kwargs: Any) -> Any:
    """A function that only moves elements: ends that all numbers share remain."""
    numbers = args[0] if isinstance(args[0], (list, tuple)) else args[:1]
    if func.__name__ == "where":
        numbers = [x for x in args if getattr(x, "dtype", None) != torch.bool]
    if not numbers or not all(isinstance(x, Bounded) for x in numbers):
        return NotImplemented
    value = func(*args, **kwargs)
    ends: Ends = {
        end: (sign, cache(lambda end=end: func(*_logs_of(args, end), **kwargs)))
        for end, (sign, _) in numbers[0].ends.items()
        if all(x.side(end) == sign for x in numbers)
    }
    if isinstance(value, torch.Tensor):
        return Bounded.of(value, ends)
    parts = []
    for i, part in enumerate(value):
        pairs = ends.items()
        own = {e: (sign, lambda f=f, i=i: f()[i]) for e, (sign, f) in pairs}
        parts.append(Bounded.of(part, own))
    return tuple(parts)


def _logs_of(args: Any, end: float) -> list:
    """Arguments with logs in place of the numbers."""

    def replaced(x: Any) -> Any:
        if isinstance(x, Bounded):
            return x.logs(end)
        is_list = isinstance(x, (list, tuple)) and any(
            isinstance(y, Bounded) for y in x
        )
        return [replaced(y) for y in x] if is_list else x

    return [replaced(x) for x in args]


RULES: dict[str, Callable] = {
    "neg": _negative,
    "negative": _negative,
    "add": _add,
    "sub": _subtract,
    "subtract": _subtract,
    "rsub": lambda x, y, **kwargs: _subtract(y, x, **kwargs),
    "__rsub__": lambda x, y: _subtract(y, x),
    "mul": _multiply,
    "multiply": _multiply,
    "div": _divide,
    "divide": _divide,
    "true_divide": _divide,
    "__rdiv__": lambda x, y: _divide(y, x),
    "pow": _power,
    "square": lambda x: _power(x, 2.0),
    "sqrt": lambda x: _power(x, 0.5),
    "reciprocal": _reciprocal,
    "prod": _product,
    "abs": _absolute,
    "exp": _exp,
    "log": _log,
    "log1p": _log1p,
    "logit": _logit,
    "xlogy": _times_log(_log),
    "xlog1py": _times_log(_log1p),
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda x, limit: _clamp(x, limit),
    "clamp_max": lambda x, limit: _clamp(x, None, limit),
    "__setitem__": _set,
    "broadcast_tensors": _broadcast,
    "__iter__": lambda x: iter(_moved(torch.unbind, x)),
}
#: Functions that only move elements.
MOVES = {
    "__getitem__", "reshape", "view", "flatten", "ravel", "unflatten", "squeeze",
    "unsqueeze", "expand", "expand_as", "broadcast_to", "transpose", "permute",
    "movedim", "swapaxes", "clone", "contiguous", "to", "double", "float", "detach",
    "index_select", "gather", "take_along_dim", "select", "narrow", "split", "chunk",
    "unbind", "flip", "roll", "repeat", "tile", "diagonal", "stack", "cat", "concat",
    "where",
}  # fmt: skip
