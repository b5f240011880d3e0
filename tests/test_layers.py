"""A module imports only from the layers below it, and parts never import each other."""

import ast
from pathlib import Path

import pytest

import skvi

# From low to high. The units of one layer are siblings: they do not import each other.
LAYERS = [
    # ground
    ["skvi.exceptions"],
    ["skvi.utils"],
    ["skvi.expectations"],
    ["skvi.base"],
    # parts
    [
        "skvi.divergences",
        "skvi.kernels",
        "skvi.likelihoods",
        "skvi.losses",
        "skvi.posteriors",
        "skvi.predictors",
        "skvi.priors",
    ],
    # machinery
    ["skvi.targets"],
    ["skvi.objectives"],
    ["skvi._sampling"],
    ["skvi.solvers"],
    ["skvi.evidence"],
    ["skvi.plotting", "skvi.metrics"],
    # glue
    ["skvi._predictive"],
    ["skvi._estimator", "skvi.testing"],
    # estimators
    [
        "skvi.changepoint",
        "skvi.linear_model",
        "skvi.neural_network",
        "skvi.model_selection",
    ],
    ["skvi._stream", "skvi.gaussian_process", "skvi.inference"],
    # the top level gathers the public names, so nothing inside may import it
    ["skvi"],
]
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}


def unit_of(module):
    """The module or package directly below skvi that a dotted name belongs to."""
    return ".".join(module.split(".")[:2])


def find_modules(package):
    """Every module of a package folder: dotted name -> path."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = path
    return modules


def find_imports(module, path, modules):
    """Yield (dotted name, line) of what a module imports, at any depth of its code."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                source = ".".join([*parents, source]).rstrip(".")
            for alias in node.names:  # `from skvi import losses` imports skvi.losses
                full = f"{source}.{alias.name}"
                yield full if full in modules else source, node.lineno


def find_violations(package):
    """One message for each import that does not point downwards."""
    modules = find_modules(package)
    unknown = sorted({unit_of(m) for m in modules} - LEVEL.keys())
    found = [f"{unit} has no layer: add it to LAYERS" for unit in unknown]
    for module, path in modules.items():
        here = unit_of(module)
        for name, line in find_imports(module, path, modules):
            there = unit_of(name)
            if there == here or not (here in LEVEL and there in LEVEL):
                continue
            if LEVEL[there] >= LEVEL[here]:
                kind = "a sibling" if LEVEL[there] == LEVEL[here] else "upwards"
                found.append(f"{module}:{line} imports {there}: {kind}")
    return found


def test_imports_point_downwards():
    assert find_violations(Path(skvi.__file__).parent) == []


@pytest.mark.parametrize(
    ("module", "code", "expected"),
    [
        ("base", "from skvi.exceptions import SkviWarning", []),
        ("utils/_x", "import numpy\nfrom skvi.utils import _y", []),
        ("evidence", "from skvi.solvers import solve", []),
        ("__init__", "from skvi.evidence import evidence_bounds", []),
        (
            "losses",
            "import torch\nfrom skvi.objectives import ELBO",
            ["skvi.losses:2 imports skvi.objectives: upwards"],
        ),
        (
            "losses/_robust",
            "def f():\n    import skvi.likelihoods as lk",
            ["skvi.losses._robust:2 imports skvi.likelihoods: a sibling"],
        ),
        (
            "divergences",
            "from skvi import base, priors",
            ["skvi.divergences:1 imports skvi.priors: a sibling"],
        ),
        (
            "utils/_x",
            "from skvi import __version__",
            ["skvi.utils._x:1 imports skvi: upwards"],
        ),
        (
            "solvers/_newton",
            "from ..evidence import bounds",
            ["skvi.solvers._newton:1 imports skvi.evidence: upwards"],
        ),
        ("novelty", "", ["skvi.novelty has no layer: add it to LAYERS"]),
    ],
)
def test_violations_are_found(tmp_path, module, code, expected):
    package = tmp_path / "skvi"
    for name in ["__init__", "base", "priors", module]:
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (package / f"{module}.py").write_text(code, encoding="utf-8")
    assert find_violations(package) == expected
