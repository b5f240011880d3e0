"""Marginal densities of coefficients: what the data did to the prior."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from scipy import stats
from sklearn.utils.validation import check_is_fitted

from skvi.base import Layout, NormalForm
from skvi.plotting import _rows as common
from skvi.posteriors import Posterior
from skvi.priors import Normal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D


# Coefficients and classes that are shown without a choice.
MOST_SHOWN, MOST_CLASSES = 12, 6


class PosteriorDisplay:
    """Posterior against prior: what the data say about each coefficient.

    Each coefficient has one row with its two marginal densities, the posterior's filled
    and the prior's as a line, on one scale. If both agree the data were uninformative.
    Several classes are superimposed in different colors.

    It is recommended to use `from_estimator`.

    Parameters
    ----------
    names : list of str
        Names of the coefficients, from top to bottom.
    grid : ndarray of shape (m,)
        Values of the coefficients.
    posterior : ndarray of shape (len(names), m) or (n_classes, len(names), m)
        Densities on the grid, for one or several classes.
    prior : ndarray of shape (len(names), m)
    classes : sequence of length n_classes, default=()
        Names of the classes.
    prior_name : str, default="prior"
    note : str, default=""
        Text below the axis, about what is not shown.

    Attributes
    ----------
    posteriors_ : list of matplotlib PolyCollection
        Row by row, and class by class within each row.
    priors_ : list of matplotlib Line2D
    zero_ : matplotlib Line2D
        Marks the value 0.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    See Also
    --------
    EvidenceBoundsDisplay : What the model as a whole is worth.

    Notes
    -----
    The posterior is that of ``coef_std_``: exact for linear regressions with an exact
    posterior, otherwise the fitted one, which can be narrower (``objective="elbo"``
    with ``posterior="mean_field"`` most of all). If the precision of the coefficients
    is inferred, the prior is shown at the inferred precisions: the marginal prior is
    almost flat. In every row all densities have the same scale, by which the highest
    fills the row: heights of different rows cannot be compared, widths can. A prior
    with a pole at 0, such as the default one of classifiers and counts, leaves its row
    at the top.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from sklearn.datasets import load_iris
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> from skvi.plotting import PosteriorDisplay
    >>> X, y = load_iris(return_X_y=True, as_frame=True)
    >>> model = BayesianLogisticRegression(prior="normal").fit(X[:100], y[:100])
    >>> display = PosteriorDisplay.from_estimator(model, ax=Figure().subplots())
    >>> display.names[0]
    'sepal length (cm)'
    """

    def __init__(
        self,
        names: list[str],
        grid: np.ndarray,
        posterior: np.ndarray,
        prior: np.ndarray,
        *,
        classes: Sequence[Any] = (),
        prior_name: str = "prior",
        note: str = "",
    ) -> None:
        self.names = names
        self.grid = grid
        self.posterior = posterior
        self.prior = prior
        self.classes = classes
        self.prior_name = prior_name
        self.note = note

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        posterior_kwargs: dict | None = None,
        prior_kwargs: dict | None = None,
    ) -> "PosteriorDisplay":
        """Draw the densities.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure, as high as the rows need.
        posterior_kwargs : dict, default=None
            Passed to ``Axes.fill_between``.
        prior_kwargs : dict, default=None
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
        from matplotlib.transforms import Bbox, TransformedBbox

        n = len(self.names)
        ax = common.make_axes(ax, (6.4, 1.6 + 0.45 * n))
        self.ax_, self.figure_ = ax, ax.figure
        self.posteriors_: list[PolyCollection] = []
        self.priors_: list[Line2D] = []
        style: dict = {"color": common.BLACK, "linestyle": "--", "linewidth": 1.0}
        style = common.merge_style(style, prior_kwargs)
        self.zero_ = ax.axvline(0.0, color="0.8", linewidth=0.8, zorder=0)
        after = np.asarray(self.posterior)
        after = after.reshape(-1, n, after.shape[-1])
        for row in range(n):
            before = np.asarray(self.prior[row])
            scale = 0.85 / _peak(after[:, row], before)
            for k, density in enumerate(after[:, row]):
                self._fill(row, k, scale * density, posterior_kwargs or {})
            # A pole leaves its row at the top, and does not enter the next one.
            shown = row - np.minimum(scale * before, 2.0)
            label = None if row else self.prior_name
            (line,) = ax.plot(self.grid, shown, label=label, **style)
            corners = self.grid[0], row - 0.96, self.grid[-1], row + 0.1
            box = Bbox.from_extents(*corners)
            line.set_clip_box(TransformedBbox(box, ax.transData))
            self.priors_.append(line)
        ax.set_yticks(range(n), self.names)
        label = f"coefficient\n({self.note})" if self.note else "coefficient"
        ax.set(xlabel=label, ylim=(n - 0.8, -1.0))
        ax.set_xlim(self.grid[0], self.grid[-1])
        columns = {"ncols": 4 if len(after) > 1 else 2, "frameon": False}
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), **columns)
        return self

    def _fill(self, row: int, k: int, height: np.ndarray, given: dict) -> None:
        """Draw the posterior of one coefficient of one class."""
        style: dict = {"color": common.SKY, "edgecolor": common.BLUE, "linewidth": 0.8}
        label = "posterior"
        if len(self.classes) > 1:
            from matplotlib.colors import to_rgba

            color = common.COLORS[k % MOST_CLASSES]
            style = {"facecolor": to_rgba(color, 0.25), "edgecolor": color}
            label = f"class {self.classes[k]}"
        label = "_" if row else label
        style = {**style, "label": label, **given}
        self.posteriors_.append(
            self.ax_.fill_between(self.grid, row, row - height, **style)
        )

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        coefficients: Sequence[int | str] | None = None,
        classes: Sequence[Any] | None = None,
        ax: "Axes | None" = None,
        **kwargs: Any,
    ) -> "PosteriorDisplay":
        """Draw the coefficients of a fitted linear model.

        Parameters
        ----------
        estimator : estimator, Pipeline or search, fitted
            It ends in a linear model of skvi. Inside a pipeline the coefficients are
            those of the transformed features.
        coefficients : sequence of int or str, default=None
            Which ones, by feature number or name. None shows all, or, where there are
            more than 12, those 12 with the largest ratio of mean to standard deviation;
            the picture then says so.
        classes : sequence, default=None
            Which ones of several classes. None shows the first six.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            Passed to `plot`.

        Returns
        -------
        PosteriorDisplay

        Raises
        ------
        ImportError
            matplotlib is not installed.
        NotFittedError
            The estimator is not fitted.
        TypeError
            There are no coefficients with normal posteriors.
        ValueError
            There is no such coefficient or class, or the model has several targets.
        """
        common.check_matplotlib(f"{cls.__name__}.from_estimator")
        found = common.final_estimator(estimator)
        check_is_fitted(found)
        if not (hasattr(found, "coef_std_") and hasattr(found, "prior_")):
            raise TypeError(
                f"{type(found).__name__} has no coef_std_. Pass a fitted linear model "
                "of skvi, or a Pipeline or search (refit=True) that ends in one; "
                "weights of networks have no meaning one by one."
            )
        mean, std = (
            np.atleast_2d(x).astype(np.float64) for x in (found.coef_, found.coef_std_)
        )
        shown, labels = np.arange(1), list[Any]()
        if len(mean) > 1:
            shown, labels = _choose_classes(found, len(mean), classes)
        names = getattr(found, "feature_names_in_", None)
        names = [f"x{i}" for i in range(mean.shape[1])] if names is None else names
        strength = (np.abs(mean) / np.maximum(std, 1e-300))[shown].max(0)
        chosen = _choose(list(names), strength, coefficients)
        mean, std = mean[np.ix_(shown, chosen)], std[np.ix_(shown, chosen)]
        low, high = (mean - 4.5 * std).min(), (mean + 4.5 * std).max()
        grid = _grid_around_zero(min(low, -0.2 * high), max(high, -0.2 * low))
        posterior = np.stack(
            [[found._density_of(int(k), int(i), grid) for i in chosen] for k in shown]
        )
        prior = np.stack([_prior_density(found, int(i), grid) for i in chosen])
        inferred = found._coefficients.scales() is not None
        display = cls(
            [str(names[i]) for i in chosen],
            grid,
            posterior if labels else posterior[0],
            prior,
            classes=labels,
            prior_name="prior at the inferred scale" if inferred else "prior",
            note=_note(chosen, names, coefficients, labels, found),
        )
        return display.plot(ax, **kwargs)


