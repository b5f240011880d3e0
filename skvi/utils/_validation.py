"""The only imports of scikit-learn's private helpers."""

from sklearn.base import _fit_context
from sklearn.utils import _safe_indexing
from sklearn.utils._param_validation import (
    Interval,
    InvalidParameterError,
    StrOptions,
    validate_parameter_constraints,
)
from sklearn.utils.validation import _check_sample_weight

__all__ = [
    "Interval",
    "InvalidParameterError",
    "StrOptions",
    "_check_sample_weight",
    "_fit_context",
    "_safe_indexing",
    "validate_arguments",
]


def validate_arguments(caller: str, values: dict, constraints: dict) -> None:
    """Check the arguments of a method as scikit-learn checks parameters."""
    validate_parameter_constraints(constraints, values, caller_name=caller)
