"""Wrong variants, and the code that they change: found in the syntax tree of skvi."""

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Variant:
    """One small change of the source that gives plausible wrong numbers.

    Parameters
    ----------
    name : str
        Unique.
    where : str
        A function, class or constant: its name, or as much of
        "folder._module.Class.method" as it takes to tell it from others.
    find, put : str
        An expression or a statement that occurs once in there, and its replacement;
        "" leaves a statement out.
    test : str
        The test that fails: a file or a node, as pytest names it.
    """

    name: str
    where: str
    find: str
    put: str
    test: str


class PlaceError(ValueError):
    """The code that a variant changes is not in skvi, or in several places."""


@dataclass(frozen=True)
class Place:
    """A node of a file, and its names for those that the variant was written with."""

    path: Path
    node: ast.AST
    names: dict[str, str]

    @property
    def is_exact(self) -> bool:
        """Whether no name differs."""
        return all(old == new for old, new in self.names.items())


class Sources:
    """The parsed files of a package, and what is defined where."""

    def __init__(self, root: Path):
        self.trees = {p: ast.parse(p.read_text()) for p in sorted(root.rglob("*.py"))}
        self.scopes: dict[str, list[tuple[str, ast.AST, Path]]] = {}
        for path, tree in self.trees.items():
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            for name, scope in _scopes(tree, module):
                last = name.split(".")[-1]
                self.scopes.setdefault(last, []).append((f".{name}", scope, path))

    def find(self, variant: Variant) -> Place:
        """Return the one place of a variant: as written, else with locals renamed.

        Where no scope of the whole name has it, the last name alone counts, since
        functions move.
        """
        pattern, last = _only(variant.find), variant.where.split(".")[-1]
        found = self._places(variant.where, pattern)
        if not found:
            found = [place for place in self._places(last, pattern) if place.is_exact]
        found = [place for place in found if place.is_exact] or found
        if len(found) != 1:
            raise PlaceError(
                f"{variant.name}: {variant.find!r} occurs {len(found)} times in "
                f"{variant.where}, instead of once. Carry the same mistake over to the "
                "present code, or replace the variant."
            )
        return found[0]

    def mutate(self, variant: Variant) -> tuple[Path, str]:
        """Return the file that a variant changes, and its source with the change."""
        place, copies = self.find(variant), {}
        put = _only(variant.put or "pass")
        for node in ast.walk(put):
            if isinstance(node, ast.Name):
                node.id = place.names.get(node.id, node.id)
        tree = deepcopy(self.trees[place.path], copies)
        tree = _Replace(copies[id(place.node)], put).visit(tree)
        return place.path, ast.unparse(tree)

    def _places(self, where: str, pattern: ast.AST) -> list[Place]:
        """Return the nodes that fit a pattern in all scopes of this name."""
        found = {
            node: Place(path, node, names)
            for name, scope, path in self.scopes.get(where.split(".")[-1], [])
            if name.endswith(f".{where}")
            for node, names in _fitting(pattern, scope)
        }
        return list(found.values())


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST):
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _only(source: str) -> ast.AST:
    """Parse one expression or one statement."""
    (statement,) = ast.parse(source).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def _scopes(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield functions, classes and assigned constants with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield f"{prefix}.{node.name}", node
            yield from _scopes(node, f"{prefix}.{node.name}")
        elif isinstance(node, ast.Assign) and not isinstance(tree, ast.FunctionDef):
            names = [target for target in node.targets if isinstance(target, ast.Name)]
            yield from ((f"{prefix}.{name.id}", node) for name in names)


def _fitting(pattern: ast.AST, scope: ast.AST) -> Iterator[tuple[ast.AST, dict]]:
    """Yield nodes equal to the pattern up to names of locals, with these names."""
    for node in ast.walk(scope):
        renamed: dict[str, str] = {}
        if _equal(pattern, node, renamed):
            changed = {old: new for old, new in renamed.items() if old != new}
            is_clear = len(set(renamed.values())) == len(renamed)
            if not changed or (is_clear and _are_locals(changed, scope)):
                yield node, renamed


def _are_locals(renamed: dict[str, str], scope: ast.AST) -> bool:
    """Whether a scope binds all new names, and has none of the old ones."""
    nodes = list(ast.walk(scope))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)} | arguments
    known = {node.id for node in names} | arguments
    return bound.issuperset(renamed.values()) and known.isdisjoint(renamed)


def _equal(a: object, b: object, renamed: dict[str, str]) -> bool:
    """Compare two trees, and note which name of the second is each of the first."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_equal, a, b, [renamed] * len(a)))
    if not isinstance(a, ast.AST):
        return a == b
    for field in a._fields:
        old, new = getattr(a, field, None), getattr(b, field, None)
        if isinstance(a, (ast.Name, ast.arg)) and field in ("id", "arg"):
            if renamed.setdefault(old, new) != new:
                return False
        elif not _equal(old, new, renamed):
            return False
    return True
