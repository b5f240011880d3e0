"""Which tests execute which lines of skvi, and how long each test takes.

Every test file is recorded in a process of its own, and kept under a key made of the
sources, the shared test modules and that file: only what has changed runs again.
"""

import hashlib
import json
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.session import ROOT, in_child, run_pytest

CACHE = Path(__file__).parent / ".cache"
DOCTESTS = "skvi"
TEST_SECONDS, MOST_TRIALS = 300, 3


def _digest(paths: list[Path], text: str = "") -> str:
    total = hashlib.sha256(text.encode())
    for path in sorted(paths):
        total.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return total.hexdigest()[:24]


def _test_files() -> list[Path]:
    files = (ROOT / "tests").rglob("test_*.py")
    return sorted(f for f in files if not f.is_relative_to(Path(__file__).parent))


def _keys() -> dict[str, str]:
    """Return the key of each test file, and of the docstrings of skvi."""
    files, everything = _test_files(), (ROOT / "tests").rglob("*.py")
    mutants = Path(__file__).parent
    shared = set(everything) - set(files) - set(mutants.rglob("*.py"))
    base = _digest([*(ROOT / "skvi").rglob("*.py"), *shared, ROOT / "pyproject.toml"])
    keys = {str(f.relative_to(ROOT)): _digest([f], base) for f in files}
    return keys | {DOCTESTS: _digest([], base)}


class _Recorder:
    """A pytest plugin: the context of coverage is the test, with its seconds."""

    def __init__(self, cov):
        self.cov, self.seconds = cov, defaultdict(float)
        self.failed, self.skipped = set(), set()

    def pytest_runtest_logstart(self, nodeid):
        signal.alarm(TEST_SECONDS)
        self.cov.switch_context(nodeid)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            (self.skipped if report.skipped else self.failed).add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid):
        self.cov.switch_context("")


def _lines(cov, passed: list[str]) -> dict[str, dict[int, list[int]]]:
    """Return the numbers of the tests that execute each line, by file."""
    number, skvi = {name: i for i, name in enumerate(passed)}, Path.cwd() / "skvi"
    lines, data = {}, cov.get_data()
    for file in data.measured_files():
        contexts = data.contexts_by_lineno(file)
        lines[str(Path(file).relative_to(skvi))] = {
            line: [number[name] for name in names if name in number]
            for line, names in contexts.items()
        }
    return lines


def _record(name: str, target: Path) -> int:
    import coverage
    from coverage.collector import Collector

    # A test's signal may come while coverage holds its lock, which stays held for good.
    # It is for threads that ask for data meanwhile, and there are none.
    Collector.lock_data = Collector.unlock_data = lambda self: None
    source = str(Path.cwd() / "skvi")
    cov = coverage.Coverage(data_file=None, config_file=False, source=[source])
    cov.start()
    recorder = _Recorder(cov)
    status = run_pytest([name], recorder)
    cov.stop()
    others = recorder.failed | recorder.skipped
    passed = [test for test in recorder.seconds if test not in others]
    seconds = [round(recorder.seconds[test], 4) for test in passed]
    content = {"tests": passed, "seconds": seconds, "lines": _lines(cov, passed)}
    content["failed"] = sorted(recorder.failed)
    partial = target.with_suffix(".part")
    partial.write_text(json.dumps(content))
    partial.rename(target)
    return status


def record(tree: Path, say: Callable[[str], None]) -> None:
    """Record the test files that have no record yet, each in a child."""
    CACHE.mkdir(exist_ok=True)
    missing = {n: k for n, k in _keys().items() if not _path(k).exists()}
    for i, (name, key) in enumerate(missing.items(), 1):
        say(f"recording {i} of {len(missing)}: {name}")
        log = CACHE / f"{key}.log"
        # A signal that a test sends may come while coverage works.
        for _ in range(MOST_TRIALS):
            in_child(tree, log, lambda name=name, key=key: _record(name, _path(key)))
            if _path(key).exists():
                break
        else:
            raise RuntimeError(f"recording {name} failed: see {log}")


def _path(key: str) -> Path:
    return CACHE / f"{key}.json"


@dataclass
class Records:
    """All recorded tests: seconds and number of lines of each, tests of each line."""

    seconds: dict[str, float] = field(default_factory=dict)
    breadth: Counter[str] = field(default_factory=Counter)
    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def add(self, content: dict) -> None:
        """Add what was recorded of one test file."""
        tests = content["tests"]
        self.failed += content["failed"]
        self.seconds |= dict(zip(tests, content["seconds"], strict=True))
        for test in tests[:1]:
            self.slowest[_collected(test)] = max(content["seconds"])
        breadth: Counter[int] = Counter()
        for file, lines in content["lines"].items():
            mine = self.lines.setdefault(file, {})
            for line, numbers in lines.items():
                mine.setdefault(int(line), set()).update(tests[i] for i in numbers)
                breadth.update(numbers)
        self.breadth.update({tests[i]: count for i, count in breadth.items()})

    def longest(self, test: str) -> float:
        """Seconds of the longest test that was recorded with this one."""
        return self.slowest[_collected(test)]

    def touching(self, file: str, lines: range | None) -> set[str]:
        """Return the tests that execute these lines; of the file, if none does."""
        mine = self.lines.get(file, {})
        found = set().union(*(mine.get(line, set()) for line in lines or ()))
        return found or set().union(*mine.values())


def _collected(test: str) -> str:
    """What was collected together: a test file, or all docstrings."""
    file = test.split("::")[0]
    return file if file.startswith("tests/") else DOCTESTS


def load() -> Records:
    """Read the records of the present sources and tests."""
    records = Records()
    for key in _keys().values():
        if _path(key).exists():
            records.add(json.loads(_path(key).read_text()))
    return records
