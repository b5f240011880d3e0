"""Tables that are computed once, and tables that are shown."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

# Maximum number of rows that are shown.
MAX_PRINTED = 40


def table(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Cache up to `maxsize` results of a function, for use in every mode of torch.

    Tensors made in inference mode can never be part of a graph.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        return lru_cache(maxsize)(torch.inference_mode(False)(function))  # type: ignore[return-value]

    return decorate


def n_decimals(width: float) -> int:
    """Return the decimals, 2 to 6, that show two digits of a width (2 for 0, inf)."""
    if not 0 < width < math.inf:
        return 2
    return min(max(1 - math.floor(math.log10(width)), 2), 6)


def as_html(columns: Mapping[str, Sequence], title: str = "", *notes: str) -> str:
    """Table of named columns in HTML, between a title and notes; numbers have 5 digits.

    For the method `_repr_html_`, which notebooks call.
    """
    rows = list(zip(*columns.values(), strict=True))
    if len(rows) > MAX_PRINTED:
        notes = f"... and {len(rows) - MAX_PRINTED} more", *notes
    lines = [_tags("th", columns), *(_tags("td", row) for row in rows[:MAX_PRINTED])]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    above, *below = (f"<p>{escape(x)}</p>" if x else "" for x in (title, *notes))
    return f"{above}<table>{body}</table>{''.join(below)}"


def _tags(tag: str, cells: Iterable) -> str:
    texts = (f"{x:.5g}" if isinstance(x, float) else str(x) for x in cells)
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)
