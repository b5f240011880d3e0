"""`import skvi` imports little, and gives access to everything public."""

import pkgutil
import subprocess
import sys

import pytest

import skvi

PROBE = """
import sys
import skvi
assert "metrics" in dir(skvi) and "evidence_bounds" in dir(skvi)
assert skvi.exceptions.SkviWarning
heavy = {"torch", "sklearn", "scipy", "pandas", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""


def test_a_fresh_import_is_light():
    """Wrong variant: `from skvi.evidence import evidence_bounds` at the top."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_public_module_is_an_attribute():
    """Wrong variant: a subpackage left out of the list."""
    found = {module.name for module in pkgutil.iter_modules(skvi.__path__)}
    internal = {"expectations", "utils"}
    public = {name for name in found if not name.startswith("_")} - internal
    assert public == set(skvi._SUBMODULES)
    for name in public:
        # What Python asks for where nobody has imported it yet.
        assert skvi.__getattr__(name).__name__ == f"skvi.{name}"


def test_every_public_function_is_found():
    """Wrong variant: a function without its home."""
    for name in skvi.__all__:
        assert skvi.__getattr__(name) is getattr(skvi, name)


def test_other_names_are_missing():
    with pytest.raises(AttributeError, match="has no attribute 'metric'"):
        skvi.metric  # noqa: B018
