"""Mutation testing by named wrong variants: which of them do the tests catch?

``python tests/mutants/run.py [--only PATTERN] [--jobs N] [--limit SECONDS] [--slow]``
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.mutants.record import Records, load, record
from tests.mutants.session import copy_tree, preload
from tests.mutants.trial import BROKEN, Outcome, attempt
from tests.mutants.variant import Variant
from tests.mutants.variants import all_variants


def say(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a name or file, or a glob")
    parser.add_argument("--jobs", type=int, default=2, help="variants at a time")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds of tests for a variant"
    )
    parser.add_argument(
        "--slow", action="store_true", help="try survivors with the slow tests, too"
    )
    parser.add_argument(
        "--no-record",
        action="store_true",
        help="take the records that there are, and record nothing",
    )
    return parser.parse_args(arguments)


def _matches(variant: Variant, pattern: str) -> bool:
    names = (variant.name, variant.file)
    return any(pattern in name or fnmatch(name, pattern) for name in names)


def _work(tree: Path, variants, records: Records, options, tasks, results) -> None:
    for i in iter(tasks.get, None):
        found = attempt(variants[i], tree, records, options.limit, options.slow)
        results.put(found)


def try_all(
    variants: list[Variant], records: Records, trees: list[Path], options
) -> list[Outcome]:
    """Try variants, one copy of the repository for each job."""
    fork = multiprocessing.get_context("fork")
    tasks, results = fork.SimpleQueue(), fork.SimpleQueue()
    workers = [
        fork.Process(
            target=_work, args=(tree, variants, records, options, tasks, results)
        )
        for tree in trees
    ]
    for worker in workers:
        worker.start()
    # Numbers: a pipe that nobody reads yet has no room for all variants.
    for task in [*range(len(variants)), *[None] * len(workers)]:
        tasks.put(task)
    outcomes = []
    for i in range(len(variants)):
        outcomes.append(results.get())
        say(f"{i + 1:4d}/{len(variants)}  {_row(outcomes[-1])}")
    for worker in workers:
        worker.join()
    return outcomes


def _row(outcome: Outcome) -> str:
    name = f"{outcome.variant.file.split('/')[0]}: {outcome.variant.name}"
    spent = f"{outcome.n_tests} tests, {outcome.seconds:.1f} s"
    return f"{outcome.state:<10} {name:<55} {spent:<18} {outcome.test}"


def table(outcomes: list[Outcome]) -> str:
    """Counts by folder, and whatever was not caught."""
    folders = defaultdict(list)
    for outcome in outcomes:
        parts = outcome.variant.file.split("/")
        folders[parts[0] if len(parts) > 1 else "(top)"].append(outcome)
    lines = [f"{'folder':<20} {'caught':>6} {'of':>6}"]
    for folder, found in sorted(folders.items()):
        caught = sum(outcome.is_caught for outcome in found)
        lines.append(f"{folder:<20} {caught:>6} {len(found):>6}")
    caught = sum(outcome.is_caught for outcome in outcomes)
    lines.append(f"{'all':<20} {caught:>6} {len(outcomes):>6}")
    left = [outcome for outcome in outcomes if not outcome.is_caught]
    lines += ["", "not caught:"] if left else []
    lines += [f"{_row(outcome)}\n    {outcome.variant.wrong}" for outcome in left]
    crashes = [outcome for outcome in outcomes if outcome.is_crash]
    lines += ["", "caught by a crash, not by a number:"] if crashes else []
    lines += [f"{_row(outcome)}\n    {outcome.reason}" for outcome in crashes]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Record, try, and show the table: 1 if a variant was not caught."""
    options, start = _options(arguments), time.monotonic()
    chosen = [v for v in all_variants() if _matches(v, options.only)]
    preload()
    with tempfile.TemporaryDirectory() as folder:
        jobs = min(options.jobs, max(len(chosen), 1))
        trees = [copy_tree(Path(folder) / str(i)) for i in range(jobs)]
        if not options.no_record:
            record(trees[0], say)
        records = load()
        for name in records.failed:
            say(f"fails without any change, and is left out: {name}")
        outcomes = try_all(chosen, records, trees, options)
    say(f"\n{table(outcomes)}\n{(time.monotonic() - start) / 60:.1f} minutes")
    if any(outcome.state == BROKEN for outcome in outcomes):
        say("broken variants give no wrong numbers: replace them")
    return int(not all(outcome.is_caught for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
