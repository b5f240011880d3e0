"""skvi: scikit-learn compatible variational inference.

Subpackages are imported when they are first used: ``import skvi`` alone costs nothing,
and ``skvi.metrics`` needs no import of its own.

Examples
--------
>>> import skvi
>>> skvi.linear_model.BayesianLogisticRegression()
BayesianLogisticRegression()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skvi.evidence import evidence_bounds

__version__ = "0.1.0"
__all__ = ["__version__", "evidence_bounds"]

_SUBMODULES = (
    "base",
    "changepoint",
    "divergences",
    "evidence",
    "exceptions",
    "likelihoods",
    "linear_model",
    "losses",
    "metrics",
    "model_selection",
    "neural_network",
    "objectives",
    "plotting",
    "posteriors",
    "predictors",
    "priors",
    "sampling",
    "solvers",
    "targets",
    "testing",
)


def __getattr__(name: str) -> Any:
    """Import a subpackage, or the function `evidence_bounds`, at its first use."""
    if name in _SUBMODULES:
        return import_module(f"skvi.{name}")
    if name == "evidence_bounds":
        function = import_module("skvi.evidence").evidence_bounds
        globals()[name] = function
        return function
    raise AttributeError(f"module 'skvi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
