"""Every wrong variant still finds the code that it changes, and its test.

What the tests catch says `python tests/mutants/run.py`, which takes minutes.
"""

from collections import Counter

import pytest

from tests.mutants.places import ROOT, PlaceError, Sources, Variant
from tests.mutants.variants import VARIANTS

SOURCE = '''
class Model:
    def density(self, z, width):
        """Return the log density."""
        half = (0.5
                * z ** 2)  # of a normal
        return -half - math.log(width)

    def tail(self, z):
        return 1 - 0.5 * z**2 + 0.5 * z**2
'''


def test_every_variant_has_its_place_and_its_test():
    sources, problems = Sources(ROOT / "skvi"), []
    for variant in VARIANTS:
        try:
            sources.find(variant)
        except PlaceError as error:
            problems.append(str(error))
        file, *names = variant.test.split("[")[0].split("::")
        path = ROOT / file
        text = path.read_text() if path.exists() else ""
        if not text or not all(f" {n}(" in text or f" {n}:" in text for n in names):
            problems.append(f"{variant.name}: there is no test {variant.test}.")
    assert not problems, "\n".join(problems)


def test_names_are_unique():
    counts = Counter(variant.name for variant in VARIANTS)
    assert max(counts.values()) == 1


def _mutate(tmp_path, where, find, put):
    (tmp_path / "_model.py").write_text(SOURCE)
    return Sources(tmp_path).mutate(Variant("", where, find, put, ""))[1]


@pytest.mark.parametrize(
    ("where", "find", "put", "line"),
    [
        ("Model.density", "0.5*z**2", "z**2", "half = z ** 2"),
        ("Model.density", "0.5 * (u ** 2)", "2 * u", "half = 2 * z"),
        ("density", "a = 0.5 * x**2", "a = x", "half = z"),
        ("Other.density", "-half - math.log(width)", "-half", "return -half"),
        ("_model.Model.density", "math.log(width)", "width", "return -half - width"),
    ],
)
def test_layout_and_names_of_locals_do_not_matter(tmp_path, where, find, put, line):
    lines = _mutate(tmp_path, where, find, put).splitlines()
    assert line in [text.strip() for text in lines]


@pytest.mark.parametrize(
    ("where", "find"),
    [
        ("Model.density", "0.5 * z**3"),
        ("Model.density", "0.5 * width**2"),  # another local, not the same renamed
        ("Model.density", "torch.log(width)"),  # a module is no local
        ("Model.tail", "0.5 * z**2"),  # twice
        ("Model.head", "0.5 * z**2"),
    ],
)
def test_other_code_is_not_the_place(tmp_path, where, find):
    with pytest.raises(PlaceError, match=r"times in .*instead of once"):
        _mutate(tmp_path, where, find, "0.0")
