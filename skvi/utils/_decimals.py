"""How many decimals an interval is printed with."""

import math

__all__ = ["n_decimals"]


def n_decimals(width: float) -> int:
    """Return the decimals that show two digits of a width, from 2 to 6.

    Parameters
    ----------
    width : float
        Nonnegative. Of 0, and of an infinite one, two decimals.

    Returns
    -------
    int

    Examples
    --------
    >>> from skvi.utils._decimals import n_decimals
    >>> n_decimals(12.0), n_decimals(0.06), n_decimals(0.0)
    (2, 3, 2)
    """
    if not 0 < width < math.inf:
        return 2
    return min(max(1 - math.floor(math.log10(width)), 2), 6)
