"""Every public name has a numpydoc docstring that agrees with its signature."""

import importlib
import inspect
import pkgutil
import re

import pytest
from numpydoc.validate import validate

import skvi

ERRORS = {
    "GL06",  # unknown section
    "GL07",  # sections in wrong order
    "GL08",  # no docstring
    "SS03",  # summary does not end with a period
    "PR01",  # parameter not documented
    "PR02",  # unknown parameter
    "PR03",  # parameters in wrong order
    "PR04",  # parameter without type
    "PR10",  # no space before the colon
    "RT01",  # no Returns section
    "YD01",  # no Yields section
}


def public_modules():
    """Skvi and every module below it with a public path, but for the internal ones."""
    modules = [skvi]
    for info in pkgutil.walk_packages(skvi.__path__, "skvi."):
        if not re.search(r"\._|\.(utils|expectations)\b", info.name):
            modules.append(importlib.import_module(info.name))
    return modules


def public_objects():
    """The classes and functions that modules name for users: path -> object."""
    objects = {}  # the shortest path first, where several lead to one object
    for module in sorted(public_modules(), key=lambda m: m.__name__.count(".")):
        for name in module.__all__:
            obj = getattr(module, name)
            is_documented = inspect.isclass(obj) or inspect.isroutine(obj)
            if is_documented and obj not in objects.values():
                objects[f"{module.__name__}.{name}"] = obj
    return objects


def public_methods(cls):
    """Methods and properties of a class that skvi itself defines: name -> function."""
    methods = {}
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        member = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if inspect.isfunction(member) and not name.startswith("_"):
            if member.__module__.split(".")[0] == "skvi":
                methods[name] = member
    return methods


def documentation_of(cls, method):
    """Path of the docstring that documents a method: its own, or, if that is only a
    summary, the one of the method with the same parameters that it overrides."""
    owner, arguments = method, list(inspect.signature(method).parameters)
    for base in reversed(cls.__mro__ if "\n" not in (method.__doc__ or "\n") else ()):
        other = vars(base).get(method.__name__)
        other = getattr(other, "__func__", other)  # of a static method
        if inspect.isfunction(other) and base.__module__.split(".")[0] == "skvi":
            if list(inspect.signature(other).parameters) == arguments:
                owner = other
                break
    return f"{owner.__module__}.{owner.__qualname__}"


def problems(path):
    """What numpydoc has to say against the docstring at a path."""
    return [
        f"{path}: {text}" for code, text in validate(path)["errors"] if code in ERRORS
    ]


@pytest.mark.parametrize("module", public_modules(), ids=lambda m: m.__name__)
def test_all_lists_existing_names(module):
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("path", sorted(public_objects()))
def test_docstrings_are_valid(path):
    obj = public_objects()[path]
    found = problems(path)
    if inspect.isclass(obj):
        for method in public_methods(obj).values():
            found += problems(documentation_of(obj, method))
    is_exception = inspect.isclass(obj) and issubclass(obj, BaseException)
    if not (is_exception or "\nExamples\n--------\n" in inspect.getdoc(obj)):
        found.append(f"{path}: no Examples section")
    assert not found, "\n".join(found)
