"""What displays have in common, and models as rows on one axis in nats."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from skvi.evidence import EvidenceBounds
from skvi.evidence._result import FROM_TARGET
from skvi.plotting import _rows as common
from skvi.utils._tables import n_decimals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito (2008): told apart by every kind of color vision.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK = "#E69F00", "#56B4E9", "#000000"
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, BLACK, SKY)


def check_matplotlib(caller: str) -> None:
    """Raise before any work where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{caller} needs matplotlib, which is not installed: "
            "pip install 'skvi[examples]'"
        ) from error


def make_axes(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    """Return the axes that were given, or those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def merge_style(defaults: dict, given: dict | None) -> dict:
    """Let the keywords of a line win over the defaults, aliases included."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    return normalize_kwargs(defaults, Line2D) | normalize_kwargs(given or {}, Line2D)


def final_estimator(estimator: Any) -> Any:
    """Return what a pipeline or a fitted search ends in."""
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "steps"):
            estimator = estimator.steps[-1][1]
        else:
            return estimator


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axes._secondary_axes import SecondaryAxis
    from matplotlib.container import BarContainer
    from matplotlib.lines import Line2D


# Probabilities that are printed as less than 0.1 %.
SMALL = 0.0005
# Characters of a parameter's value; of longer ones the class is named.
LONGEST = 40
# What a candidate is called that has no parameters of its own.
NO_DIFFERENCE = "model"
# After the name of a step in what describes the columns that it takes.
COLUMNS = " columns"


def draw_bars(
    ax: "Axes", lower: np.ndarray, upper: np.ndarray, given: dict | None
) -> "BarContainer":
    """Draw a bar in each row; the width is NaN where an end is not known."""
    style: dict = {"color": common.SKY, "edgecolor": common.BLUE, "height": 0.4}
    style |= {"label": "lower to upper bound", **(given or {})}
    lower, upper = finite(lower), finite(upper)
    return ax.barh(range(len(lower)), upper - lower, left=lower, **style)


def draw_whiskers(
    ax: "Axes", low: np.ndarray, high: np.ndarray, given: dict | None, label: str
) -> "Line2D | None":
    """Draw whiskers in the rows whose ends are finite; None if there are none."""
    rows = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
    if not len(rows):
        return None
    # A gap, made by NaN, between the lines of two rows.
    x = np.stack([low[rows], high[rows], np.full(len(rows), np.nan)], 1)
    style = {"color": common.BLACK, "marker": "|", "linewidth": 1.2}
    style |= {"markersize": 9, "label": label}
    y = np.repeat(rows.astype(float), 3)
    return ax.plot(x.ravel(), y, **common.merge_style(style, given))[0]


def draw_marks(
    ax: "Axes", x: np.ndarray, rows: Any, given: dict | None, **style: Any
) -> "Line2D":
    """Draw one mark in each of some rows: diamonds, unless the style says otherwise."""
    style = {"marker": "D", "markersize": 5, "zorder": 3, **style}
    style = common.merge_style({"linestyle": "none", **style}, given)
    return ax.plot(finite(x), rows, **style)[0]


def label_rows(
    ax: "Axes", quantity: str, names: Sequence[str], printed: Sequence[str] | None
) -> "SecondaryAxis | None":
    """Label the axes and the rows, the first on top; print numbers on the right."""
    n = len(names)
    ax.set(xlabel=f"{quantity} [nats]", ylim=(n - 0.4, -0.6))
    ax.set_yticks(range(n), names)
    ax.ticklabel_format(axis="x", style="plain", useOffset=False)
    # Few enough ticks that long numbers do not overlap.
    ax.locator_params(axis="x", nbins=6)
    labels = ax.xaxis.get_major_formatter().format_ticks(list(ax.get_xticks()))
    if max(map(len, labels), default=0) > 8:
        ax.locator_params(axis="x", nbins=3)
    ax.grid(axis="y", color="0.92")
    ax.set_axisbelow(True)
    # The pad, in font sizes, leaves room for tick labels and axis label.
    place: dict = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0)}
    ax.legend(**place, borderaxespad=4.2, ncols=2, frameon=False)
    if printed is None:
        return None
    axis = ax.secondary_yaxis("right")
    axis.set_yticks(range(n), printed)
    axis.tick_params(length=0)
    return axis


def finite(values: np.ndarray) -> np.ndarray:
    """Replace infinities by NaN, which matplotlib leaves out."""
    return np.where(np.isfinite(values), values, np.nan)


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
        or NO_DIFFERENCE
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
    """Short names of values by their repr, with differences if they would be equal."""
    different = {repr(value): value for value in values}
    short = {key: _value(value) for key, value in different.items()}
    for name in set(short.values()):
        same = [key for key, other in short.items() if other == name]
        if len(same) > 1:
            ends = _differences([different[key] for key in same])
            short |= {key: name + end for key, end in zip(same, ends, strict=True)}
    return short


def _differences(values: Sequence[Any]) -> list[str]:
    """What tells values apart: columns, parameters, entries; or else numbers."""
    found: list[str] = []
    if all(hasattr(v, "get_params") and not isinstance(v, type) for v in values):
        parts = [_parts(value) for value in values]
        common = {key for key in parts[0] if all(key in part for part in parts)}
        columns = [{k: v for k, v in p.items() if k.endswith(COLUMNS)} for p in parts]
        shared = [{k: part[k] for k in common} for part in parts]
        both = [a | b for a, b in zip(shared, columns, strict=True)]
        tries = map(describe_candidates, (columns, shared, both))
        good = (t for t in tries if len(set(t) - {NO_DIFFERENCE}) == len(values))
        found = next(good, [])
        found = [f"({text})" for text in found]
    elif all(isinstance(value, (list, tuple, np.ndarray)) for value in values):
        texts = [[str(entry) for entry in value] for value in values]
        same = set.intersection(*map(set, texts))
        found = ["".join(f" + {t}" for t in text if t not in same) for text in texts]
    elif all(type(value).__name__ == "make_column_selector" for value in values):
        given = [{k: x for k, x in vars(v).items() if x is not None} for v in values]
        found = [f"({text})" for text in describe_candidates(given)]
    if len(set(found)) == len(values):
        return found
    return [f" {number}" for number in range(1, len(values) + 1)]


def _parts(value: Any) -> dict[str, Any]:
    """Parameters of an object and of those in it, and the columns that these take."""
    found: dict[str, Any] = {}
    for key, entry in value.get_params(deep=True).items():
        is_list = isinstance(entry, (list, tuple)) and len(entry) > 0
        if is_list and all(isinstance(step, tuple) for step in entry):
            found[key] = "+".join(str(step[0]) for step in entry)
            found |= {f"{step[0]}{COLUMNS}": step[2] for step in entry if step[2:]}
        else:
            found[key] = type(entry) if hasattr(entry, "get_params") else entry
    return found


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
    value = f"{estimate:.{n_decimals(width)}f}".replace("-", "\N{MINUS SIGN}")
    value = "unknown" if math.isnan(estimate) else value
    ends = [_per_cent(low), _per_cent(high)]
    is_one = ends[0] == ends[1] or high < SMALL
    probability = ends[1] if is_one else f"{ends[0]} to {ends[1]}"
    return f"{value}   ({probability} %)"


def _per_cent(value: float) -> str:
    if value < SMALL:
        return "<0.1" if value else "0"
    return f"{100 * value:.3g}" if value <= 1 - SMALL else "100"


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
