"""The only imports of scikit-learn's private helpers."""

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils import _safe_indexing
from sklearn.utils._param_validation import (
    Interval,
    InvalidParameterError,
    validate_parameter_constraints,
)
from sklearn.utils._param_validation import StrOptions as _StrOptions
from sklearn.utils.validation import _check_sample_weight

__all__ = [
    "Interval",
    "InvalidParameterError",
    "StrOptions",
    "_check_sample_weight",
    "_fit_context",
    "_safe_indexing",
    "refuse_dates",
    "validate_arguments",
]


class StrOptions(_StrOptions):
    """One of a set of strings, which messages name in alphabetical order.

    Sets of strings have another order in every process.
    """

    def __str__(self) -> str:
        """Name the options."""
        return f"a str among {{{', '.join(map(repr, sorted(self.options)))}}}"


def validate_arguments(caller: str, values: dict, constraints: dict) -> None:
    """Check the arguments of a method as scikit-learn checks parameters."""
    validate_parameter_constraints(constraints, values, caller_name=caller)


def refuse_dates(X: object) -> None:
    """Raise where columns are dates or durations, which would become nanoseconds."""
    types = getattr(X, "dtypes", getattr(X, "dtype", None))  # of whoever made X
    names = [str(one) for one in np.atleast_1d(np.array(types, dtype=object))]
    dates = [n for n in names if n.lower().startswith(("date", "timedelta", "dura"))]
    if dates:
        raise ValueError(
            f"X has {len(dates)} column(s) of dates or durations ({dates[0]}). Give "
            "numbers that mean something: days since a first day, the month, the "
            "weekday."
        )
