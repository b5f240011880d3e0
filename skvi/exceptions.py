"""Exceptions and warnings of skvi."""

__all__ = ["IncompatibleComponentsError", "NoOptimumError"]


class IncompatibleComponentsError(ValueError):
    """Two parts were combined that cannot work together.

    Raised before any training. The message names the parts, what is missing
    and what to use instead. It is a `ValueError`, so that a search with
    ``error_score=np.nan`` treats it like any other bad parameter.

    Examples
    --------
    >>> from skvi.exceptions import IncompatibleComponentsError
    >>> issubclass(IncompatibleComponentsError, ValueError)
    True
    """


class NoOptimumError(ValueError):
    """A fit ran away because what it minimises has no lowest value.

    Examples
    --------
    >>> from skvi.exceptions import NoOptimumError
    >>> issubclass(NoOptimumError, ValueError)
    True
    """
