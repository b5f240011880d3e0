"""Words and numbers beside the evidence bounds."""

import math
from collections.abc import Mapping

from skvi.evidence import EvidenceBounds
from skvi.evidence._result import FROM_TARGET
from skvi.utils._decimals import n_decimals

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
    """The ends that `print` shows; an end that is not known is left out."""
    low, _, high = bounds.stated()
    digits = n_decimals(high - low)
    ends = [f"{end - origin:.{digits}f}" for end in (low, high)]
    if not math.isfinite(low):
        text = f"at most {ends[1]}" if math.isfinite(high) else "unknown"
    elif not math.isfinite(high):
        text = f"at least {ends[0]}"
    else:
        text = f"{ends[0]} to {ends[1]}" if low < high else ends[0]
    return text.replace("-", "\N{MINUS SIGN}")  # as on the axis
