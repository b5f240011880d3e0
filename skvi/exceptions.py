"""Exceptions and warnings of skvi."""

__all__ = ["IncompatibleComponentsError", "NoOptimumError", "SkviWarning"]


class IncompatibleComponentsError(ValueError):
    """Two components were combined that are incompatible.

    Raised before any training. The message names the components, what is missing and
    what to use instead. It is a `ValueError`, so that a search with
    ``error_score=np.nan`` treats it like any other bad parameter.

    Examples
    --------
    >>> from skvi.exceptions import IncompatibleComponentsError
    >>> issubclass(IncompatibleComponentsError, ValueError)
    True
    """


class NoOptimumError(ValueError):
    """A fit diverged because its objective is unbounded below.

    Examples
    --------
    >>> from skvi.exceptions import NoOptimumError
    >>> issubclass(NoOptimumError, ValueError)
    True
    """


class SkviWarning(UserWarning):
    """A fit converged, but its result may not be what was expected.

    Fits that did not converge, or whose numbers are in doubt, give a
    `sklearn.exceptions.ConvergenceWarning` instead.

    Examples
    --------
    >>> from skvi.exceptions import SkviWarning
    >>> issubclass(SkviWarning, UserWarning)
    True
    """
