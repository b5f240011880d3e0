"""Models as rows on one axis in nats: bars, whiskers, marks and printed numbers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from skvi.plotting import _common as common

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axes._secondary_axes import SecondaryAxis
    from matplotlib.container import BarContainer
    from matplotlib.lines import Line2D

__all__ = ["draw_bars", "draw_marks", "draw_whiskers", "finite", "label_rows"]


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
