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
    from skvi._predictive._pipelines import (
        predict_interval,
        predict_log_density,
        predict_proba_interval,
        predict_quantiles,
        predict_uncertainty,
        sample_y,
        summary,
    )
    from skvi._stream import stream
    from skvi.evidence._fitted import evidence_bounds
    from skvi.utils._trust import trusted_types

__version__ = "0.1.0"
__all__ = [
    "evidence_bounds",
    "predict_interval",
    "predict_log_density",
    "predict_proba_interval",
    "predict_quantiles",
    "predict_uncertainty",
    "sample_y",
    "stream",
    "summary",
    "trusted_types",
]

# Homes of functions and classes at the top level; the others are in `_pipelines`.
_HOMES = {
    "evidence_bounds": "skvi.evidence._fitted",
    "stream": "skvi._stream",
    "trusted_types": "skvi.utils._trust",
}
_SUBMODULES = (
    "base",
    "changepoint",
    "divergences",
    "evidence",
    "exceptions",
    "gaussian_process",
    "inference",
    "kernels",
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
    "solvers",
    "targets",
    "testing",
)


def __getattr__(name: str) -> Any:
    """Import a subpackage, or a function, at its first use."""
    if name in _SUBMODULES:
        return import_module(f"skvi.{name}")
    if name in __all__:
        home = import_module(_HOMES.get(name, "skvi._predictive._pipelines"))
        function = vars(home)[name]
        globals()[name] = function
        return function
    raise AttributeError(f"module 'skvi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
