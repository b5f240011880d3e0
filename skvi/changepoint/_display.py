"""Plot of a detector: series, changepoints, run lengths, models, predictions."""

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from skvi.changepoint._records import AROUND, nearby_sums
from skvi.plotting import _rows as common

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Pixels of the image of run lengths: more rows or lengths than that share one.
PIXELS_WIDE, PIXELS_HIGH = 800, 200
# Less probable run lengths are white.
FAINTEST = 1e-4
# Series that are drawn; more hide each other.
MOST_SERIES = 5


class ChangepointDisplay:
    """Visualization of a series and of what a detector found, in stacked panels.

    The series with its predictions and changepoints, shaded where they may be; the
    probability of every row to begin a segment, and (light) the expected changes within
    5 rows of it, at most 1; the posterior of the run length after every row, in gray on
    a logarithmic scale from 0.0001 (white) to 1 (black); and, if there are several
    models, their probabilities.

    It is recommended to use `from_estimator`.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_series)
        The series.
    detector : BayesianChangepointDetector
        Detector fitted to this series.
    index : array-like of shape (n_samples,), default=None
        Positions of the rows on the x axis, such as dates; None: their numbers.

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes
        Panels from the top: series, changes, run lengths and, if there are several
        models, models.
    figure_ : matplotlib Figure

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint import BayesianChangepointDetector, ChangepointDisplay
    >>> X = np.random.default_rng(0).standard_normal((100, 1))
    >>> X[60:] += 4.0
    >>> detector = BayesianChangepointDetector().fit(X)
    >>> display = ChangepointDisplay.from_estimator(detector, X)
    >>> [ax.get_ylabel() for ax in display.axes_]
    ['series', 'P(change)', 'run length', 'P(model)']
    """

    def __init__(
        self, X: ArrayLike, detector: Any, *, index: ArrayLike | None = None
    ) -> None:
        self.X = X
        self.detector = detector
        self.index = index

    @classmethod
    def from_estimator(
        cls,
        detector: Any,
        X: ArrayLike,
        *,
        axes: "np.ndarray | None" = None,
        name: str | None = None,
        show_predictions: bool = True,
    ) -> "ChangepointDisplay":
        """Draw a fitted detector and its series.

        Parameters
        ----------
        detector : BayesianChangepointDetector
            Fitted.
        X : array-like of shape (n_samples, n_features)
            The rows of the fit, or the last ones of a stream. The index of a
            DataFrame becomes the x axis.
        axes : sequence of matplotlib Axes, default=None
            Axes to draw on, one for each panel; None creates a new figure.
        name : str, default=None
            Title.
        show_predictions : bool, default=True
            Whether to draw one-step predictions, with bands of 1.64 standard
            deviations to either side.

        Returns
        -------
        ChangepointDisplay

        Raises
        ------
        ImportError
            matplotlib is not installed.
        NotFittedError
            The detector is not fitted.
        ValueError
            X has other rows than those that the detector knows.
        """
        common.check_matplotlib(f"{cls.__name__}.from_estimator")
        check_is_fitted(detector)
        index = getattr(X, "index", None)
        index = None if callable(index) else index
        series = np.asarray(X, dtype=float)
        series = series.reshape(len(series), -1)[:, detector._series]
        display = cls(series, detector, index=index)
        return display.plot(axes, name=name, show_predictions=show_predictions)

    def plot(
        self,
        axes: "np.ndarray | None" = None,
        *,
        name: str | None = None,
        show_predictions: bool = True,
    ) -> Self:
        """Draw the panels.

        Parameters
        ----------
        axes : sequence of matplotlib Axes, default=None
            Axes to draw on, one for each panel; None creates a new figure.
        name : str, default=None
            Title.
        show_predictions : bool, default=True
            Whether to draw one-step predictions with their bands.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            matplotlib is not installed.
        ValueError
            X has other rows than those that the detector knows.
        """
        common.check_matplotlib(f"{type(self).__name__}.plot")
        detector, X = self.detector, np.asarray(self.X, dtype=float)
        n_known = len(detector.log_densities_)
        if len(X) > n_known:
            raise ValueError(
                f"X has {len(X)} rows, but the detector knows {n_known}: pass the rows "
                "of the fit, or the last ones of a stream."
            )
        self._rows = slice(n_known - len(X), n_known)
        self._x = np.arange(detector.n_rows_seen_ - len(X), detector.n_rows_seen_)
        if self.index is not None:
            self._x = np.asarray(self.index)
        n_panels = 3 + (len(detector.models_) > 1)
        if axes is None:
            import matplotlib.pyplot as plt

            ratios = [3, 1, 2, 1][:n_panels]
            _, axes = plt.subplots(
                n_panels,
                sharex=True,
                figsize=(9.0, 1.1 * sum(ratios) + 0.8),
                height_ratios=ratios,
                layout="constrained",
            )
        self.axes_ = np.asarray(axes)
        self.figure_ = self.axes_[0].figure
        self._draw_series(self.axes_[0], X, show_predictions)
        self._draw_changes(self.axes_[1])
        self._draw_run_lengths(self.axes_[2])
        if n_panels > 3:
            self._draw_models(self.axes_[3])
        self.axes_[0].set_title(name or "")
        self.axes_[-1].set_xlabel("row" if self.index is None else "")
        for ax in self.axes_ if len(X) > 1 else ():
            ax.set_xlim(self._x[0], self._x[-1])
        return self

    def _changes(self) -> np.ndarray:
        """Positions of visible changepoints and their intervals, (n_changes, 3)."""
        table, first = (
            self.detector.summary(),
            self.detector.n_rows_seen_ - len(self._x),
        )
        places = np.column_stack([table.row, table.low, table.high]) - first
        return self._x[np.maximum(places[places[:, 0] >= 0], 0)]

    def _draw_series(self, ax: "Axes", X: np.ndarray, predictions: bool) -> None:
        shown = X[:, :MOST_SERIES]
        many = len(X) > 1000
        seen = shown[np.isfinite(shown)]
        for j, column in enumerate(shown.T):
            color = common.COLORS[j] if shown.shape[1] > 1 else common.BLACK
            ax.plot(self._x, column, color=color, lw=0.5 if many else 0.9, zorder=2)
            if predictions and shown.shape[1] == 1:
                mean = self.detector.predictions_[self._rows, j]
                std = self.detector.prediction_stds_[self._rows, j]
                style = {"color": common.SKY, "zorder": 1}
                low, high = mean - 1.64 * std, mean + 1.64 * std
                style["label"] = "90 % prediction"
                ax.fill_between(self._x, low, high, alpha=0.4, lw=0, **style)
        for i, (x, low, high) in enumerate(self._changes()):
            style = {"color": common.VERMILION, "lw": 1.2, "ls": "--", "zorder": 3}
            ax.axvline(x, label="" if i else "changepoint", **style)
            ax.axvspan(low, high, color=common.VERMILION, alpha=0.15, lw=0, zorder=0)
        if len(seen):  # bands of the first rows are as wide as the prior
            room = 0.08 * max(np.ptp(seen), 1e-12)
            ax.set_ylim(seen.min() - room, seen.max() + room)
        label = "series"
        if X.shape[1] > MOST_SERIES:
            label = f"{MOST_SERIES} of {X.shape[1]} series"
        ax.set_ylabel(label)
        put_legend(ax)

    def _draw_changes(self, ax: "Axes") -> None:
        probability = self.detector.change_probability_[self._rows]
        around = np.minimum(nearby_sums(self.detector.change_probability_), 1.0)
        near = {"color": common.SKY, "label": f"within {AROUND} rows"}
        ax.fill_between(self._x, around[self._rows], alpha=0.5, lw=0, **near)
        ax.vlines(
            self._x, 0, probability, color=common.BLUE, lw=1.5, label="at the row"
        )
        ax.set(ylim=(0, 1.02), ylabel="P(change)")
        put_legend(ax)

    def _draw_run_lengths(self, ax: "Axes") -> None:
        from matplotlib.colors import LogNorm

        image, top = self._image()
        edges = np.linspace(0, len(self._x) - 1, image.shape[1] + 1)
        x = self._x[edges.round().astype(int)]
        heights = np.linspace(0, top, image.shape[0] + 1)
        norm = LogNorm(FAINTEST, 1)
        ax.pcolormesh(
            x, heights, image, cmap="Greys", norm=norm, rasterized=True, zorder=0
        )
        ax.set(ylabel="run length", ylim=(0, top))

    def _image(self) -> tuple[np.ndarray, int]:
        """Largest probability of the run lengths and rows within a pixel."""
        records = self.detector._stream.records
        posteriors = list(records.posteriors)[-len(self._x) :]
        offset = len(self._x) - len(posteriors)
        n = self.detector.n_rows_seen_ - len(posteriors)
        lengths = [n + i + 1 - p.start for i, p in enumerate(posteriors)]
        likely = [
            length[p.probability > 0.01].max(initial=1)
            for length, p in zip(lengths, posteriors, strict=True)
        ]
        top = int(1.1 * max(likely, default=1)) + 1
        wide, high = min(len(self._x), PIXELS_WIDE), min(top, PIXELS_HIGH)
        image = np.zeros((high, wide))
        for i, (length, p) in enumerate(zip(lengths, posteriors, strict=True)):
            inside = length <= top
            row = (length[inside] - 1) * high // top
            column = (offset + i) * wide // len(self._x)
            np.maximum.at(image, (row, column), p.probability[inside])
        return np.clip(image, FAINTEST, 1), top

    def _draw_models(self, ax: "Axes") -> None:
        posterior = self.detector.model_posteriors_[self._rows]
        names = [str(model) for model in self.detector.models_]
        colors = [common.COLORS[i % MOST_SERIES] for i in range(len(names))]
        ax.stackplot(self._x, posterior.T, labels=names, colors=colors, lw=0)
        ax.set(ylim=(0, 1), ylabel="P(model)")
        put_legend(ax)


def put_legend(ax: "Axes") -> None:
    """Put a legend to the right of the panel, if it has entries."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="x-small")
