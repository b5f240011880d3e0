"""Exceptions and warnings of skvi."""

__all__ = ["IncompatibleComponentsError", "NoOptimumError", "SkviWarning"]


class IncompatibleComponentsError(ValueError):
    """Two components were combined that are incompatible.

    Raised before any training. It is a `ValueError`, so that a search with
    ``error_score=np.nan`` treats it like any other bad parameter.

    Parameters
    ----------
    part : str
        The component, as it was given.
    needs : str
        What it needs, and was given in its place.
    instead : str
        What to use instead.

    Examples
    --------
    >>> from skvi.exceptions import IncompatibleComponentsError
    >>> given = "loss='beta'", "counts; y has other values", "loss='log'"
    >>> str(IncompatibleComponentsError(*given))
    "loss='beta' needs counts; y has other values. Use loss='log'."
    """

    def __init__(self, part: str, needs: str, instead: str) -> None:
        super().__init__(part, needs, instead)

    def __str__(self) -> str:
        """One sentence for every refusal."""
        return "{} needs {}. Use {}.".format(*self.args)


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
