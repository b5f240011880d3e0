"""A table of changepoints with their probabilities and intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skvi.changepoint._changes import Change

__all__ = ["ChangepointTable", "make_table"]

# Maximum number of printed rows.
MAX_PRINTED = 40


@dataclass(frozen=True)
class ChangepointTable:
    """Changepoints with their probabilities, intervals and neighboring means.

    Prints as a table; ``to_dict`` is what pandas and others read.

    Parameters
    ----------
    row, low, high : ndarray of shape (n_changes,)
        First row of the new segment, and the first and the last row of the shortest
        interval around it that has 90 % of the probability.
    probability : ndarray of shape (n_changes,)
        Probability of at least one change in the region of the changepoint: the rows
        around `row` that are most probably set off by rows without a change.
    mean_before, mean_after : ndarray of shape (n_changes, n_series)
        Means of the rows of the segments on either side that are kept; NaN if there are
        none.
    labels : ndarray of shape (n_changes, 3) or None
        Labels of `row`, `low` and `high` in the index of X, such as dates.
    names : tuple of str
        Names of the series.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint import BayesianChangepointDetector
    >>> x = np.random.default_rng(0).standard_normal(400)
    >>> x[150:] += 0.8
    >>> x[300:] += 4.0
    >>> print(BayesianChangepointDetector().fit(x).summary())
    row  low  high  probability  mean_before  mean_after
    160  147   168        0.992     0.068758     0.70181
    300  300   300        1.000      0.70181       4.761
    """

    row: np.ndarray
    low: np.ndarray
    high: np.ndarray
    probability: np.ndarray
    mean_before: np.ndarray
    mean_after: np.ndarray
    labels: np.ndarray | None = None
    names: tuple[str, ...] = ("",)

    def to_dict(self) -> dict[str, list]:
        """Return one list for each column.

        Returns
        -------
        dict of str to list
            "row", "low" and "high", the labels instead if there are any; "probability";
            "mean_before" and "mean_after", with the name of the series if there are
            several.
        """
        columns = [self.row, self.low, self.high]
        if self.labels is not None:
            columns = [*self.labels.T]
        names = ["row", "low", "high", "probability"]
        columns.append(self.probability)
        for j, name in enumerate(self.names):
            end = f" {name}" if len(self.names) > 1 else ""
            names += [f"mean_before{end}", f"mean_after{end}"]
            columns += [self.mean_before[:, j], self.mean_after[:, j]]
        return {n: column.tolist() for n, column in zip(names, columns, strict=True)}

    def to_frame(self) -> Any:
        """Return a pandas data frame.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        import pandas as pd

        return pd.DataFrame(self.to_dict())

    def __len__(self) -> int:
        """Return the number of changepoints."""
        return len(self.row)

    def __str__(self) -> str:
        """Return one line for each changepoint, up to a maximum."""
        columns = []
        for name, values in self.to_dict().items():
            cells = [name, *(as_text(name, value) for value in values[:MAX_PRINTED])]
            width = max(map(len, cells))
            columns.append([cell.rjust(width) for cell in cells])
        lines = ["  ".join(cells) for cells in zip(*columns, strict=True)]
        if len(self) > MAX_PRINTED:
            lines.append(f"... and {len(self) - MAX_PRINTED} more")
        return "\n".join(lines)

    __repr__ = __str__


def as_text(name: str, value: Any) -> str:
    """Text of a cell."""
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto"))
    if name == "probability":
        return f"{value:.3f}"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def make_table(
    changes: Sequence[Change],
    values: np.ndarray,
    first: int,
    label_of: Callable[[int], Any] | None,
    names: Sequence[str],
) -> ChangepointTable:
    """Table of changes in the kept rows, (n, n_series), NaN where missing.

    The first of them has the index `first`; `label_of` gives the label of a row, or is
    None.
    """
    places = np.array([(c.row, c.low, c.high) for c in changes], int).reshape(-1, 3)
    edges = [0, *np.clip(places[:, 0] - first, 0, None).tolist(), len(values)]
    means = np.full((len(changes) + 1, values.shape[1]), np.nan)
    for mean, start, end in zip(means, edges, edges[1:], strict=False):
        for j, column in enumerate(values[start:end].T):
            seen = column[np.isfinite(column)]
            mean[j] = seen.mean() if len(seen) else np.nan
    labels = None
    if label_of is not None:
        labels = np.empty(places.shape, dtype=object)
        labels.flat = [label_of(row) for row in places.ravel().tolist()]
    return ChangepointTable(
        *places.T,
        np.array([change.probability for change in changes], float),
        means[:-1],
        means[1:],
        labels,
        tuple(names),
    )
