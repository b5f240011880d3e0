"""The list of wrong variants fits the present source, so that it cannot rot.

Where one of these fails, the source has changed under a variant: carry the variant over
(same mistake, new words), or replace it. What the tests catch says
`python tests/mutants/run.py`.
"""

import ast
from collections import Counter
from pathlib import Path

from tests.mutants.trial import CAUGHT, SURVIVED, TIMED_OUT, UNFINISHED, _judge
from tests.mutants.variant import Variant
from tests.mutants.variants import all_variants

ROOT = Path(__file__).parents[2]
VARIANTS = all_variants()


def test_every_original_occurs_exactly_once():
    """And what replaces it is another program, not another layout of the same one."""
    problems = []
    for variant in VARIANTS:
        source = (ROOT / "skvi" / variant.file).read_text()
        try:
            changed = variant.apply(source)
        except ValueError as error:
            problems.append(str(error))
            continue
        try:
            ast.parse(changed)
        except SyntaxError as error:
            problems.append(f"Variant {variant.name!r} does not compile: {error}")
            continue
        if variant.original.split() == variant.replacement.split():
            problems.append(f"Variant {variant.name!r} changes nothing.")
    assert not problems, "\n".join(problems)


def test_names_are_unique():
    counts = Counter(variant.name for variant in VARIANTS)
    assert not [name for name, count in counts.items() if count > 1]


def test_every_folder_has_variants():
    """At least three each, and 130 together; the modules at the top count as one."""
    folders = {path.parent.name for path in (ROOT / "skvi").glob("*/__init__.py")}
    counts = Counter(Path(variant.file).parent.name for variant in VARIANTS)
    short = {name: counts[name] for name in [*folders, ""] if counts[name] < 3}
    assert not short
    assert len(VARIANTS) >= 130


def test_lines_are_those_of_the_statement(tmp_path):
    """Wrong variants: the line of the snippet alone; the body of a function."""
    (tmp_path / "skvi").mkdir()
    source = "def f(x,\n      y=1):\n    z = (x\n         + y)\n    return z\n"
    (tmp_path / "skvi" / "a.py").write_text(source)
    inside = Variant("inside", "a.py", "+ y)", "- y)", "")
    assert list(inside.lines(tmp_path)) == [3, 4]
    default = Variant("default", "a.py", "y=1", "y=2", "")
    assert list(default.lines(tmp_path)) == [1, 2]


def test_outcomes_are_told_apart():
    """Survived only if every test that touches the variant ran."""
    part = {"running": "b", "failed": "", "ran": ["a"], "seconds": 1.0}
    part |= {"hung": False, "broken": False}
    touching = {"a": 0.1, "b": 0.2}

    def state(**changes):
        return _judge(VARIANTS[0], [part | changes], touching).state

    assert state() == UNFINISHED
    assert state(ran=["a", "b", "neighbor"]) == SURVIVED
    assert state(failed="a") == CAUGHT
    assert state(hung=True) == TIMED_OUT
