"""The scores of a stream: a table and a picture."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skvi.plotting._common import COLORS, check_matplotlib, make_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = ["COUNTS", "StreamResult"]

#: Names of the columns beside the scores.
COUNTS = ("n_rows", "seconds")


@dataclass(frozen=True, eq=False, repr=False)
class StreamResult:
    """Scores of a stream, one for each chunk: `print` shows a table of them.

    Parameters
    ----------
    scores : dict of str to ndarray of shape (n_chunks,)
        Each chunk's score before it was learned; NaN before the first fit.
    n_rows : ndarray of int of shape (n_chunks,)
    seconds : ndarray of shape (n_chunks,)
        Of learning, without scoring.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi._stream._result import StreamResult
    >>> scores = {"score": np.array([np.nan, -1.0, -0.4])}
    >>> found = StreamResult(scores, np.array([10, 20, 10]), np.full(3, 0.1))
    >>> found.mean("score"), found.rows_per_second
    (-0.8, 133.3)
    """

    scores: dict[str, np.ndarray]
    n_rows: np.ndarray
    seconds: np.ndarray

    @property
    def rows_per_second(self) -> float:
        """Rows that are learned in a second, on average."""
        return float(self.n_rows.sum() / max(self.seconds.sum(), 1e-9))

    def mean(self, name: str) -> float:
        """Average a score over all rows that were scored.

        Parameters
        ----------
        name : str
            A key of `scores`.

        Returns
        -------
        float
            NaN if there was no such row.
        """
        values = self.scores[name]
        known = ~np.isnan(values)
        if not known.any():
            return float("nan")
        return float(np.average(values[known], weights=self.n_rows[known]))

    def to_frame(self) -> "DataFrame":
        """Return the table as a pandas data frame, with a row for each chunk.

        Returns
        -------
        pandas.DataFrame
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ImportError(
                "StreamResult.to_frame needs pandas: install it, or use to_dict."
            ) from error
        return DataFrame(self.to_dict())

    def to_dict(self) -> dict[str, list]:
        """Return columns of the table.

        Returns
        -------
        dict of str to list
            "n_rows", "seconds", and the scores.
        """
        counts = {name: getattr(self, name) for name in COUNTS}
        return {name: v.tolist() for name, v in (counts | self.scores).items()}

    def __str__(self) -> str:
        """Return a line for each chunk, and the means."""
        names = [f"{name:>12}" for name in ("chunk", *COUNTS, *self.scores)]
        rows = zip(*self.to_dict().values(), strict=True)
        lines = [_line(str(i), *row) for i, row in enumerate(rows)]
        means = [self.mean(name) for name in self.scores]
        total = _line("all", int(self.n_rows.sum()), float(self.seconds.sum()), *means)
        return "\n".join(["".join(names), *lines, total])

    __repr__ = __str__

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the scores over the rows that were learned before.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            None makes a figure.

        Returns
        -------
        matplotlib Axes
        """
        check_matplotlib("StreamResult.plot")
        ax = make_axes(ax, (6.4, 3.6))
        before = np.cumsum(self.n_rows) - self.n_rows
        for color, (name, values) in zip(COLORS, self.scores.items(), strict=False):
            ax.plot(before, values, ".-", color=color, label=name)
        ax.set(xlabel="rows learned before", ylabel="score of the next chunk")
        ax.legend()
        return ax


def _line(name: str, n_rows: int, seconds: float, *scores: float) -> str:
    numbers = "".join(f"{score:>12.4f}" for score in scores)
    return f"{name:>12}{n_rows:>12}{seconds:>12.3f}{numbers}"
