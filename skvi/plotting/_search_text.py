"""Words and numbers beside the models of a search."""

import math
from collections.abc import Sequence

from skvi.utils._decimals import n_decimals

MINUS = "\N{MINUS SIGN}"
# Probabilities that are printed as less than 0.1 %.
SMALL = 0.0005


def describe_candidates(params: Sequence[dict]) -> list[str]:
    """Name candidates by the parameters in which they differ, without their steps."""
    keys = sorted({key for candidate in params for key in candidate})
    shown = [
        key for key in keys if len({repr(c.get(key, "...")) for c in params}) > 1
    ] or keys
    short = {key: key.rpartition("__")[2] for key in shown}
    if len(set(short.values())) < len(short):
        short = {key: key for key in shown}
    return [
        ", ".join(f"{short[key]}={_value(c[key])}" for key in shown if key in c)
        or "model"
        for c in params
    ]


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def row_text(estimate: float, width: float, low: float, high: float) -> str:
    """Estimate, as it is printed, and the interval of the probability in percent."""
    value = f"{estimate:.{n_decimals(width)}f}".replace("-", MINUS)
    value = "unknown" if math.isnan(estimate) else value
    ends = [_per_cent(low), _per_cent(high)]
    is_one = ends[0] == ends[1] or high < SMALL
    probability = ends[1] if is_one else f"{ends[0]} to {ends[1]}"
    return f"{value}   ({probability} %)"


def _per_cent(value: float) -> str:
    if value < SMALL:
        return "<0.1" if value else "0"
    return f"{100 * value:.3g}" if value <= 1 - SMALL else "100"
