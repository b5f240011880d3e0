"""How many decimals an interval is printed with."""

import math

__all__ = ["n_decimals"]


def n_decimals(width: float) -> int:
    """Return the decimals, 2 to 6, that show two digits of a width (2 for 0, inf)."""
    if not 0 < width < math.inf:
        return 2
    return min(max(1 - math.floor(math.log10(width)), 2), 6)
