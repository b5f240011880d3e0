r"""Wrong variants of skvi drawn at random: which of them does the net of tests catch?

::

    pytest -n 2 -m "not walk" --durations=0 --cov=skvi --cov-context=test \
        --cov-report= >out
    python tests/variants.py out [--count 150] [--seed 0] [-n 2]

The first command notes in ``.coverage`` which tests pass through which line, and in
``out`` how long they take. The second changes one expression at a time (a sign, a
factor, a number, a comparison, the order of two arguments, a call left out) in a copy,
and runs tests that pass through it until one fails, specific and quick ones first, for
about a minute. What survives is either equal in its results, or not tested there. Look
at both lists before tests are deleted, and after.
"""

import argparse
import ast
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from coverage.numbits import numbits_to_nums

ROOT = Path(__file__).resolve().parents[1]
SECONDS, MOST, OF_ONE = 60.0, 150, 4  # tests of a variant; of one function
OPTIONS = ["-x", "-q", "--no-header", "--tb=no", "--rootdir=.", "-c", "pyproject.toml"]
OPTIONS += ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "-m", ""]
PAIRS = [(ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or), (ast.Lt, ast.Gt)]
PAIRS += [(ast.LtE, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)]
OTHER = dict(PAIRS) | {new: old for old, new in PAIRS}
LOST = "exp log log1p expm1 sqrt square abs detach clamp cumsum T mT".split()
#: Arithmetic is drawn most often.
KINDS = {"operator": 4, "sign": 2, "number": 2, "lost": 2, "order": 1.5}
KINDS |= {"comparison": 1.5, "logic": 1, "flag": 1, "dropped": 1}


class Change(NamedTuple):
    """One node of one file, and what stands in its place."""

    path: Path
    kind: str
    node: ast.expr | ast.stmt
    new: ast.AST

    def __str__(self):
        old = " ".join(ast.unparse(self.node).split())[:60]
        where = f"{self.path.relative_to(ROOT)}:{self.node.lineno}"
        return f"{where} {old} -> {ast.unparse(self.new)[:60]}"

    def text(self):
        """The file with the change, all else letter for letter."""
        lines = [line.encode() for line in self.path.read_text().splitlines(True)]
        node, new = self.node, ast.unparse(ast.fix_missing_locations(self.new))
        new = f"({new})" if isinstance(node, ast.expr) else new
        head = lines[node.lineno - 1][: node.col_offset]
        tail = lines[node.end_lineno - 1][node.end_col_offset :]
        changed = [head + new.encode() + tail]
        return b"".join(lines[: node.lineno - 1] + changed + lines[node.end_lineno :])


def replacements(node):  # noqa: C901
    """Yield (kind, new node)."""
    match node:
        case ast.BinOp(op=op) if type(op) in OTHER:
            yield "operator", ast.BinOp(node.left, OTHER[type(op)](), node.right)
        case ast.BoolOp(op=op):
            yield "logic", ast.BoolOp(OTHER[type(op)](), node.values)
        case ast.Compare(ops=[op]) if type(op) in OTHER:
            new = ast.Compare(node.left, [OTHER[type(op)]()], node.comparators)
            yield "comparison", new
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield "sign", node.operand
        case ast.Constant(value=bool() as value):
            yield "flag", ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield "number", ast.Constant(value + 1)
        case ast.Constant(value=float() as value):
            yield "number", ast.Constant(2 * value or 1.0)
        case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in LOST:
            is_module = ast.unparse(value) in ("torch", "np", "math")
            yield "lost", node.args[0] if is_module and node.args else value
        case ast.Attribute(attr="T" | "mT"):
            yield "lost", node.value
        case ast.Call(args=[first, second, *rest]):
            if not isinstance(first, ast.Starred) and not isinstance(
                second, ast.Starred
            ):
                yield (
                    "order",
                    ast.Call(node.func, [second, first, *rest], node.keywords),
                )
        case ast.AugAssign(op=op) if type(op) in OTHER:
            yield "operator", ast.AugAssign(node.target, OTHER[type(op)](), node.value)
        case ast.Expr(value=ast.Call()):
            yield "dropped", ast.Pass()


