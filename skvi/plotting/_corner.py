"""Draws of a posterior, parameter by parameter and pair by pair."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from skvi.plotting import _rows as common
from skvi.utils._validation import elements

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Parameters that are legible, draws of a cloud, bins of a histogram, and the quantiles
# between which axes extend: tails would hide the rest.
MOST, N_SHOWN, BINS, ENDS = 10, 500, 40, (0.002, 0.998)


class CornerDisplay:
    """Marginals and pairs of a posterior: what it is certain of, and what is curved.

    Histograms on the diagonal, draws of every pair below. A reference, such as draws of
    a Markov chain or of another fit, lies under both.

    It is recommended to use `from_estimator` or `from_draws`.

    Parameters
    ----------
    draws : ndarray of shape (n_draws, n_parameters)
    names : sequence of str
        Of the parameters.
    reference : ndarray of shape (n_reference, n_parameters), default=None
    label, reference_label : str
        In the legend.

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes of shape (n_parameters, n_parameters)
        Those above the diagonal are invisible.
    figure_ : matplotlib Figure

    Notes
    -----
    Axes extend over the central 99.6 % of draws and reference; 500 draws of each are
    shown in the pairs, all in the histograms.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.plotting import CornerDisplay
    >>> rng = np.random.default_rng(0)
    >>> draws = {"mu": rng.normal(size=200), "theta": rng.normal(size=(200, 2))}
    >>> display = CornerDisplay.from_draws(draws)
    >>> display.names
    ['mu', 'theta[0]', 'theta[1]']
    """

    def __init__(
        self,
        draws: np.ndarray,
        names: Sequence[str],
        *,
        reference: np.ndarray | None = None,
        label: str = "posterior",
        reference_label: str = "reference",
    ) -> None:
        self.draws, self.names, self.reference = draws, names, reference
        self.label, self.reference_label = label, reference_label

    def plot(self, figure: "Figure | None" = None) -> "CornerDisplay":
        """Draw all pairs.

        Parameters
        ----------
        figure : matplotlib Figure, default=None
            Where to draw; None makes a new one.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            matplotlib is not installed.
        ValueError
            There are more than ten parameters.
        """
        common.check_matplotlib(f"{type(self).__name__}.plot")
        k = len(self.names)
        if k > MOST:
            raise ValueError(
                f"A corner plot shows at most {MOST} parameters; got {k}. Choose some "
                f"by names, such as names={list(self.names[:3])}."
            )
        if figure is None:
            import matplotlib.pyplot as plt

            figure = plt.figure(figsize=(1.2 + 1.6 * k, 1.2 + 1.6 * k))
        self.figure_ = figure
        self.axes_ = figure.subplots(k, k, squeeze=False, sharex="col")
        pair = (
            (self.reference, "0.6", self.reference_label),
            (self.draws, common.BLUE, self.label),
        )
        clouds = [(x, color, text) for x, color, text in pair if x is not None]
        every = np.concatenate([x for x, _, _ in clouds])
        low, high = np.quantile(every, ENDS, axis=0)
        margin = 0.05 * (high - low) + 1e-12 * (1 + np.abs(low))
        limits = np.stack([low - margin, high + margin], 1)
        for i in range(k):
            for j in range(k):
                self._draw(self.axes_[i, j], i, j, clouds, limits)
        handles, texts = self.axes_[0, 0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="upper right", frameon=False)
        return self

    def _draw(
        self, ax: "Axes", i: int, j: int, clouds: Sequence, limits: np.ndarray
    ) -> None:
        """One marginal, one pair, or nothing."""
        if j > i:
            ax.set_visible(False)
            return
        for x, color, label in clouds:
            if i == j:
                style: dict = {"density": True, "color": color, "label": label}
                edges = np.linspace(limits[i][0], limits[i][1], BINS + 1).tolist()
                ax.hist(x[:, i], edges, histtype="step", **style)
            else:
                shown = x[:: max(1, len(x) // N_SHOWN)]
                style = {"color": color, "markersize": 2.5, "markeredgewidth": 0}
                ax.plot(shown[:, j], shown[:, i], "o", alpha=0.5, **style)
        ax.set_xlim(limits[j])
        if i == j:
            ax.set_yticks([])
        else:
            ax.set_ylim(limits[i])
        if i == len(self.names) - 1:
            ax.set_xlabel(self.names[j])
        if j == 0 and i > 0:
            ax.set_ylabel(self.names[i])
        else:
            ax.tick_params(labelleft=False)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        names: Sequence[str] | None = None,
        reference: Mapping[str, Any] | None = None,
        n_draws: int = 4000,
        random_state: Any = None,
        figure: "Figure | None" = None,
    ) -> "CornerDisplay":
        """Draw the posterior of a fitted estimator.

        Parameters
        ----------
        estimator : estimator, Pipeline or search, fitted
            With a method ``sample_posterior``, such as a linear model or
            `VariationalInference`.
        names : sequence of str, default=None
            Parameters, such as "mu", all of whose elements are shown, or single
            elements, such as "theta[0]". None is all.
        reference : dict of str to array-like, default=None
            Draws of the same parameters, each of shape ``(n_reference, *shape)``.
        n_draws : int, default=4000
        random_state : int, RandomState instance or None, default=None
        figure : matplotlib Figure, default=None

        Returns
        -------
        CornerDisplay
        """
        fitted = common.final_estimator(estimator)
        if not hasattr(fitted, "sample_posterior"):
            raise TypeError(
                f"{type(fitted).__name__} has no sample_posterior: use an estimator of "
                "skvi.linear_model or skvi.inference, or CornerDisplay.from_draws."
            )
        draws = fitted.sample_posterior(n_draws, random_state=random_state)
        return cls.from_draws(draws, names=names, reference=reference, figure=figure)

    @classmethod
    def from_draws(
        cls,
        draws: Mapping[str, Any],
        *,
        names: Sequence[str] | None = None,
        reference: Mapping[str, Any] | None = None,
        figure: "Figure | None" = None,
    ) -> "CornerDisplay":
        """Draw given draws.

        Parameters
        ----------
        draws : dict of str to array-like
            Each of shape ``(n_draws, *shape)``.
        names : sequence of str, default=None
            As for `from_estimator`.
        reference : dict of str to array-like, default=None
            As for `from_estimator`.
        figure : matplotlib Figure, default=None

        Returns
        -------
        CornerDisplay

        Raises
        ------
        ValueError
            A name is not that of a parameter or an element, numbers of draws differ, or
            draws are not finite.
        """
        labels, columns = _columns("draws", draws)
        chosen = _chosen(names, draws, labels)
        below = None
        if reference is not None:
            others, values = _columns("reference", reference)
            if missing := [name for name in chosen if name not in others]:
                raise ValueError(
                    f"reference must have draws of {missing}, in the shapes of draws. "
                    f"It has {others}. Leave them out of names, or add them."
                )
            below = values[:, [others.index(name) for name in chosen]]
        places = [labels.index(name) for name in chosen]
        return cls(columns[:, places], chosen, reference=below).plot(figure)


def _columns(role: str, draws: Mapping[str, Any]) -> tuple[list[str], np.ndarray]:
    """Names of elements, and their draws, which are as many for all and finite."""
    if not isinstance(draws, Mapping) or not draws:
        raise ValueError(
            f"{role} must be a dict of names to arrays of shape (n_draws, *shape). Got "
            f"{type(draws).__name__}."
        )
    counts = {name: np.shape(x)[0] if np.ndim(x) else 0 for name, x in draws.items()}
    if len(set(counts.values())) > 1 or min(counts.values()) < 2:
        raise ValueError(
            f"{role} must have the same number of draws of all parameters, two or "
            f"more, along the first axis. Got {counts}."
        )
    labels, columns = elements(draws)
    is_bad = ~np.isfinite(columns).all(0)
    if is_bad.any():
        bad = [name for name, wrong in zip(labels, is_bad, strict=True) if wrong]
        raise ValueError(
            f"{role} must be finite. NaN or infinite: {bad}. Leave them out of the "
            "dict, or remove these draws."
        )
    return labels, columns


def _chosen(
    names: Sequence[str] | None, draws: Mapping[str, Any], labels: list[str]
) -> list[str]:
    """Names of elements, from names of parameters or elements."""
    chosen = []
    for name in draws if names is None else names:
        found = [x for x in labels if x == name or x.startswith(f"{name}[")]
        if not found:
            raise ValueError(
                f"names must be of parameters or of their elements, from {labels}. "
                f"Got {name!r}."
            )
        chosen += found
    return chosen
