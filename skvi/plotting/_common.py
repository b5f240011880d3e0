"""What displays have in common: axes, styles, and the estimator inside a pipeline."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito (2008): told apart by every kind of color vision.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK = "#E69F00", "#56B4E9", "#000000"
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, BLACK, SKY)


def check_matplotlib(caller: str) -> None:
    """Raise before any work where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{caller} needs matplotlib, which is not installed: "
            "pip install 'skvi[examples]'"
        ) from error


def make_axes(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    """Return the axes that were given, or those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def merge_style(defaults: dict, given: dict | None) -> dict:
    """Let the keywords of a line win over the defaults, aliases included."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    return normalize_kwargs(defaults, Line2D) | normalize_kwargs(given or {}, Line2D)


def final_estimator(estimator: Any) -> Any:
    """Return what a pipeline or a fitted search ends in."""
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "steps"):
            estimator = estimator.steps[-1][1]
        else:
            return estimator
