"""What the tree costs its readers only falls: sizes.json has the largest allowed.

A change that needs more says so by writing the file anew: python -m tests.test_sizes
"""

import ast
import json
from collections import Counter
from pathlib import Path

import skvi

ROOT = Path(skvi.__file__).parent
STORED = Path(__file__).parent / "sizes.json"


def code_lines(source, tree):
    """Lines with code, without comments, docstrings and empty ones."""
    documented = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                first = node.body[0]
                documented.update(range(first.lineno, first.end_lineno + 1))
    lines = enumerate(source.splitlines(), 1)
    code = (i for i, line in lines if line.strip() and line.strip()[0] != "#")
    return len(set(code) - documented)


def is_number(node):
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    is_constant = isinstance(node, ast.Constant)
    return is_constant and type(node.value) in (int, float)


def constants(tree):
    """Numbers that a module gives names to."""
    count = 0
    for node in tree.body:
        value = getattr(node, "value", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign) or value is None:
            continue
        several = getattr(value, "elts", None) or getattr(value, "values", None)
        parts = several if several else [value]
        count += len(parts) if all(map(is_number, parts)) else 0
    return count


def imported(tree, names):
    """Modules of skvi that a module imports at its top level."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skvi"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in names else node.module)
    return found


def longest_chain(imports):
    """Modules in the longest chain of imports."""
    known = {}

    def depth(name, above=()):
        if name in above:
            return 0
        if name not in known:
            below = (depth(other, (*above, name)) for other in imports.get(name, ()))
            known[name] = 1 + max(below, default=0)
        return known[name]

    return max(map(depth, imports))


def sizes():
    """Code, files, constants and public names by folder, and the longest chain."""
    found = {name: Counter() for name in ("code", "files", "constants", "public")}
    modules = {}
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text()
        tree, folder = ast.parse(source), path.parent.relative_to(ROOT).as_posix()
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        modules[name.removesuffix(".__init__")] = tree
        found["code"][folder] += code_lines(source, tree)
        found["files"][folder] += 1
        found["constants"][folder] += constants(tree)
        if path.name == "__init__.py" and not path.parent.name.startswith("_"):
            for node in tree.body:
                names = [getattr(t, "id", "") for t in getattr(node, "targets", [])]
                if "__all__" in names and isinstance(node.value, ast.List):
                    found["public"][folder] += len(node.value.elts)
    imports = {name: imported(tree, modules) for name, tree in modules.items()}
    chain = {"longest": longest_chain(imports)}
    return {name: dict(by_folder) for name, by_folder in found.items()} | {
        "chain": chain
    }


def test_sizes_do_not_grow():
    """In total for code and constants; folders may take over from one another."""
    stored, now = json.loads(STORED.read_text()), sizes()
    total = {name: sum(by_folder.values()) for name, by_folder in now.items()}
    allowed = {name: sum(by_folder.values()) for name, by_folder in stored.items()}
    grown = {
        f"{name} {folder}": (stored[name].get(folder, 0), size)
        for name, by_folder in now.items()
        for folder, size in by_folder.items()
        if size > stored[name].get(folder, 0)
    }
    assert all(total[name] <= allowed[name] for name in total), grown


def store():
    """Write the sizes of the tree as it is."""
    STORED.write_text(json.dumps(sizes(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    store()
