"""The importance weights behind evidence bounds."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from skvi.evidence import EvidenceBounds
from skvi.evidence._estimates import WeightSummary
from skvi.evidence._fitted import evidence_bounds
from skvi.plotting import _rows as common

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


SIDES = {
    "lower": ("lower side", common.BLUE, "o"),
    "upper": ("upper side", common.VERMILION, "s"),
}


class WeightsDisplay:
    """Importance weights: whether few draws carry the evidence bounds.

    The largest weights of each side by rank, divided by their sum, on logarithmic axes.
    Points below the dotted line of their color are fine: it is the heaviest tail for
    which errors can be trusted (the line through the points is the fitted Pareto tail,
    of shape k). If the first point lies far above the others, one draw decides. The
    legend gives the fraction of the total weight that the largest draw has.

    It is recommended to use `from_estimator` or `from_bounds`.

    Parameters
    ----------
    weights : dict of str to WeightSummary
        As in ``EvidenceBounds.weights``.
    reliable : bool, default=True
        Whether the bounds are; an unreliable result is named in the title.

    Attributes
    ----------
    lines_ : dict of str to matplotlib Line2D
        Points of each side.
    fits_ : dict of str to matplotlib Line2D
        The fitted Pareto tails.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    See Also
    --------
    EvidenceBoundsDisplay : The bounds.
    skvi.evidence_bounds : The numbers.

    Notes
    -----
    The lower side looks at large weights, the upper side at large inverse weights. In
    importance sampling the upper side has a density of its own in place of the
    proposal, chosen for light tails.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from sklearn.datasets import load_iris
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> from skvi.plotting import WeightsDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> model = BayesianLogisticRegression(prior="normal").fit(X[:100], y[:100])
    >>> bounds = model.evidence_bounds(X[:100], y[:100], random_state=0)
    >>> display = WeightsDisplay.from_bounds(bounds, ax=Figure().subplots())
    >>> display.ax_.get_xlabel()
    'rank of the weight'
    """

    def __init__(
        self, weights: dict[str, WeightSummary], *, reliable: bool = True
    ) -> None:
        self.weights = weights
        self.reliable = reliable

    def plot(self, ax: "Axes | None" = None, **kwargs: Any) -> "WeightsDisplay":
        """Draw the weights.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            Passed to ``Axes.plot`` for both sides.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            matplotlib is not installed.
        ValueError
            There are no weights.
        """
        common.check_matplotlib(f"{type(self).__name__}.plot")
        if not self.weights:
            raise ValueError(
                "These bounds have no weights to judge: they are exact, or were not "
                "computed, or are sums. Of several targets, draw those of each of "
                "`outputs_`; for prior='auto', whose scale is integrated out, those of "
                "a prior with a fixed scale near `prior_scale_`, such as Normal(1.0)."
            )
        ax = common.make_axes(ax, (6.4, 4.2))
        self.ax_, self.figure_ = ax, ax.figure
        self.lines_: dict[str, Line2D] = {}
        self.fits_: dict[str, Line2D] = {}
        self._draw_tails(kwargs)
        place: dict = {
            "alignment": "left",
            "loc": "lower left",
            "bbox_to_anchor": (0, 1),
            "frameon": False,
        }
        title = None if self.reliable else "The bounds are not reliable."
        legend = ax.legend(fontsize="small", title=title, **place)
        legend.get_title().set_color(common.VERMILION)
        return self

    def _draw_tails(self, given: dict) -> None:
        from matplotlib.ticker import LogLocator

        for side, (label, color, marker) in SIDES.items():
            found = self.weights[side]
            style: dict = {"color": color, "marker": marker, "linestyle": "none"}
            style |= {"markersize": 3.5, "markerfacecolor": "none"}
            style["label"] = _legend_text(label, found)
            (self.lines_[side],) = self.ax_.plot(
                found.ranks, found.tail, **common.merge_style(style, given)
            )
            if math.isfinite(found.khat):
                fit = _pareto_tail(found, found.khat)
                (self.fits_[side],) = self.ax_.plot(found.ranks, fit, color=color)
                limit = _pareto_tail(found, found.khat_limit)
                self.ax_.plot(found.ranks, limit, color=color, linestyle=":")
        label = "points below this line of their color: errors can be trusted"
        self.ax_.plot([], [], color="0.4", linestyle=":", label=label)
        self.ax_.set(xscale="log", yscale="log")
        # Labels of all minor ticks would overlap.
        self.ax_.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        self.ax_.set(xlabel="rank of the weight", ylabel="fraction of total weight [%]")
        for axis in (
            self.ax_.yaxis.set_major_formatter,
            self.ax_.yaxis.set_minor_formatter,
        ):
            axis(lambda value, _: f"{100 * value:.2g}")

    @classmethod
    def from_bounds(
        cls, bounds: EvidenceBounds, *, ax: "Axes | None" = None, **kwargs: Any
    ) -> "WeightsDisplay":
        """Draw the weights behind bounds that have been computed.

        Parameters
        ----------
        bounds : EvidenceBounds
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            Passed to `plot`.

        Returns
        -------
        WeightsDisplay

        Raises
        ------
        ImportError
            matplotlib is not installed.
        ValueError
            The bounds were computed without weights.
        """
        return cls(bounds.weights, reliable=bounds.reliable).plot(ax, **kwargs)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        ax: "Axes | None" = None,
        plot_kwargs: dict | None = None,
        **options: Any,
    ) -> "WeightsDisplay":
        """Bound the evidence of a fitted estimator and draw the weights.

        Parameters
        ----------
        estimator : estimator, Pipeline or search, fitted
            It ends in an estimator with the method ``evidence_bounds``.
        X : array-like of shape (n_samples, n_features)
            The training features, before a pipeline's transformations.
        y : array-like of shape (n_samples,)
            The training target.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        plot_kwargs : dict, default=None
            Passed to `plot`.
        **options : dict
            Passed to ``evidence_bounds``: ``sample_weight``, ``precision``,
            ``n_draws``, ``method``, ``random_state``.

        Returns
        -------
        WeightsDisplay

        Raises
        ------
        ImportError
            matplotlib is not installed.
        NotFittedError
            The estimator is not fitted.
        TypeError
            There is no method ``evidence_bounds``.
        ValueError
            The evidence is exact: there are no weights.
        """
        common.check_matplotlib(f"{cls.__name__}.from_estimator")
        bounds = evidence_bounds(estimator, X, y, **options)
        return cls.from_bounds(bounds, ax=ax, **plot_kwargs or {})


def _pareto_tail(found: WeightSummary, k: float) -> np.ndarray:
    """Quantiles of a generalized Pareto tail with the median of the observed one."""
    cutoff, n_tail = found.tail[-1], found.ranks[-1]
    upper = 1 - (found.ranks - 0.5) / n_tail
    excess = max(float(np.interp(n_tail / 2, found.ranks, found.tail)) - cutoff, 0.0)
    return cutoff + excess * _unit_quantile(upper, k) / _unit_quantile(0.5, k)


def _unit_quantile(p: np.ndarray | float, k: float) -> np.ndarray:
    """Quantile of the generalized Pareto distribution with scale 1."""
    log_tail = -np.log1p(-np.asarray(p))
    return log_tail if abs(k) < 1e-9 else np.expm1(k * log_tail) / k


def _legend_text(side: str, found: WeightSummary) -> str:
    """What a reader needs to know about one side, without knowing Pareto's k."""
    largest = 100 * float(found.tail[0])
    # Weights none of which exceeds twice their mean need no tail to be judged by.
    is_fine = found.khat <= found.khat_limit or found.tail[0] * found.n_draws <= 2
    word = "fine" if is_fine else "few draws decide"
    return (
        f"{side}: {word}; the largest of {found.n_draws:,} draws has {largest:.2g} % "
        f"of the weight\n(worth {found.ess:,.0f} equal draws; "
        f"k = {found.khat:.2f}, at most {found.khat_limit:.2f})"
    )
