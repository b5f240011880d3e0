"""Marginal densities of coefficients: what the data did to the prior."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from skvi.base import Layout
from skvi.plotting import _common as common
from skvi.posteriors import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PosteriorDisplay"]

# Coefficients that are shown without a choice, and points of each curve.
MOST_SHOWN, N_POINTS = 12, 401
# Height of the highest posterior in rows, and standard deviations that are in view.
HEIGHT, REACH = 0.85, 4.5


class PosteriorDisplay:
    """Posterior against prior: what the data say about each coefficient.

    Each coefficient has one row with its two marginal densities, the posterior's filled
    and the prior's as a line, on one scale. Where both agree the data were silent.

    It is recommended to use `from_estimator`.

    Parameters
    ----------
    names : list of str
        Names of the coefficients, from top to bottom.
    grid : ndarray of shape (m,)
        Values of the coefficients.
    posterior, prior : ndarray of shape (len(names), m)
        Densities on the grid.

    Attributes
    ----------
    posteriors_ : list of matplotlib PolyCollection
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
    The posterior is the fitted one, which can be narrower than the exact posterior
    (``objective="elbo"`` with ``posterior="mean_field"`` most of all). In every row
    both densities have the same scale, by which the higher posterior or prior fills the
    row: heights of different rows cannot be compared, widths can.

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
    ) -> None:
        self.names = names
        self.grid = grid
        self.posterior = posterior
        self.prior = prior

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
        n = len(self.names)
        ax = common.make_axes(ax, (6.4, 1.6 + 0.45 * n))
        self.ax_, self.figure_ = ax, ax.figure
        self.posteriors_, self.priors_ = [], []
        fill: dict = {"color": common.SKY, "edgecolor": common.BLUE, "linewidth": 0.8}
        fill |= posterior_kwargs or {}
        style: dict = {"color": common.BLACK, "linestyle": "--", "linewidth": 1.0}
        style = common.merge_style(style, prior_kwargs)
        self.zero_ = ax.axvline(0.0, color="0.8", linewidth=0.8, zorder=0)
        for row in range(n):
            after, before = np.asarray(self.posterior[row]), np.asarray(self.prior[row])
            scale = HEIGHT / _peak(after, before)
            labels = [None, None] if row else ["posterior", "prior"]
            filled = ax.fill_between(
                self.grid, row, row - scale * after, label=labels[0], **fill
            )
            # A density that is infinite somewhere must not leave its row.
            shown = row - np.minimum(scale * before, HEIGHT)
            (line,) = ax.plot(self.grid, shown, label=labels[1], **style)
            self.posteriors_.append(filled)
            self.priors_.append(line)
        ax.set_yticks(range(n), self.names)
        ax.set(xlabel="coefficient", ylim=(n - 0.8, -1.0))
        ax.set_xlim(self.grid[0], self.grid[-1])
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
        return self

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        coefficients: Sequence[int | str] | None = None,
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
            more than 12, those 12 whose mean is the largest in standard deviations.
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
            There is no such coefficient, or the model has several outputs: several
            classes have a row of ``coef_`` each.
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
        mean, std = np.atleast_2d(found.coef_), np.atleast_2d(found.coef_std_)
        if len(mean) > 1:
            raise ValueError(
                f"The model has {len(mean)} rows of coefficients, one for each class "
                "or target. Draw one of `outputs_`, or fit classes in pairs."
            )
        mean, std = mean[0].astype(np.float64), std[0].astype(np.float64)
        names = getattr(found, "feature_names_in_", [f"x{i}" for i in range(len(mean))])
        chosen = _choose(list(names), mean / np.maximum(std, 1e-300), coefficients)
        mean, std = mean[chosen], std[chosen]
        low, high = (mean - REACH * std).min(), (mean + REACH * std).max()
        grid = np.linspace(min(low, -0.2 * high), max(high, -0.2 * low), N_POINTS)
        z = (grid - mean[:, None]) / std[:, None]
        posterior = np.exp(-0.5 * z**2) / (std[:, None] * math.sqrt(2 * math.pi))
        prior = np.stack([_prior_density(found, int(i), grid) for i in chosen])
        display = cls([str(names[i]) for i in chosen], grid, posterior, prior)
        return display.plot(ax, **kwargs)


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
    # Priors of regressions refer to the standardized target.
    units = fitted.posterior_.units
    unit = 1.0 if units is None else units.y_scale
    theta = torch.from_numpy(grid / unit)
    prior = fitted.prior_
    prior = prior["coef"] if isinstance(prior, dict) else prior
    if isinstance(prior, Posterior):  # the posterior of another fit
        normal = prior.real_part().as_normal()
        if normal is None:
            raise TypeError("The posterior that is the prior is not normal.")
        at, width = float(normal.mean[index]), float(normal.variance[index].sqrt())
        z = (theta.numpy() - at) / width
        return np.exp(-0.5 * z**2) / (width * math.sqrt(2 * math.pi)) / unit
    # All of them are exchangeable: one coordinate has the marginal density.
    built = prior.build(Layout({"coef": (1,)}))
    if built.learned:
        learned = fitted.prior_scale_
        scale = learned["coef"] if isinstance(learned, dict) else learned
        built = built.bind(torch.from_numpy(np.log([scale])))
    return built.log_prob(theta[:, None]).exp().numpy() / unit


def _peak(posterior: np.ndarray, prior: np.ndarray) -> float:
    """What fills a row: the posterior; the prior where it is higher, but finite."""
    finite = prior[np.isfinite(prior)]
    # Spikes of sparse priors are cut, or the posterior would not be seen.
    typical = float(np.quantile(finite, 0.95)) if len(finite) else 0.0
    return max(float(posterior.max()), typical, 1e-300)
