"""The evidence sandwich over training."""

from typing import TYPE_CHECKING, Any

import numpy as np

from skvi.evidence import NamedBound, TrainingRecord, record_training
from skvi.plotting import _common as common
from skvi.utils._random import RandomState
from skvi.utils._transformers import refuse_supervised
from skvi.utils._unwrap import unwrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

__all__ = ["TrainingSandwichDisplay"]

N_SE = 2.0
STYLES = {
    "ELBO": (common.BLUE, "-", "o"),
    "IW-ELBO": (common.SKY, "--", "v"),
    "IW-EUBO": (common.ORANGE, "--", "^"),
    "EUBO": (common.VERMILION, "-", "s"),
}
# The axis shows the later part of the fit, and at least so many nats.
EARLY_FRACTION, MIN_RANGE = 0.25, 0.2


class TrainingSandwichDisplay:
    """Evidence sandwich over training: bounds by the posteriors during a fit.

    ELBO and importance-weighted ELBO from below, EUBO and importance-weighted EUBO from
    above, with bands of two standard errors; across the picture the interval for the
    log evidence of the final ``evidence_bounds``, which does not depend on the fit.
    Where the curves stay apart at the end, the
    family cannot do better.

    It is recommended to use `from_estimator`.

    Parameters
    ----------
    record : TrainingRecord

    Attributes
    ----------
    lines_ : dict of str to matplotlib Line2D
        By the names of the bounds.
    bands_ : dict of str to matplotlib PolyCollection
        Bands of the bounds that have errors.
    interval_ : matplotlib Rectangle or None
        ``final.interval(2)``; None where the final bounds are not reliable.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    See Also
    --------
    LossCurveDisplay : What was minimized, without any extra cost.
    EvidenceBoundsDisplay : The final bounds of several models.

    Notes
    -----
    In nats, summed over the data. The upper bounds need posterior draws, from chains
    that are the same for all iterations, and are valid for the modes that these reach.
    If noise or prior scales are learned, all bounds are on the evidence at their
    *final* values. The axes leave out early iterations that would make them too wide.

    References
    ----------
    Figure 1 of the paper on the evidence upper bound (EUBO), whose upper curve is a
    self-normalized estimate that can fall below the evidence; these are not.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from sklearn.datasets import load_iris
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> from skvi.plotting import TrainingSandwichDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> model = BayesianLogisticRegression(prior="normal").fit(X[:100], y[:100])
    >>> display = TrainingSandwichDisplay.from_estimator(
    ...     model, X[:100], y[:100], random_state=0, ax=Figure().subplots()
    ... )
    >>> list(display.lines_)
    ['ELBO', 'IW-ELBO', 'IW-EUBO', 'EUBO']
    """

    def __init__(self, record: TrainingRecord) -> None:
        self.record = record

    def plot(
        self, ax: "Axes | None" = None, *, cut: bool = True, **kwargs: Any
    ) -> "TrainingSandwichDisplay":
        """Draw the bounds.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        cut : bool, default=True
            Whether bounds of the first quarter of the recorded iterations may lie
            outside the axes.
        **kwargs : dict
            Passed to ``Axes.plot`` for all bounds.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            matplotlib is not installed.
        """
        common.check_matplotlib(f"{type(self).__name__}.plot")
        ax = common.make_axes(ax, (6.8, 4.4))
        self.ax_, self.figure_ = ax, ax.figure
        self.lines_: dict[str, Line2D] = {}
        self.bands_: dict[str, PolyCollection] = {}
        x = np.asarray(self.record.iterations)
        for name, rows in self.record.bounds.items():
            self._draw_bound(x, name, rows, kwargs)
        self._draw_interval()
        if cut:
            self._cut(int(EARLY_FRACTION * len(x)))
        ax.set(xlabel=self.record.unit, ylabel=f"{self.record.final.quantity} [nats]")
        if x[-1] > 20:
            ax.set_xscale("log")
        else:
            ax.locator_params(axis="x", integer=True, min_n_ticks=1)
        ax.ticklabel_format(axis="y", useOffset=False)
        ax.legend(loc="best", fontsize="small")
        return self

    def _draw_bound(
        self, x: np.ndarray, name: str, rows: tuple[NamedBound, ...], given: dict
    ) -> None:
        values = np.array([row.value for row in rows])
        values = np.where(np.isfinite(values), values, np.nan)
        error = np.array([row.standard_error for row in rows])
        color, dash, marker = STYLES[name]
        style = {"color": color, "linestyle": dash, "marker": marker, "markersize": 4}
        k = "" if rows[-1].k is None else f" (K={rows[-1].k})"
        unsure = rows[0].direction == "upper" and not self.record.reliable
        style["label"] = f"{name}{k}" + (", not reliable" if unsure else "")
        if unsure:
            style["markerfacecolor"] = "none"
        (self.lines_[name],) = self.ax_.plot(
            x, values, **common.merge_style(style, given)
        )
        if error.any():
            ends = values - N_SE * error, values + N_SE * error
            self.bands_[name] = self.ax_.fill_between(
                x, *ends, color=color, alpha=0.2, linewidth=0
            )

    def _draw_interval(self) -> None:
        final, self.interval_ = self.record.final, None
        if final.reliable:
            low, high = final.interval(N_SE)
            self.interval_ = self.ax_.axhspan(
                low,
                high,
                color="0.6",
                alpha=0.6,
                zorder=0,
                label=f"{final.quantity}: {low:.2f} to {high:.2f}".replace(
                    "-", "\N{MINUS SIGN}"
                ),
            )
        self.ax_.axhline(
            final.estimate,
            color=common.BLACK,
            linewidth=0.8,
            zorder=1,
            label=None if final.reliable else "estimate, not reliable",
        )

    def _cut(self, first: int) -> None:
        """End the y axis beyond what is left of the bounds without early ones."""
        final = self.record.final
        later = [np.asarray(line.get_ydata())[first:] for line in self.lines_.values()]
        values = np.concatenate([*later, [final.lower, final.upper, final.estimate]])
        values = values[np.isfinite(values)]
        if len(values):
            low, high = values.min(), values.max()
            margin = max(0.06 * (high - low), (MIN_RANGE - high + low) / 2)
            self.ax_.set_ylim(low - margin, high + margin)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        n_points: int = 25,
        random_state: RandomState = None,
        allow_supervised_transformers: bool = False,
        ax: "Axes | None" = None,
        plot_kwargs: dict | None = None,
        **options: Any,
    ) -> "TrainingSandwichDisplay":
        """Fit a copy of an estimator, record it, and draw the bounds.

        Parameters
        ----------
        estimator : estimator, Pipeline or search
            It ends in an estimator with the method ``evidence_bounds``; a pipeline or a
            search must be fitted. The copy repeats the fit, exactly where the
            estimator's ``random_state`` is an int.
        X : array-like of shape (n_samples, n_features)
            The training features, before a pipeline's transformations.
        y : array-like of shape (n_samples,)
            The training target.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of rows in the fit.
        n_points : int, default=25
            Maximum number of iterations to record, with increasing distances.
        random_state : int, RandomState instance or None, default=None
            Seeds the draws behind the bounds.
        allow_supervised_transformers : bool, default=False
            See `skvi.evidence_bounds`.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        plot_kwargs : dict, default=None
            Passed to `plot`.
        **options : dict
            Passed to ``evidence_bounds``: ``precision``, ``n_draws``, ``method``.

        Returns
        -------
        TrainingSandwichDisplay

        Raises
        ------
        ImportError
            matplotlib is not installed.
        TypeError
            There is no method ``evidence_bounds``.
        ValueError
            A transformer of a pipeline uses y.
        """
        common.check_matplotlib(f"{cls.__name__}.from_estimator")
        if not allow_supervised_transformers:
            refuse_supervised(estimator)
        advice = "Pass an estimator of skvi, or a Pipeline or search with one."
        found, X = unwrap(estimator, X, "evidence_bounds", advice)
        record = record_training(
            found,
            X,
            y,
            sample_weight=sample_weight,
            n_points=n_points,
            random_state=random_state,
            **options,
        )
        return cls(record).plot(ax, **plot_kwargs or {})
