"""Names of the types that a stored estimator consists of."""

from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

import torch
from sklearn.gaussian_process import kernels

KERNELS = "sklearn.gaussian_process.kernels."
# Containers, and what a search by cross-validation keeps.
OTHERS = (
    "collections.deque",
    "sklearn.metrics._scorer._PassthroughScorer",
    "sklearn.model_selection._split.KFold",
    "sklearn.model_selection._split.StratifiedKFold",
    "torch.Size",
)


def trusted_types() -> list[str]:
    """Names of the types that skops and MLflow have to trust to load an estimator.

    Returns
    -------
    list of str
        All classes of skvi, the layers of ``torch.nn``, which the modules of networks
        consist of, scikit-learn's kernels, and a few containers. Functions and classes
        of your own are not among them: add their names if you trust the file.

    Notes
    -----
    While it loads a file, skops then makes objects of these classes and of those that
    it trusts by itself, with any attributes, and executes no other code than theirs.
    What the objects do is determined by their attributes: a fit writes to its
    `checkpoint_path`, for example.

    Examples
    --------
    >>> import skvi
    >>> "skvi.linear_model._linear.BayesianLinearRegression" in skvi.trusted_types()
    True
    """
    root = import_module(__name__.partition(".")[0])
    found = walk_packages(root.__path__, f"{root.__name__}.")
    modules = (import_module(module.name) for module in found)
    own = {name for module in modules for name in _classes(module, "skvi.")}
    others = _classes(torch.nn, "torch.nn.modules."), _classes(kernels, KERNELS)
    return sorted({*own, *others[0], *others[1], *OTHERS})


def _classes(module: ModuleType, prefix: str) -> list[str]:
    """Names of the classes of a module that are defined below a prefix."""
    kinds = (value for value in vars(module).values() if isinstance(value, type))
    names = (f"{kind.__module__}.{kind.__name__}" for kind in kinds)
    return [name for name in names if name.startswith(prefix)]
