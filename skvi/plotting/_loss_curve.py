"""The minimized quantity over the iterations of a fit."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from skvi.plotting import _rows as common
from skvi.utils._tables import n_decimals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


GID = "skvi loss curve: "
# Lines differ in color, dashes and end marker: any one of them would do.
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class LossCurveDisplay:
    """Loss curve: the quantity that a fit minimized, over its iterations.

    It is recommended to use `from_estimator`.

    Parameters
    ----------
    loss_curve : array-like of shape (n_iter,)
        The minimized quantity after every iteration, in nats.
    name : str, default=None
        Name in the legend.
    loss_name : str, default="minimized quantity"
        What is minimized; the label of the y axis, where the unit is added.
    iteration_name : str, default="iteration"
        Label of the x axis.

    Attributes
    ----------
    line_ : matplotlib Line2D
        The curve, with a marker at its last value.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    See Also
    --------
    EvidenceBoundsDisplay : What the fitted models are worth.

    Notes
    -----
    Values are in nats, summed over the data. Those of a stochastic solver are
    estimates from draws and go up and down; those of the other solvers are
    computed by quadrature.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from skvi.plotting import LossCurveDisplay
    >>> display = LossCurveDisplay([90.0, 56.0, 55.5], name="fit")
    >>> display.plot(Figure().subplots()).line_.get_label()
    'fit: from 90.00 to 55.50'
    """

    def __init__(
        self,
        loss_curve: ArrayLike,
        *,
        name: str | None = None,
        loss_name: str = "minimized quantity",
        iteration_name: str = "iteration",
    ) -> None:
        self.loss_curve = loss_curve
        self.name = name
        self.loss_name = loss_name
        self.iteration_name = iteration_name

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        name: str | None = None,
        cut: bool = True,
        **kwargs: Any,
    ) -> "LossCurveDisplay":
        """Draw the curve.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure. Curves of the same quantity may
            go into the same axes.
        name : str, default=None
            Name in the legend; None is that of the display.
        cut : bool, default=True
            Whether large early values may be cut off: where all values need more
            than 5 times the height of those after the first quarter of the
            iterations (and of 1 nat), the y axis ends above the later ones. The
            first value stands in the legend in any case.
        **kwargs : dict
            Passed to ``Axes.plot``.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            matplotlib is not installed.
        ValueError
            The curve has no values, or the axes hold a curve of another quantity.
        """
        common.check_matplotlib(f"{type(self).__name__}.plot")
        values = np.asarray(self.loss_curve, dtype=float)
        if values.ndim != 1 or not len(values):
            raise ValueError(
                "loss_curve must have one dimension and at least one value; its "
                f"shape is {values.shape}."
            )
        drawn = self._drawn_before(ax)
        ax = common.make_axes(ax, (6.4, 4.0))
        style = common.merge_style(_style(len(drawn)), kwargs)
        style.setdefault("label", _label(name or self.name, values))
        (self.line_,) = ax.plot(1 + np.arange(len(values)), values, **style)
        self.line_.set_gid(GID + self.loss_name)
        _set_limits(ax, [*drawn, self.line_], cut)
        ax.set(xlabel=self.iteration_name, ylabel=f"{self.loss_name} [nats]")
        ax.locator_params(axis="x", integer=True, min_n_ticks=1)
        ax.ticklabel_format(axis="y", useOffset=False)
        ax.legend(loc="best")
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _drawn_before(self, ax: "Axes | None") -> "list[Line2D]":
        """Loss curves on the axes, all of the same quantity."""
        lines = [] if ax is None else ax.get_lines()
        lines = [line for line in lines if (line.get_gid() or "").startswith(GID)]
        for line in lines:
            other = (line.get_gid() or "").removeprefix(GID)
            if other != self.loss_name:
                raise ValueError(
                    f"The axes show {other!r}, and this curve is {self.loss_name!r}: "
                    "they cannot be compared. Draw it in other axes."
                )
        return lines

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        name: str | None = None,
        ax: "Axes | None" = None,
        cut: bool = True,
        **kwargs: Any,
    ) -> "LossCurveDisplay":
        """Draw the loss curve of a fitted estimator.

        Parameters
        ----------
        estimator : estimator, Pipeline or search, fitted
            It ends in an estimator of skvi.
        name : str, default=None
            Name in the legend; None is that of the estimator's class.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        cut : bool, default=True
            Whether large early values may be cut off, see `plot`.
        **kwargs : dict
            Passed to ``Axes.plot``.

        Returns
        -------
        LossCurveDisplay

        Raises
        ------
        ImportError
            matplotlib is not installed.
        NotFittedError
            The estimator is not fitted.
        TypeError
            The estimator has no loss curve in nats.

        Examples
        --------
        >>> from matplotlib.figure import Figure
        >>> from sklearn.datasets import load_breast_cancer
        >>> from skvi.linear_model import BayesianLogisticRegression
        >>> from skvi.plotting import LossCurveDisplay
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model = BayesianLogisticRegression(prior="normal").fit(X / X.std(0), y)
        >>> ax = Figure().subplots()
        >>> display = LossCurveDisplay.from_estimator(model, ax=ax)
        >>> ax.get_ylabel()
        'negative ELBO [nats]'
        """
        common.check_matplotlib(f"{cls.__name__}.from_estimator")
        found = common.final_estimator(estimator)
        check_is_fitted(found)
        if not (hasattr(found, "loss_curve_") and hasattr(found, "objective_")):
            raise TypeError(
                f"{type(found).__name__} has no loss_curve_ and objective_. Pass a "
                "fitted estimator of skvi, or a Pipeline or search (refit=True) that "
                "ends in one."
            )
        display = cls(
            found.loss_curve_,
            name=type(found).__name__ if name is None else name,
            loss_name=_loss_name(found),
            iteration_name=found.diagnostics_.get("unit", "iteration"),
        )
        return display.plot(ax, cut=cut, **kwargs)


def _loss_name(fitted: Any) -> str:
    """Name what the fitted estimator minimized."""
    objective = fitted.objective_
    name = type(objective).__name__
    if objective.direction != "lower":
        return name
    is_bayes = fitted.divergence_.kl_weight == 1 and fitted.loss_function_.is_log_loss
    if objective.kind == "expectation" and not is_bayes:
        return "expected loss + divergence"
    return f"negative {name}"


def _style(index: int) -> dict:
    """Style of a curve by the number of curves before it."""
    color, dash, marker = (
        choices[index % len(choices)] for choices in (common.COLORS, DASHES, MARKERS)
    )
    return {"color": color, "linestyle": dash, "marker": marker, "markevery": [-1]}


def _label(name: str | None, values: np.ndarray) -> str:
    """Name a curve, with its first and last value: the axis may hide the first."""
    prefix = "" if name is None else f"{name}: "
    # As many decimals as it takes to tell both values apart.
    digits = n_decimals(abs(values[0] - values[-1]))
    first = f"from {values[0]:,.{digits}f} to " if len(values) > 1 else ""
    text = f"{first}{values[-1]:,.{digits}f}".replace("-", "\N{MINUS SIGN}")
    return prefix + text


def _set_limits(ax: "Axes", lines: "list[Line2D]", cut: bool) -> None:
    """Cut the y axis above what the later values of all curves need."""
    curves = [np.asarray(line.get_ydata(), dtype=float) for line in lines]
    curves = [np.where(np.isfinite(curve), curve, np.nan) for curve in curves]
    later = np.concatenate([curve[len(curve) // 4 :] for curve in curves])
    if np.isnan(later).all():
        return
    everything = np.concatenate(curves)
    low, top = np.nanmin(everything), np.nanmax(everything)
    needed = max(np.nanmax(later) - low, 1.0)
    if cut and top - low > 5 * needed:
        ax.set_ylim(low - 0.05 * needed, low + 1.1 * needed)
    else:
        ax.autoscale(axis="y")
