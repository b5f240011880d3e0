"""Words and numbers beside the evidence bounds."""

import math
from collections.abc import Mapping

from skvi.evidence import FROM_TARGET, EvidenceBounds

N_SE = 2.0


def check_quantity(bounds: Mapping[str, EvidenceBounds]) -> str:
    """Return what all candidates bound."""
    if not bounds:
        raise ValueError("There are no bounds to draw: give at least one.")
    for name, value in bounds.items():
        if not isinstance(value, EvidenceBounds):
            raise TypeError(
                f"bounds[{name!r}] must be EvidenceBounds, as evidence_bounds returns "
                f"them. Got {type(value).__name__}."
            )
    quantities = {name: value.quantity for name, value in bounds.items()}
    if len(set(quantities.values())) > 1:
        raise ValueError(
            f"The bounds are of different quantities: {quantities}. They have no "
            "common unit; draw them in separate figures."
        )
    return next(iter(quantities.values()))


def row_label(name: str, bounds: EvidenceBounds) -> str:
    """Name a model, with what a reader must know about its bounds."""
    notes = [] if bounds.reliable else ["not reliable"]
    learned = [name for name in bounds.plug_in if name not in FROM_TARGET]
    if learned:
        notes.append(f"given learned {', '.join(learned)}")
    if len(learned) < len(bounds.plug_in):
        notes.append("prior made from y")
    return f"{name}\n({'; '.join(notes)})" if notes else name


def interval_text(bounds: EvidenceBounds, origin: float = 0.0) -> str:
    """Print an interval to two digits of its width; unreliable ones in brackets."""
    # Standard errors mean nothing where the bounds are not reliable.
    low, high = bounds.lower, bounds.upper
    if bounds.reliable:
        low, high = bounds.interval(N_SE)
    low, high = low - origin, high - origin
    width = abs(high - low)
    digits = 2
    if math.isfinite(width) and width > 0:
        digits = min(max(1 - math.floor(math.log10(width)), 0), 6)
    text = f"{low:.{digits}f} to {high:.{digits}f}" if width else f"{low:.{digits}f}"
    text = text.replace("-", "\N{MINUS SIGN}")  # as on the axis
    return text if bounds.reliable else f"({text})"
