"""The estimators of the package, for whoever wants to try all of them."""

from importlib import import_module

from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    RegressorMixin,
    TransformerMixin,
)

from skvi.utils._validation import StrOptions, validate_arguments

KINDS = {
    "classifier": ClassifierMixin,
    "regressor": RegressorMixin,
    "transformer": TransformerMixin,
}


def all_estimators(type_filter: str | None = None) -> list[tuple[str, type]]:
    """List the estimators of skvi, as `sklearn.utils.discovery.all_estimators` does.

    Parameters
    ----------
    type_filter : {"classifier", "regressor", "transformer"} or None, default=None
        None lists all of them, searches and detectors included.

    Returns
    -------
    list of tuple of str and class
        By name.

    Examples
    --------
    >>> from skvi.utils import all_estimators
    >>> [name for name, _ in all_estimators("transformer")]
    ['BayesianChangepointDetector', 'GroupedFeatures', 'SubsetSearch']
    """
    allowed = {"type_filter": [None, StrOptions(set(KINDS))]}
    validate_arguments("all_estimators", {"type_filter": type_filter}, allowed)
    kind = KINDS.get(type_filter or "", BaseEstimator)
    found: dict[str, type] = {}
    for package in import_module("skvi")._SUBMODULES:
        module = import_module(f"skvi.{package}")
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) and hasattr(value, "fit"):
                found[name] = value
    bases = {base for value in found.values() for base in value.__mro__[1:]}
    return sorted(
        (name, value)
        for name, value in found.items()
        if issubclass(value, kind) and value not in bases
    )
