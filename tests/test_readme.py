"""The README tells the truth, and importing skvi does nothing but import."""

import importlib
import io
import json
import pkgutil
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import skvi

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)


def code_blocks(language, text=README):
    """The contents of the fenced blocks of one language, in order."""
    fence = rf"^```{language}\n(.*?)^```$"
    return re.findall(fence, text, flags=re.MULTILINE | re.DOTALL)


def assert_same_output(actual, expected, rtol=1e-2):
    """Equal words; numbers equal up to ``rtol`` or one unit of the last digit shown."""
    words = ["".join(NUMBER.sub("#", text).split()) for text in (actual, expected)]
    assert words[0] == words[1]
    pairs = zip(NUMBER.findall(actual), NUMBER.findall(expected), strict=True)
    for number, shown in pairs:
        mantissa, _, exponent = shown.lower().partition("e")
        last = int(exponent or 0) - len(mantissa.partition(".")[2])
        unit = 10.0**last if "." in mantissa else 0.0
        assert float(number) == pytest.approx(float(shown), rel=rtol, abs=unit)


def test_example_prints_what_it_shows():
    block, shown = code_blocks("python")[0], code_blocks("text")[0]
    assert README.index(block) < README.index(shown)
    stdout = io.StringIO()
    with redirect_stdout(stdout):
        exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    assert_same_output(stdout.getvalue(), shown)


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        ("bounds [-55.23,  -55.2]", "bounds [-55.24, -55.1]\n", True),
        ("se 0.004, n 3", "se 0.01, n 3", True),
        ("n 4", "n 3", False),
        ("lower -55.2", "lower 55.2", False),
        ("lower -55.2", "upper -55.2", False),
        ("lower -55.2 nan", "lower -55.2", False),
    ],
)
def test_outputs_are_compared(actual, expected, same):
    if same:
        assert_same_output(actual, expected)
    else:
        with pytest.raises(AssertionError):
            assert_same_output(actual, expected)


def test_two_commands():
    section = README.split("\n## Two commands\n")[1].split("\n## ")[0]
    commands = code_blocks("sh", section)
    assert len(commands) == 2
    assert all(command.count("\n") == 1 for command in commands)
    example = re.search(r"examples/\w+\.py", commands[0])
    assert (ROOT / example.group()).is_file()
    assert "python -m pytest" in commands[1]
    assert all("-c constraints.txt" in command for command in commands)


# Imports every module of skvi and compares the state of the process before and after.
# The other packages that skvi needs are imported first: what they do is their affair.
PROBE = """
import importlib, json, logging, os, pkgutil, random, sys, warnings
for name in json.load(sys.stdin):
    if name not in sys.modules:
        try:
            importlib.import_module(name)
        except ImportError:
            pass
import numpy, sklearn, torch

def state():
    return {
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch seed": (torch.initial_seed(), torch.get_rng_state().tolist()),
        "numpy seed": repr(numpy.random.get_state()),
        "python seed": random.getstate(),
        "numpy errors": numpy.geterr(),
        "numpy printing": numpy.get_printoptions(),
        "sklearn config": sklearn.get_config(),
        "warning filters": list(warnings.filters),
        "logging": (logging.root.level, list(logging.root.handlers)),
        "environment": dict(os.environ),
    }

before = state()
import skvi
for info in pkgutil.walk_packages(skvi.__path__, "skvi."):
    importlib.import_module(info.name)
after = state()
json.dump([key for key in before if before[key] != after[key]], sys.stdout)
"""
DEPENDENCIES = {"torch", "sklearn", "numpy", "scipy", "joblib", "threadpoolctl"}


@pytest.mark.slow
def test_import_changes_nothing():
    """In a new process, where what skvi itself imports is imported beforehand."""
    for info in pkgutil.walk_packages(skvi.__path__, "skvi."):
        importlib.import_module(info.name)
    others = [name for name in sys.modules if name.split(".")[0] in DEPENDENCIES]
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps(others),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