def _note(
    chosen: np.ndarray, names: Any, given: Any, labels: Sequence[Any], fitted: Any
) -> str:
    """Say how many of the coefficients and classes are shown."""
    parts = []
    if len(chosen) < len(names):
        how = "" if given is not None else ", largest |mean| / std"
        parts.append(f"{len(chosen)} of {len(names)} coefficients{how}")
    if labels and len(labels) < len(fitted.classes_):
        parts.append(f"{len(labels)} of {len(fitted.classes_)} classes")
    return "; ".join(parts)


def _choose_classes(
    fitted: Any, n_rows: int, classes: Sequence[Any] | None
) -> tuple[np.ndarray, list]:
    """Numbers and names of the classes to show."""
    names = list(getattr(fitted, "classes_", ()))
    if not names:
        raise ValueError(
            f"The model has {n_rows} rows of coefficients, one for each target. Draw "
            "one of `outputs_`."
        )
    wanted = names[:MOST_CLASSES] if classes is None else list(classes)
    unknown = [name for name in wanted if name not in names]
    if unknown or not wanted:
        raise ValueError(f"classes must be some of {names}. Got {classes!r}.")
    return np.array([names.index(name) for name in wanted]), wanted


def _choose(
    names: list, strength: np.ndarray, coefficients: Sequence[int | str] | None
) -> np.ndarray:
    """Numbers of the features to show."""
    if coefficients is None:
        if len(names) <= MOST_SHOWN:
            return np.arange(len(names))
        return np.sort(np.argsort(-np.abs(strength))[:MOST_SHOWN])
    chosen = []
    for one in coefficients:
        number = names.index(one) if isinstance(one, str) and one in names else one
        if isinstance(number, str) or not 0 <= number < len(names):
            raise ValueError(
                f"There is no coefficient {one!r}. Give numbers from 0 to "
                f"{len(names) - 1}, or names such as {names[0]!r}."
            )
        chosen.append(int(number))
    if not chosen:
        raise ValueError("coefficients is empty: give at least one, or None.")
    return np.array(chosen)


