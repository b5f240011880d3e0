"""One pytest session in a forked child, on a copy of the repository.

The parent imports torch, scikit-learn and the test tools once, but never skvi: each
child imports skvi and the tests from the copy that it is given.
"""

import compileall
import os
import py_compile
import shutil
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IGNORED = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "venv", "build", "dist", "_build", "generated"
)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
NEEDED = ("coverage", "pytest", "_pytest.doctest", "torch", "scipy.stats")
USED_BY_TESTS = ("matplotlib.pyplot", "pandas", "sklearn.utils.estimator_checks")
IMPORT_SECONDS = 300  # for an import and a collection that may loop forever


def preload() -> None:
    """Import what is slow to import and stays the same; one thread a process."""
    os.environ |= dict.fromkeys(THREADS, "1")
    for name, value in (("MPLBACKEND", "Agg"), ("SCIPY_ARRAY_API", "1")):
        os.environ.setdefault(name, value)
    for name in NEEDED:
        import_module(name)
    for name in USED_BY_TESTS:
        try:
            import_module(name)
        except ImportError:
            continue  # the tests skip what is not installed
    import_module("torch").set_num_threads(1)


def copy_tree(folder: Path) -> Path:
    """Copy the repository, without hidden files and builds, to a folder.

    Compiled files are checked by the hash of their source: times and sizes cannot
    tell a variant that was applied within the same second.
    """
    tree = Path(shutil.copytree(ROOT, folder / "repository", ignore=IGNORED))
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(tree / "skvi", quiet=1, invalidation_mode=mode)
    return tree


def _enter(tree: Path, log: Path) -> None:
    """Make the copy the only place that skvi and the tests can come from."""
    os.chdir(tree)
    here = {"", str(ROOT), str(Path(__file__).parent)}
    sys.path[:] = [str(tree), *(p for p in sys.path if p not in here)]
    for name in [n for n in sys.modules if n.split(".")[0] in ("tests", "skvi")]:
        del sys.modules[name]
    os.environ["PYTHONPATH"] = str(tree)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _check_source(tree: Path) -> None:
    import skvi

    found = Path(skvi.__file__).resolve()
    if not found.is_relative_to(tree.resolve()):
        raise RuntimeError(f"skvi was imported from {found}, not from below {tree}")


def run_pytest(paths: list[str], plugin: object, *options: str) -> int:
    """Run pytest on paths of the copy with one more plugin; its exit status."""
    import pytest

    _check_source(Path.cwd())
    fixed = ["--rootdir=.", "-c", "pyproject.toml", "-q", "--no-header", "--tb=short"]
    without = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
    return int(pytest.main([*fixed, *without, *options, *paths], plugins=[plugin]))


def in_child(tree: Path, log: Path, work: Callable[[], int]) -> int:
    """Fork, enter the copy, do the work: exit status, or minus the killing signal.

    Whoever does the work renews the alarm that kills a child in an endless loop; its
    default action needs no help of the interpreter.
    """
    child = os.fork()
    if child == 0:
        status = 70
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(IMPORT_SECONDS)
            _enter(tree, log)
            status = work()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
