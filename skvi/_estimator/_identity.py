"""Identity of a fit: its parameters, data and device, as short texts."""

import hashlib
import inspect
from collections.abc import Mapping
from functools import partial
from types import CodeType
from typing import Any

import joblib
import numpy as np
import torch
from sklearn.base import BaseEstimator

from skvi.posteriors import Posterior

__all__ = ["describe", "digest", "identity_of"]

# Parameters without effect on the training.
FREE = frozenset({"verbose", "checkpoint_path", "checkpoint_interval"})
# Bytes read at once.
CHUNK = 2**24


def identity_of(estimator: BaseEstimator, data: Mapping[str, Any]) -> dict[str, str]:
    """Texts by name that are equal, in all processes, for fits with the same result."""
    params = estimator.get_params(deep=False)
    return {
        "estimator": _name(type(estimator)),
        **{k: describe(v) for k, v in sorted(params.items()) if k not in FREE},
        **{k: "none" if v is None else digest(v) for k, v in data.items()},
    }


def describe(value: Any) -> str:
    """A text that is the same for equal parameter values, in every process."""
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return repr(value)
    if isinstance(value, np.generic):
        return describe(value.item())
    if isinstance(value, Mapping):
        parts = (f"{k}: {describe(v)}" for k, v in value.items())
        return "{" + ", ".join(sorted(parts)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(describe(part) for part in value) + "]"
    if isinstance(value, np.ndarray | torch.Tensor):
        return f"array {digest(value)}"
    return _describe_object(value)


def _describe_object(value: Any) -> str:
    if isinstance(value, type):
        return _describe_class(value)
    if isinstance(value, torch.nn.Module):
        numbers = describe(value.state_dict())
        kinds = describe([type(part) for part in value.modules()])
        return f"{value!r} of {_digest_of_text(kinds)} at {_digest_of_text(numbers)}"
    if isinstance(value, Posterior):
        return f"{value!r} at {digest(value.params)}"
    if isinstance(value, BaseEstimator):
        params = value.get_params(deep=False)
        kept = ((k, v) for k, v in sorted(params.items()) if k not in FREE)
        parts = (f"{k}={describe(v)}" for k, v in kept)
        return f"{_name(type(value))}({', '.join(parts)})"
    if isinstance(value, partial):
        return describe([value.func, value.args, value.keywords])
    if inspect.isfunction(value):  # by what it does
        own = describe(value.__defaults__)
        own += describe([cell.cell_contents for cell in value.__closure__ or ()])
        return f"{_name(value)} {_digest_of_code(value.__code__)} {own}"
    try:
        return f"{_name(type(value))} {joblib.hash(value)}"
    except Exception:  # what cannot be pickled equals only itself
        return f"{_name(type(value))} {id(value)}"


def _describe_class(value: type) -> str:
    """Name of a class; for a module also its code."""
    if not issubclass(value, torch.nn.Module):
        return _name(value)
    methods = (part for part in vars(value).values() if inspect.isfunction(part))
    codes = " ".join(_digest_of_code(method.__code__) for method in methods)
    return f"{_name(value)} {_digest_of_text(codes)}"


def _digest_of_code(code: CodeType) -> str:
    text = f"{code.co_code!r} {code.co_names!r}"
    for part in code.co_consts:
        if isinstance(part, frozenset):  # in another order in another process
            text += repr(sorted(map(repr, part)))
        else:
            text += _digest_of_code(part) if inspect.iscode(part) else repr(part)
    return _digest_of_text(text)


def _digest_of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def digest(array: np.ndarray | torch.Tensor) -> str:
    """Shape, dtype and checksum of the values of an array, as a text."""
    if isinstance(array, torch.Tensor):
        array = array.detach().cpu().numpy()
    array = np.asanyarray(array)
    found = hashlib.sha256()
    rows = max(1, CHUNK // max(array[:1].nbytes, 1)) if array.ndim else 1
    for chunk in np.array_split(array, range(rows, len(array), rows)):
        found.update(np.ascontiguousarray(chunk).data)
    return f"{array.shape} {array.dtype} {found.hexdigest()[:16]}"
