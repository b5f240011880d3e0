"""The named wrong variants, one module for each folder of skvi."""

from importlib import import_module
from pathlib import Path

from tests.mutants.variant import Variant


def all_variants() -> list[Variant]:
    """Return all of them, in the order of the modules."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    modules = (import_module(f"{__name__}.{name}") for name in names)
    return [variant for module in modules for variant in module.VARIANTS]
