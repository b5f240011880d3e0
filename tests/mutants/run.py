"""Which of the wrong variants do their tests catch? See README.md beside this file.

``python tests/mutants/run.py [-k PATTERN] [-n JOBS]``
"""

import argparse
import compileall
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.mutants.places import ROOT, PlaceError, Sources, Variant
from tests.mutants.variants import VARIANTS

NOT_FOUND, CAUGHT, SURVIVED, BROKEN = "NOT FOUND", "caught", "SURVIVED", "BROKEN"
SECONDS = 300  # for a test that may never end, which counts as caught
FIXED = ["-x", "-q", "--no-header", "--tb=short", "--rootdir=.", "-c", "pyproject.toml"]
WITHOUT = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
IMPORTED = ("pytest", "torch", "scipy.stats", "sklearn.utils.estimator_checks")


@dataclass(frozen=True)
class Outcome:
    """What became of a variant, and how its test failed."""

    variant: Variant
    state: str
    seconds: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        name = f"{self.variant.name:<42}"
        return f"{self.state:<9} {self.seconds:6.1f} s  {name} {self.reason}"


def preload() -> None:
    """Import what stays the same and is slow to import; one thread a process."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    os.environ |= {"MPLBACKEND": "Agg", "SCIPY_ARRAY_API": "1", "COLUMNS": "200"}
    for name in IMPORTED:
        import_module(name)


def copy_package(folder: Path) -> Path:
    """Copy and compile what a test needs; children link to it."""
    for name in ("skvi", "tests", "benchmarks", "doc"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    compileall.compile_dir(folder / "skvi", quiet=1)
    return folder


def start(variant: Variant, change: tuple[Path, str], base: Path) -> tuple[int, Path]:
    """Run the test of a variant in a child, on a copy that has it: number, folder."""
    tree = base.with_name(variant.name)
    shutil.copytree(base, tree, copy_function=os.link)
    path = tree / change[0].relative_to(ROOT)
    path.unlink()
    path.write_text(change[1])
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        status = 70
        try:
            status = _run_test(variant.test, tree)
        finally:
            os._exit(status)
    return child, tree


def _run_test(test: str, tree: Path) -> int:
    os.chdir(tree)
    for stream in (1, 2):
        os.dup2(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    sys.path[:] = [str(tree), *(p for p in sys.path[1:] if p != str(ROOT))]
    os.environ["PYTHONPATH"] = str(tree)
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    status = import_module("pytest").main([*FIXED, *WITHOUT, test])
    sys.stdout.flush()
    return int(status)


def judge(variant: Variant, status: int, seconds: float, tree: Path) -> Outcome:
    """Tell from the exit status of pytest what became of a variant."""
    code = os.waitstatus_to_exitcode(status)
    state = {1: CAUGHT, 0: SURVIVED, -signal.SIGALRM: CAUGHT}.get(code, BROKEN)
    lines = (tree / "log").read_text().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    reason = failed[-1].split(" - ")[-1] if failed else f"exit status {code}"
    return Outcome(variant, state, seconds, "" if state == SURVIVED else reason)


def outcomes(variants: list[Variant], n_jobs: int) -> Iterator[Outcome]:
    """Try variants, several at a time, and yield what became of each."""
    sources, changes = Sources(ROOT / "skvi"), []
    for variant in variants:
        try:
            changes.append((variant, sources.mutate(variant)))
        except PlaceError as error:
            yield Outcome(variant, NOT_FOUND, reason=str(error))
    with tempfile.TemporaryDirectory() as folder:
        base, running = copy_package(Path(folder).resolve() / "base"), {}
        while changes or running:
            while changes and len(running) < n_jobs:
                variant, change = changes.pop(0)
                child, tree = start(variant, change, base)
                running[child] = variant, time.monotonic(), tree
            child, status = os.wait()
            variant, began, tree = running.pop(child)
            yield judge(variant, status, time.monotonic() - began, tree)
            shutil.rmtree(tree)


def main() -> int:
    """Try the chosen variants, and count: 1 unless all are caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="part of a variant's name or place")
    parser.add_argument("-n", type=int, default=2, help="variants at a time")
    options, began = parser.parse_args(), time.monotonic()
    chosen = [v for v in VARIANTS if options.k in f"{v.name} {v.where} {v.test}"]
    preload()
    states: Counter[str] = Counter()
    for outcome in outcomes(chosen, options.n):
        print(outcome, flush=True)
        states[outcome.state] += 1
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    print(f"{len(chosen)} variants: {counts}; {time.monotonic() - began:.0f} seconds")
    return int(states[CAUGHT] != len(chosen))


if __name__ == "__main__":
    sys.exit(main())
