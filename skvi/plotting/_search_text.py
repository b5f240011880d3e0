"""Words and numbers beside the models of a search."""

import math
from collections.abc import Sequence

from skvi.utils._decimals import n_decimals

MINUS = "\N{MINUS SIGN}"
# Probabilities that are printed as less than 0.1 %.
SMALL = 0.0005
# Characters of a parameter's value; of longer ones the class is named.
LONGEST = 40


def describe_candidates(params: Sequence[dict]) -> list[str]:
    """Name candidates by the parameters in which they differ, without their steps."""
    keys = sorted({key for candidate in params for key in candidate})
    shown = [
        key for key in keys if len({repr(c.get(key, "...")) for c in params}) > 1
    ] or keys
    short = {key: _short_key(key, shown) for key in shown}
    names = {key: _names([c[key] for c in params if key in c]) for key in shown}
    return [
        ", ".join(f"{short[k]}={names[k][repr(c[k])]}" for k in shown if k in c)
        or "model"
        for c in params
    ]


def _short_key(key: str, keys: Sequence[str]) -> str:
    """As many of the last parts of a nested name as tell it from the others."""
    parts = key.split("__")
    ends = ("__".join(parts[-size:]) for size in range(1, len(parts)))
    others = [f"__{other}" for other in keys if other != key]
    unique = (e for e in ends if not any(o.endswith(f"__{e}") for o in others))
    return next(unique, key)


def _names(values: Sequence[object]) -> dict[str, str]:
    """Short names of values by their repr; numbered if they would be equal."""
    short = {repr(value): _value(value) for value in values}
    together = list(short.values())
    count = dict.fromkeys(together, 0)
    for key, name in short.items():
        count[name] += 1
        if together.count(name) > 1:
            short[key] = f"{name} {count[name]}"
    return short


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if hasattr(value, "__name__"):  # functions and classes
        return str(value.__name__)
    text = " ".join(str(value).split())
    if len(text) <= LONGEST:
        return text
    is_plain = isinstance(value, (str, dict, list, tuple))
    return f"{text[: LONGEST - 3]}..." if is_plain else type(value).__name__


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