def nodes(tree):
    """Yield nodes that are computed: no annotations, messages and imports."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_message = isinstance(child, ast.Raise | ast.JoinedStr)
            is_message |= isinstance(child, ast.Call) and "warn" in ast.dump(child.func)
            if isinstance(child, ast.AST) and not is_message:
                yield child
                yield from nodes(child)


def draw(count, seed):
    """Draw different changes, first their kind and then their place."""
    rng, places = random.Random(seed), defaultdict(list)
    for path in sorted((ROOT / "skvi").rglob("*.py")):
        for node in nodes(ast.parse(path.read_text())):
            for kind, new in replacements(node):
                places[kind].append(Change(path, kind, node, new))
    for kind in places:
        rng.shuffle(places[kind])
    kinds = rng.choices(list(KINDS), list(KINDS.values()), k=count)
    return [places[kind].pop() for kind in kinds if places[kind]]


class Passing:
    """Which tests pass through a line, and how long they take."""

    def __init__(self, database, durations):
        self.seconds, self.width, self.lines = Counter(), Counter(), defaultdict(set)
        for line in durations.read_text().splitlines():
            match line.split(None, 2):
                case [time, "call" | "setup", test] if (
                    time[:-1].replace(".", "").isdigit()
                ):
                    self.seconds[test.strip()] += float(time[:-1])
        with sqlite3.connect(database) as connection:
            tests = dict(connection.execute("select id, context from context"))
            files = dict(connection.execute("select id, path from file"))
            arcs = connection.execute(
                "select file_id, context_id, fromno, tono from arc"
            )
            found = {(f, c, abs(n)) for f, c, *ends in arcs for n in ends}
            bits = connection.execute("select * from line_bits")
            found |= {(f, c, n) for f, c, b in bits for n in numbits_to_nums(b)}
        for f, c, number in found:
            test, path = tests[c].split("|")[0], files[f].split("/skvi/")[-1]
            if test:
                self.lines[path, number].add(test)
                self.width[test] += 1

    def chosen(self, change):
        """Tests of a change, specific and quick ones first."""
        path = change.path.relative_to(ROOT / "skvi").as_posix()
        numbers = range(change.node.lineno, change.node.end_lineno + 1)
        tests = set().union(*(self.lines[path, number] for number in numbers))
        if not tests:  # at import: whatever passes through the module
            tests = set().union(*(t for at, t in self.lines.items() if at[0] == path))
        cost = {t: (self.seconds[t] + 0.01) * self.width[t] ** 0.5 for t in tests}
        spent, chosen, functions = 0.0, [], Counter()
        for test in sorted(tests, key=lambda test: (cost[test], test)):
            functions[test.split("[")[0]] += 1
            if functions[test.split("[")[0]] <= OF_ONE and len(chosen) < MOST:
                spent += self.seconds[test]
                if not chosen or spent < SECONDS:
                    chosen.append(test)
        return chosen


def start(change, tests, tree, base):
    """Run tests of a change in a child, on a copy that has it."""
    shutil.copytree(base, tree, copy_function=os.link)
    path = tree / change.path.relative_to(ROOT)
    path.unlink()
    path.write_bytes(change.text())
    if child := os.fork():
        return child
    signal.alarm(int(4 * SECONDS))
    status = 70
    try:
        os.chdir(tree)
        for stream in (1, 2):
            os.dup2(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        sys.path[:] = [str(tree), *(p for p in sys.path[1:] if p != str(ROOT))]
        os.environ["PYTHONPATH"] = str(tree)
        status = import_module("pytest").main([*OPTIONS, *tests])
        sys.stdout.flush()
    finally:
        os._exit(int(status))


def judged(status, tree):
    """Caught: a test fails, cannot be read, or does not end."""
    code = os.waitstatus_to_exitcode(status)
    lines = (tree / "log").read_text(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return (
        "SURVIVED" if code == 0 else f"caught by {failed[0][:90] if failed else code}"
    )


def main():
    """Print what became of each variant, and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("durations", type=Path)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-n", type=int, default=2, help="variants at a time")
    options = parser.parse_args()
    passing = Passing(ROOT / ".coverage", options.durations)
    waiting = draw(options.count, options.seed)
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    os.environ |= {"MPLBACKEND": "Agg", "SCIPY_ARRAY_API": "1", "COLUMNS": "400"}
    for name in ("pytest", "torch", "scipy.stats", "sklearn.utils.estimator_checks"):
        import_module(name)
    states, running, began = Counter(), {}, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve() / "base"
        for name in ("skvi", "tests", "benchmarks", "doc", "examples"):
            shutil.copytree(ROOT / name, base / name)
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
            shutil.copy(ROOT / name, base)
        while waiting or running:
            while waiting and len(running) < options.n:
                change = waiting.pop()
                tree = base.with_name(str(len(waiting)))
                if tests := passing.chosen(change):
                    running[start(change, tests, tree, base)] = change, tree
                else:
                    states["UNTESTED"] += 1
                    print("UNTESTED", change, flush=True)
            if running:
                child, status = os.wait()
                change, tree = running.pop(child)
                state = judged(status, tree)
                states[state.split()[0]] += 1
                print(change, state, sep=" | ", flush=True)
                shutil.rmtree(tree)
    print(dict(states), f"in {time.monotonic() - began:.0f} seconds")


if __name__ == "__main__":
    main()