def _prior_density(fitted: Any, index: int, grid: np.ndarray) -> np.ndarray:
    """Marginal density of a coefficient before the data, in its own units."""
    # Priors refer to standardized targets, and relative ones to the scales of columns.
    units = fitted.posterior_.units
    x_scale = np.broadcast_to(units.x_scale, fitted.n_features_in_)[index]
    unit = units.y_scale / x_scale
    theta = torch.from_numpy(grid / unit)
    prior, name = fitted.prior_, "coef"
    if isinstance(prior, dict):
        groups = getattr(fitted, "column_groups_", {})
        name = next((g for g in groups if index in groups[g]), name)
        prior = prior[name]
    if isinstance(prior, Posterior):  # the posterior of another fit
        normal = prior.real_part().as_prior().as_normal()
        if normal is None:
            raise TypeError("The posterior that is the prior is not normal.")
        at, width = float(normal.mean[index]), float(normal.variance[index].sqrt())
        return stats.norm.pdf(theta.numpy(), at, width) / unit
    if isinstance(prior, Normal) and prior.is_given:  # in units of X
        columns = fitted._columns_of(name).tolist()
        built = prior.build(Layout({"coef": (1, len(columns))}))
        normal, place = cast(NormalForm, built.as_normal()), columns.index(index)
        at, width = (float(part[place]) for part in (normal.mean, normal.scale))
        return stats.norm.pdf(grid / units.y_scale, at, width) / units.y_scale
    # All of them are exchangeable: one coordinate has the marginal density.
    built = prior.build(Layout({"coef": (1,)}))
    scales = None if built.learned else fitted._coefficients.named_scales().get(name)
    if scales is not None:  # averaged over the scale after the data
        pairs = zip(*(x.tolist() for x in scales), strict=True)
        own = built.unit_of_scale()
        given = [(w, built.given_scale(math.exp(z) / own)) for z, w in pairs]
        density = sum(w * p.log_prob(theta[:, None]).exp() for w, p in given)
        return density.numpy() / unit
    if built.learned:
        learned = fitted.prior_scale_
        scale = learned[name] if isinstance(learned, dict) else learned
        built = built.bind(torch.from_numpy(np.log([scale * x_scale])))
    return built.log_prob(theta[:, None]).exp().numpy() / unit


def _grid_around_zero(low: float, high: float) -> np.ndarray:
    """Equally spaced points, and three more where a prior may have a pole."""
    grid, step = np.linspace(low, high, 401, retstep=True)
    return np.union1d(grid, [-0.1 * step, 0.0, 0.1 * step])


def _peak(posterior: np.ndarray, prior: np.ndarray) -> float:
    """What fills a row: the posterior; the prior where it is higher, but finite."""
    finite = prior[np.isfinite(prior)]
    # Poles of priors leave the row, or the posterior would not be seen.
    typical = float(np.quantile(finite, 0.95)) if len(finite) else 0.0
    return max(float(posterior.max()), typical, 1e-300)
