"""Trying one wrong variant: the tests that touch it, quickest first."""

import json
import math
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.record import Records
from tests.mutants.session import in_child, run_pytest
from tests.mutants.variant import Variant

# Tests and files of the first session: few, because collecting takes its time, and the
# narrow ones, those that execute the fewest lines: they say most of each of them.
FIRST_FILES, FIRST_OF_FILE = 3, 12
# A test hangs after so many processor seconds, and so many times what the longest test
# of its file takes (which may pay for a fixture of all); in wall time where it sleeps.
PATIENCE, SLOWER, SLEEPS = 30, 10, 10
SLOW_LIMIT, SLOW_PATIENCE = 10, 900

CAUGHT, TIMED_OUT, BROKEN = "caught", "timed out", "broken"
SURVIVED, UNFINISHED = "SURVIVED", "not caught within the limit"
CRASHES = ("AttributeError", "IndexError", "KeyError", "NameError", "TypeError")


@dataclass(frozen=True)
class Outcome:
    """What became of a variant.

    Parameters
    ----------
    variant : Variant
    state : str
        "caught"; "timed out": a test hung, which counts as caught; "broken": skvi or
        a test file cannot be imported; "SURVIVED"; or not caught within the limit.
    test : str
        The first that failed or hung.
    reason : str
        How it failed.
    n_tests : int
        Tests that ran.
    seconds : float
        Of processor time in tests.
    """

    variant: Variant
    state: str
    test: str = ""
    reason: str = ""
    n_tests: int = 0
    seconds: float = 0.0

    @property
    def is_caught(self) -> bool:
        """Whether the tests tell the variant from the source."""
        return self.state in (CAUGHT, TIMED_OUT)

    @property
    def is_crash(self) -> bool:
        """Whether the first failure is a mere crash: no wrong number was tested."""
        return self.reason.startswith(CRASHES)


class _Watch:
    """A pytest plugin: chosen tests in a given order, a limit, and a status file.

    `chosen` has the seconds of the longest test in the file of each; None is all tests.
    The default action of its timers needs no help of the interpreter.
    """

    def __init__(self, chosen: dict[str, float] | None, status: Path, limit: float):
        self.chosen, self.path, self.limit = chosen, status, limit
        self.found = {"running": "", "failed": "", "ran": [], "seconds": 0.0}
        self.start = time.process_time()

    def pytest_sessionstart(self, session):
        self.session = session

    def pytest_collection_modifyitems(self, items):
        if self.chosen is not None:
            order = {name: i for i, name in enumerate(self.chosen)}
            items[:] = [item for item in items if item.nodeid in order]
            items.sort(key=lambda item: order[item.nodeid])

    def pytest_collectreport(self, report):
        if report.failed:
            self.found["broken"] = report.nodeid

    def pytest_runtest_logstart(self, nodeid):
        patience = SLOW_PATIENCE
        if self.chosen is not None:
            patience = PATIENCE + math.ceil(SLOWER * self.chosen[nodeid])
        signal.setitimer(signal.ITIMER_PROF, patience)
        signal.alarm(SLEEPS * patience)
        self.found["running"] = nodeid
        self.write()

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.found["failed"]:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.found["failed"] = report.nodeid
            self.found["reason"] = crash.message.split("\n")[0] if crash else ""

    def pytest_runtest_logfinish(self, nodeid):
        self.found["ran"].append(nodeid)
        if time.process_time() - self.start > self.limit:
            self.session.shouldstop = "the limit is reached"

    def write(self) -> None:
        self.found["seconds"] = time.process_time() - self.start
        self.path.write_text(json.dumps(self.found))


def _session(tree: Path, chosen: dict[str, float], limit: float, slow: bool) -> dict:
    """Run the chosen tests, or the slow ones of their files; return what was found."""
    status, log = tree.parent / "status.json", tree.parent / "log"
    status.unlink(missing_ok=True)
    files = list(dict.fromkeys(name.split("::")[0] for name in chosen))
    options = ["-x", "-m", "slow"] if slow else ["-x"]

    def work() -> int:
        watch = _Watch(None if slow else chosen, status, limit)
        code = run_pytest(files, watch, *options)
        watch.write()
        return code

    code = in_child(tree, log, work)
    found = {"running": "", "failed": "", "ran": [], "seconds": 0.0}
    if status.exists():
        found = json.loads(status.read_text())
    hung = code in (-signal.SIGALRM, -signal.SIGPROF)
    wrong = code < 0 or code > 5 or "broken" in found
    return found | {"code": code, "hung": hung, "broken": wrong and not hung}


def _plan(variant: Variant, records: Records, tree: Path) -> list[list[str]]:
    """Narrow tests, the others that touch the variant, and their neighbors.

    Others of the same files may use what a shared fixture or a cache has computed in
    a test that touches it.
    """
    # Which test imports a module first says nothing of who uses its constants.
    lines = variant.lines(tree) if variant.is_in_function(tree) else None
    touching = records.touching(variant.file, lines)
    files = {name.split("::")[0] for name in touching}
    others = {n for n in records.seconds if n.split("::")[0] in files} - touching

    chosen: dict[str, list[str]] = {}
    for name in sorted(touching, key=lambda n: (records.breadth[n], n)):
        file = name.split("::")[0]
        if file in chosen or len(chosen) < FIRST_FILES:
            chosen.setdefault(file, []).append(name)
    narrow = {n for names in chosen.values() for n in names[:FIRST_OF_FILE]}
    parts = [narrow, touching - narrow, others]
    return [sorted(p, key=lambda n: (records.seconds[n], n)) for p in parts]


def attempt(
    variant: Variant, tree: Path, records: Records, limit: float, slow: bool
) -> Outcome:
    """Apply a variant to the copy, run tests until one fails, and undo it."""
    path = tree / "skvi" / variant.file
    source = path.read_text()
    narrow, rest, others = _plan(variant, records, tree)
    path.write_text(variant.apply(source))
    try:
        sessions = [narrow, [*rest, *others]]
        touching = dict.fromkeys([*narrow, *rest], 0.0)
        outcome = _run(variant, tree, sessions, touching, records, limit)
        if slow and not outcome.is_caught and outcome.state != BROKEN:
            found = _session(tree, touching, SLOW_LIMIT * limit, True)
            outcome = _judge(variant, [found], touching, done=True)
        return outcome
    finally:
        path.write_text(source)


def _run(
    variant: Variant,
    tree: Path,
    sessions: list[list[str]],
    touching: dict[str, float],
    records: Records,
    limit: float,
) -> Outcome:
    """Run the sessions until one fails, or the limit is reached."""
    found, left = [], limit
    for names in sessions:
        if names and left > 0:
            chosen = {name: records.longest(name) for name in names}
            found.append(_session(tree, chosen, left, False))
            left -= found[-1]["seconds"]
        outcome = _judge(variant, found, touching)
        if outcome.state in (CAUGHT, TIMED_OUT, BROKEN):
            break
    return outcome


def _judge(
    variant: Variant, found: list[dict], touching: dict, done: bool = False
) -> Outcome:
    ran = [name for part in found for name in part["ran"]]
    seconds = sum(part["seconds"] for part in found)
    last, test = found[-1], ""
    if last["failed"]:
        state, test = CAUGHT, last["failed"]
    elif last["hung"]:
        state, test = TIMED_OUT, last["running"]
    elif last["broken"]:
        state, test = BROKEN, last.get("broken") or last["running"]
    else:
        state = SURVIVED if done or set(touching) <= set(ran) else UNFINISHED
    reason = last.get("reason", "")
    return Outcome(variant, state, str(test), reason, len(ran), seconds)
