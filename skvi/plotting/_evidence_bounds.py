"""The evidence sandwich of one or several models."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from skvi.evidence import EvidenceBounds
from skvi.evidence._fitted import evidence_bounds
from skvi.plotting import _rows as common
from skvi.plotting._rows import (
    check_quantity,
    draw_bars,
    draw_marks,
    draw_whiskers,
    finite,
    interval_text,
    label_rows,
    row_label,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


class EvidenceBoundsDisplay:
    """Evidence bounds: where the log evidence of each model lies.

    Each model has one row: a bar from the lower to the upper bound, whiskers of two
    standard errors, and the (bridge) estimate. Below the bar, arrow heads point at
    the ELBO and the EUBO of the fitted posterior. The interval with its whiskers is
    printed on the right, since on an axis that holds several models it can be too
    narrow to be seen. Where bounds are not reliable the row is labeled so, and shows
    what ``print(bounds)`` does: bounds that always hold, in a hollow, hatched bar if
    there is one on each side; no whiskers and no estimate.

    It is recommended to use `from_estimator` or `from_bounds`.

    Parameters
    ----------
    bounds : dict of str to EvidenceBounds
        Name of each model and its bounds, from top to bottom.

    Attributes
    ----------
    bars_ : matplotlib BarContainer
        From lower to upper bound; the width is NaN where an end is not known.
    whiskers_ : matplotlib Line2D or None
        ``interval(2)`` of the reliable ones; None where there are none.
    estimates_ : matplotlib Line2D
        Bridge estimates; NaN where the bounds are not reliable.
    elbo_, eubo_ : matplotlib Line2D or None
        ELBO and EUBO of the fitted posteriors; None where no table has them.
    values_ : matplotlib SecondaryAxis or None
        The printed intervals.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    See Also
    --------
    skvi.evidence_bounds : The numbers.
    LossCurveDisplay : How a fit proceeded.

    Notes
    -----
    Values are in nats, summed over the data. Only evidences of the same y, with
    the same quantity, may be compared; the display can check the quantity alone.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from skvi.evidence import EvidenceBounds
    >>> from skvi.plotting import EvidenceBoundsDisplay
    >>> bounds = EvidenceBounds(
    ...     lower=-7.2,
    ...     upper=-7.1,
    ...     lower_se=0.01,
    ...     upper_se=0.01,
    ...     estimate=-7.15,
    ...     gap=0.1,
    ...     ess=900.0,
    ...     khat=0.2,
    ...     reliable=True,
    ...     reason="",
    ...     method="importance",
    ... )
    >>> display = EvidenceBoundsDisplay({"model": bounds}).plot(Figure().subplots())
    >>> display.ax_.get_xlabel()
    'log evidence [nats]'
    """

    def __init__(self, bounds: Mapping[str, EvidenceBounds]) -> None:
        self.bounds = bounds

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        reference: str | None = None,
        fit_bounds: bool = True,
        values: bool = True,
        bar_kwargs: dict | None = None,
        whisker_kwargs: dict | None = None,
        estimate_kwargs: dict | None = None,
        fit_kwargs: dict | None = None,
    ) -> "EvidenceBoundsDisplay":
        """Draw the bounds.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None creates a new figure of suitable height.
        reference : str, default=None
            Name of a model whose estimate is subtracted from all numbers, so that small
            differences between models, and their errors, are visible.
        fit_bounds : bool, default=True
            Whether to show ELBO and EUBO of the fitted posteriors. They can be far
            from the evidence, and then widen the axis.
        values : bool, default=True
            Whether to print the intervals on the right.
        bar_kwargs : dict, default=None
            Passed to ``Axes.barh``.
        whisker_kwargs, estimate_kwargs, fit_kwargs : dict, default=None
            Passed to ``Axes.plot``.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            matplotlib is not installed.
        ValueError
            There are no bounds, or they bound different quantities, or there is no
            model of the name `reference`.
        TypeError
            A value is something else than `EvidenceBounds`.
        """
        common.check_matplotlib(f"{type(self).__name__}.plot")
        quantity = check_quantity(self.bounds)
        origin = 0.0
        if reference is not None:
            if reference not in self.bounds:
                raise ValueError(
                    f"reference must be one of {list(self.bounds)}. Got {reference!r}."
                )
            origin = self.bounds[reference].estimate
            quantity += f" minus that of {reference}"
        found = list(self.bounds.values())
        ax = common.make_axes(ax, (7.6, 2.0 + 0.5 * len(found)))
        self.ax_, self.figure_ = ax, ax.figure
        lower, upper = np.array([_ends(one) for one in found]).T - origin
        self.bars_ = draw_bars(ax, lower, upper, bar_kwargs)
        self._mark_unreliable_bars()
        where = "± 2 standard errors" + (", printed on the right" if values else "")
        nothing = math.nan, math.nan
        ends = [one.interval(2.0) if one.reliable else nothing for one in found]
        low, high = np.array(ends).T - origin
        self.whiskers_ = draw_whiskers(ax, low, high, whisker_kwargs, where)
        x = finite(np.array([one.stated()[1] for one in found]) - origin)
        label = "_no estimate" if np.isnan(x).all() else "estimate"
        style = {"color": common.BLACK, "markerfacecolor": "white", "label": label}
        self.estimates_ = draw_marks(ax, x, range(len(x)), estimate_kwargs, **style)
        self.elbo_ = self.eubo_ = None
        if fit_bounds:
            from matplotlib.markers import CARETLEFT, CARETRIGHT

            # The tips of the heads are at the values, and never cover each other.
            self.elbo_ = self._draw_fit("ELBO", CARETRIGHT, origin, fit_kwargs)
            self.eubo_ = self._draw_fit("EUBO", CARETLEFT, origin, fit_kwargs)
        # Bars would end the axis at their own ends, through the marks of the first row.
        ax.use_sticky_edges = False
        ax.margins(x=0.04)
        names = [row_label(*item) for item in self.bounds.items()]
        printed = [interval_text(one, origin) for one in found]
        self.values_ = label_rows(ax, quantity, names, printed if values else None)
        return self

    def _mark_unreliable_bars(self) -> None:
        """Hollow bars, and one entry of the legend for each kind."""
        reliable = [bounds.reliable for bounds in self.bounds.values()]
        for bar, is_reliable in zip(self.bars_, reliable, strict=True):
            if not is_reliable:
                bar.set(facecolor="none", hatch="/////", linestyle="--")
        self.bars_.set_label("_bars")
        for kind, label in ((True, "lower to upper bound"), (False, "not reliable")):
            if kind in reliable:
                self.bars_[reliable.index(kind)].set_label(label)

    def _draw_fit(
        self, name: str, marker: int, origin: float, given: dict | None
    ) -> "Line2D | None":
        """Arrow heads below the bars, at a bound of the fitted posteriors."""
        found = [
            (bounds.table[f"{name} of q"].value - origin, row + 0.34)
            for row, bounds in enumerate(self.bounds.values())
            if f"{name} of q" in bounds.table
        ]
        if not found:
            return None
        style: dict = {"color": common.VERMILION, "marker": marker, "markersize": 7}
        style |= {"label": f"{name} of the fit", "zorder": 2}
        x, rows = np.array(found).T
        return draw_marks(self.ax_, x, rows, given, **style)

    @classmethod
    def from_bounds(
        cls,
        bounds: EvidenceBounds | Mapping[str, EvidenceBounds],
        *,
        name: str = "model",
        ax: "Axes | None" = None,
        **kwargs: Any,
    ) -> "EvidenceBoundsDisplay":
        """Draw bounds that have been computed.

        Parameters
        ----------
        bounds : EvidenceBounds or dict of str to EvidenceBounds
            Bounds of one model, or of several ones by name.
        name : str, default="model"
            Name of a single model.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            Passed to `plot`.

        Returns
        -------
        EvidenceBoundsDisplay

        Raises
        ------
        ImportError
            matplotlib is not installed.
        ValueError
            There are no bounds, or they bound different quantities.
        TypeError
            A value is something else than `EvidenceBounds`.
        """
        if not isinstance(bounds, Mapping):
            bounds = {name: bounds}
        return cls(dict(bounds)).plot(ax, **kwargs)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        name: str | None = None,
        ax: "Axes | None" = None,
        plot_kwargs: dict | None = None,
        **options: Any,
    ) -> "EvidenceBoundsDisplay":
        """Compute the bounds of a fitted estimator and draw them.

        Parameters
        ----------
        estimator : estimator, Pipeline or search, fitted
            It ends in an estimator with the method ``evidence_bounds``.
        X : array-like of shape (n_samples, n_features)
            The training features, before a pipeline's transformations.
        y : array-like of shape (n_samples,)
            The training target.
        name : str, default=None
            Name of the row; None is that of the estimator's class.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        plot_kwargs : dict, default=None
            Passed to `plot`.
        **options : dict
            Passed to `skvi.evidence_bounds`: ``sample_weight``, ``precision``,
            ``n_draws``, ``method``, ``random_state``,
            ``allow_supervised_transformers``.

        Returns
        -------
        EvidenceBoundsDisplay

        Raises
        ------
        ImportError
            matplotlib is not installed.
        NotFittedError
            The estimator is not fitted.
        TypeError
            There is no method ``evidence_bounds``.
        """
        common.check_matplotlib(f"{cls.__name__}.from_estimator")
        bounds = evidence_bounds(estimator, X, y, **options)
        if name is None:
            name = type(common.final_estimator(estimator)).__name__
        return cls({name: bounds}).plot(ax, **plot_kwargs or {})


def _ends(bounds: EvidenceBounds) -> tuple[float, float]:
    """Both bounds, or those that always hold if these are not reliable."""
    if bounds.reliable:
        return bounds.lower, bounds.upper
    low, _, high = bounds.stated()
    return low, high
