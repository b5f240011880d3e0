"""The evidence of every model of a search, and which ones are left."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skvi.plotting import _rows as common
from skvi.plotting._rows import (
    describe_candidates,
    draw_bars,
    draw_marks,
    draw_whiskers,
    label_rows,
    row_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


COLORS = {"best": common.GREEN, "not excluded": common.ORANGE, "excluded": common.BLUE}


class EvidenceSearchDisplay:
    """Bounds of the models of an `EvidenceSearch`, the best one on top.

    Each model has one row: a bar from the lower to the upper bound of its log
    evidence, whiskers that reach to the ends of its interval at the search's
    confidence level, and its estimate, colored by the decision. The dashed line is
    the rule of the decision: a model is excluded if its whole interval is to the left.
    Printed on the right are the estimate and the interval of the model's probability.
    Models whose bounds are not reliable are hollow; they have no whiskers, and cannot
    be excluded. Models far below the best one are arrows at the left edge.

    It is recommended to use `from_search`.

    Parameters
    ----------
    results : dict of str to array
        `EvidenceSearch.results_`.
    min_difference : float
        Nats.
    quantity : str, default="log evidence"
        What is bounded.
    names : sequence of str, default=None
        One for each candidate. None writes the parameters in which candidates differ.

    Attributes
    ----------
    rows_ : list of int
        Candidate that each row shows, from top to bottom.
    bars_ : matplotlib BarContainer
    whiskers_ : matplotlib Line2D or None
        None where no model is reliable.
    estimates_ : dict of str to matplotlib Line2D
        Those of the best model, of those that are not excluded, and so on.
    arrows_ : matplotlib Line2D or None
        Models that are farther to the left than the axis.
    threshold_ : matplotlib Line2D or None
        None if no model is reliable, and so none can exclude another.
    values_ : matplotlib SecondaryAxis or None
        The printed numbers.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    See Also
    --------
    EvidenceBoundsDisplay : Bounds of single models, with ELBO and EUBO of the fit.

    Notes
    -----
    Values are in nats, summed over the data. With prior weights of models, positions
    are log evidence plus log weight, as the decision is made by their sum.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> from skvi.model_selection import EvidenceSearch
    >>> from skvi.plotting import EvidenceSearchDisplay
    >>> X = np.random.default_rng(0).normal(size=(20, 2))
    >>> model = BayesianLinearRegression(prior="normal", noise_scale=1.0)
    >>> search = EvidenceSearch(model, {"prior__scale": [0.1, 1.0]})
    >>> search = search.fit(X, X[:, 0])
    >>> display = EvidenceSearchDisplay.from_search(search, ax=Figure().subplots())
    >>> [label.get_text() for label in display.ax_.get_yticklabels()]
    ['scale=1', 'scale=0.1']
    """

    def __init__(
        self,
        results: Mapping[str, Any],
        min_difference: float,
        quantity: str = "log evidence",
        names: Sequence[str] | None = None,
    ) -> None:
        self.results = results
        self.min_difference = min_difference
        self.quantity = quantity
        self.names = names

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        max_models: int = 20,
        reach: float | None = 10.0,
        values: bool = True,
        bar_kwargs: dict | None = None,
        whisker_kwargs: dict | None = None,
        estimate_kwargs: dict | None = None,
        threshold_kwargs: dict | None = None,
    ) -> "EvidenceSearchDisplay":
        """Draw the bounds.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure, as high as the models need.
        max_models : int, default=20
            Only so many of the best models are drawn.
        reach : float, default=10.0
            Nats below the decision line that the axis shows; 10 are odds of 1 to
            22,000. None shows all.
        values : bool, default=True
            Whether to print estimates and probabilities on the right.
        bar_kwargs : dict, default=None
            Passed to ``Axes.barh``.
        whisker_kwargs, estimate_kwargs, threshold_kwargs : dict, default=None
            Passed to ``Axes.plot``.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            matplotlib is not installed.
        """
        common.check_matplotlib(f"{type(self).__name__}.plot")
        self.rows_ = self._order()[:max_models]
        ax = common.make_axes(ax, (7.6, 2.0 + 0.5 * len(self.rows_)))
        self.ax_, self.figure_ = ax, ax.figure
        column = self._column
        self.bars_ = draw_bars(ax, column("lower"), column("upper"), bar_kwargs)
        low, high = column("interval_lower"), column("interval_upper")
        label = "interval of the search"
        self.whiskers_ = draw_whiskers(ax, low, high, whisker_kwargs, label)
        self._draw_estimates(estimate_kwargs)
        self._draw_threshold(threshold_kwargs)
        self.arrows_ = self._limit(reach)
        quantity = self.quantity
        if np.any(self.results["log_prior"]):
            quantity += " + log prior weight"
        names = self.names or describe_candidates(self.results["params"])
        names = [names[row] for row in self.rows_]
        printed = self._printed() if values else None
        self.values_ = label_rows(ax, quantity, names, printed)
        return self

    def _order(self) -> list[int]:
        """One candidate for each model that has an evidence, the best first."""
        model, rank = self.results["model"], self.results["rank_evidence"]
        first = [row for row, index in enumerate(model) if row == index]
        return sorted(first, key=lambda row: rank[row])

    def _column(self, name: str, shifted: bool = True) -> np.ndarray:
        values = np.asarray(self.results[name])[self.rows_]
        if not shifted:
            return values
        values = values + np.asarray(self.results["log_prior"])[self.rows_]
        return np.where(np.isfinite(values), values, np.nan)

    def _states(self) -> list[str]:
        left = self._column("contender", False)
        states = ["best", *np.where(left[1:], "not excluded", "excluded")]
        reliable = self._column("reliable", False)
        return [
            state if good else f"{state}, not reliable"
            for state, good in zip(states, reliable, strict=True)
        ]

    def _draw_estimates(self, given: dict | None) -> None:
        """One line for each state of models; hollow where bounds are not reliable."""
        x, states = self._column("estimate"), np.array(self._states())
        self.estimates_ = {}
        for state in dict.fromkeys(states):
            color, rows = COLORS[state.split(",")[0]], np.flatnonzero(states == state)
            style = {"color": color, "label": f"estimate: {state}"}
            style["markerfacecolor"] = color if state in COLORS else "white"
            line = draw_marks(self.ax_, x[rows], rows, given, **style)
            self.estimates_[state] = line

    def _draw_threshold(self, given: dict | None) -> None:
        low = self._column("interval_lower")
        self.threshold_ = None
        if np.isfinite(low).any() and len(low) > 1:
            style: dict = {"color": common.VERMILION, "linestyle": "--", "zorder": 0.5}
            style |= {"linewidth": 1.2, "label": "excluded if to the left"}
            style = common.merge_style(style, given)
            # The line is behind all bars, and spans the height for any number of rows.
            where = np.nanmax(low) - self.min_difference
            self.threshold_ = self.ax_.axvline(where, **style)

    def _limit(self, reach: float | None) -> "Line2D | None":
        """Cut the axis on the left, and mark the rows that are beyond."""
        names = "lower", "upper", "interval_lower", "interval_upper", "estimate"
        ends = np.concatenate([self._column(name) for name in names])
        top, bottom = np.nanmax(ends), np.nanmin(ends)
        edge = top
        if self.threshold_ is not None:
            edge = float(np.asarray(self.threshold_.get_xdata())[0])
            bottom = min(bottom, edge)
        cut = bottom if reach is None else max(bottom, edge - reach)
        pad = 0.06 * max(top - cut, 1e-6)
        self.ax_.set_xlim(cut - pad, top + pad)
        beyond = np.flatnonzero(self._column("estimate") < cut)
        if not len(beyond):
            return None
        style = {"color": COLORS["excluded"], "marker": "<", "markersize": 6}
        style |= {"clip_on": False, "label": "farther to the left"}
        x = np.full(len(beyond), cut - pad / 2)
        return draw_marks(self.ax_, x, beyond, None, **style)

    def _printed(self) -> list[str]:
        """Estimates, as precise as their bounds, and probabilities."""
        columns = [
            self._column("estimate", False),
            self._column("upper", False) - self._column("lower", False),
            self._column("probability_lower", False),
            self._column("probability_upper", False),
        ]
        return [row_text(*row) for row in zip(*columns, strict=True)]

    @classmethod
    def from_search(
        cls,
        search: Any,
        *,
        names: Sequence[str] | None = None,
        ax: "Axes | None" = None,
        **kwargs: Any,
    ) -> "EvidenceSearchDisplay":
        """Draw a fitted search.

        Parameters
        ----------
        search : EvidenceSearch
            Fitted.
        names : sequence of str, default=None
            One for each candidate. None writes the parameters in which candidates
            differ.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            Passed to `plot`.

        Returns
        -------
        EvidenceSearchDisplay

        Raises
        ------
        ImportError
            matplotlib is not installed.
        NotFittedError
            The search is not fitted.
        """
        common.check_matplotlib(f"{cls.__name__}.from_search")
        check_is_fitted(search, "results_")
        quantity = search.evidence_bounds_[search.best_index_].quantity
        display = cls(search.results_, search.min_difference, quantity, names)
        return display.plot(ax, **kwargs)
