"""The importance weights behind evidence bounds."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from skvi.evidence import EvidenceBounds, WeightSummary, evidence_bounds
from skvi.plotting import _common as common

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = ["WeightsDisplay"]

KINDS = ("tail", "histogram")
SIDES = {
    "lower": ("lower side", common.BLUE, "o"),
    "upper": ("upper side", common.VERMILION, "s"),
}


class WeightsDisplay:
    """Importance weights: whether few draws carry the evidence bounds.

    Two kinds of pictures. "tail": the largest weights of each side by rank, divided by
    their sum, on logarithmic axes. Points below the dotted line of their color are
    fine: it is the heaviest tail for which errors can be trusted (the line through the
    points is the fitted Pareto tail, of shape k). If the first point lies far above the
    others, one draw decides. The legend gives the fraction of the total weight that the
    largest draw has.

    "histogram": the log weights ``log p(D, theta) - log r(theta)`` of draws of the
    proposal r and of posterior draws. The two densities differ by the factor exp(log
    weight) / p(D): they cross at the log evidence, which is marked. Where they do not
    overlap, no estimate can be trusted.

    It is recommended to use `from_estimator` or `from_bounds`.

    Parameters
    ----------
    weights : dict of str to WeightSummary
        As in ``EvidenceBounds.weights``.
    estimate : float, default=None
        The log evidence, to be marked in the histogram.
    reliable : bool, default=True
        Whether the bounds are; an unreliable result is named in the title.

    Attributes
    ----------
    lines_ : dict of str to matplotlib Line2D
        Points ("tail") or steps ("histogram") of each side.
    fits_ : dict of str to matplotlib Line2D
        The fitted Pareto tails; empty for histograms.
    estimate_ : matplotlib Line2D or None
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
    proposal, chosen for light tails; the histogram shows the posterior draws with the
    proposal's density, which is what crosses. With annealing both sides go the same
    path.

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
        self,
        weights: dict[str, WeightSummary],
        *,
        estimate: float | None = None,
        reliable: bool = True,
    ) -> None:
        self.weights = weights
        self.estimate = estimate
        self.reliable = reliable

    def plot(
        self, ax: "Axes | None" = None, *, kind: str = "tail", **kwargs: Any
    ) -> "WeightsDisplay":
        """Draw the weights.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        kind : {"tail", "histogram"}, default="tail"
        **kwargs : dict
            Passed to ``Axes.plot`` (``Axes.stairs`` for histograms) for both sides.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            matplotlib is not installed.
        ValueError
            There are no weights, or no such kind.
        """
        common.check_matplotlib(f"{type(self).__name__}.plot")
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {KINDS}. Got {kind!r}.")
        if not self.weights:
            raise ValueError(
                "These bounds have no weights to judge: they are exact, or were not "
                "computed, or are sums. Of several targets, draw those of each of "
                "`outputs_`; for prior='auto', whose scale is integrated out, those of "
                "a prior with a fixed scale near `prior_scale_`, such as Normal(1.0)."
            )
        ax = common.make_axes(ax, (6.4, 4.2))
        self.ax_, self.figure_ = ax, ax.figure
        self.lines_: dict[str, Artist] = {}
        self.fits_: dict[str, Line2D] = {}
        self.estimate_: Line2D | None = None
        (self._draw_tails if kind == "tail" else self._draw_histograms)(kwargs)
        columns = 1 if kind == "tail" else 3
        place: dict = {
            "alignment": "left",
            "loc": "lower left",
            "bbox_to_anchor": (0, 1),
            "frameon": False,
        }
        verdict = None if self.reliable else "The bounds are not reliable."
        legend = ax.legend(fontsize="small", title=verdict, ncols=columns, **place)
        legend.get_title().set_color(common.VERMILION)
        return self

    def _draw_tails(self, given: dict) -> None:
        from matplotlib.ticker import LogLocator

        for side, (label, color, marker) in SIDES.items():
            found = self.weights[side]
            style: dict = {"color": color, "marker": marker, "linestyle": "none"}
            style |= {"markersize": 3.5, "markerfacecolor": "none"}
            style["label"] = _say(label, found)
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

    def _draw_histograms(self, given: dict) -> None:
        names = {
            "lower": ("draws of the proposal", common.BLUE, "-"),
            "bridge": ("posterior draws", common.VERMILION, "--"),
        }
        for side, (label, color, dash) in names.items():
            found = self.weights[side]
            style = {"color": color, "linestyle": dash, "linewidth": 1.5}
            self.lines_[side] = self.ax_.stairs(
                found.density, found.edges, **{**style, "label": label, **given}
            )
        if self.estimate is not None and math.isfinite(self.estimate):
            self.estimate_ = self.ax_.axvline(
                self.estimate, color=common.BLACK, linewidth=1, label="log evidence"
            )
        self.ax_.set(xlabel="log weight [nats]", ylabel="density [1 / nat]")
        self.ax_.ticklabel_format(axis="x", style="plain", useOffset=False)
        self.ax_.locator_params(axis="x", nbins=6)

    @classmethod
    def from_bounds(
        cls,
        bounds: EvidenceBounds,
        *,
        kind: str = "tail",
        ax: "Axes | None" = None,
        **kwargs: Any,
    ) -> "WeightsDisplay":
        """Draw the weights behind bounds that have been computed.

        Parameters
        ----------
        bounds : EvidenceBounds
        kind : {"tail", "histogram"}, default="tail"
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
        display = cls(
            bounds.weights, estimate=bounds.estimate, reliable=bounds.reliable
        )
        return display.plot(ax, kind=kind, **kwargs)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        kind: str = "tail",
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
        kind : {"tail", "histogram"}, default="tail"
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
        return cls.from_bounds(bounds, kind=kind, ax=ax, **plot_kwargs or {})


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


def _say(side: str, found: WeightSummary) -> str:
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
