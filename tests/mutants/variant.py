"""A named wrong variant: one small change of the source that gives wrong numbers."""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Variant:
    """One change.

    Parameters
    ----------
    name : str
        Unique.
    file : str
        Relative to skvi/.
    original, replacement : str
        The original occurs exactly once in the file.
    wrong : str
        A few words on what is wrong.
    """

    name: str
    file: str
    original: str
    replacement: str
    wrong: str

    def apply(self, source: str) -> str:
        """Change the source of the file."""
        count = source.count(self.original)
        if count != 1:
            raise ValueError(
                f"Variant {self.name!r}: its original occurs {count} times in "
                f"skvi/{self.file}, instead of once. Carry the variant over to the "
                "present source, or replace it."
            )
        return source.replace(self.original, self.replacement)

    def lines(self, root: Path) -> range:
        """Numbers of the lines of the statement that is changed."""
        source = (root / "skvi" / self.file).read_text()
        self.apply(source)
        first = 1 + source[: source.index(self.original)].count("\n")
        last = first + self.original.count("\n")
        spans = [_span(node) for node in ast.walk(ast.parse(source))]
        around = [s for s in spans if s and s.start <= first and last < s.stop]
        return min(around, key=len, default=range(first, last + 1))

    def is_in_function(self, root: Path) -> bool:
        """Whether calls execute the statement; else the first import does."""
        source, line = (root / "skvi" / self.file).read_text(), self.lines(root).start
        return any(
            isinstance(node, ast.FunctionDef) and node.body[0].lineno <= line
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.stmt) and line <= (node.end_lineno or 0)
        )


def _span(node: ast.AST) -> range | None:
    """Lines of a statement, of a compound one those before its body."""
    if not isinstance(node, ast.stmt):
        return None
    body = getattr(node, "body", None)
    if body:
        return range(node.lineno, max(body[0].lineno, node.lineno + 1))
    return range(node.lineno, node.end_lineno + 1)


def variants_of(folder: str) -> Callable[[str, str, str, str, str], Variant]:
    """Return a short way to write variants of the files of a folder of skvi."""

    def make(
        name: str, file: str, original: str, replacement: str, wrong: str
    ) -> Variant:
        return Variant(name, f"{folder}{file}", original, replacement, wrong)

    return make
