"""The part of a series that models see: its rows, and its scales."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["BurnIn", "Row", "State", "Window"]

State = dict[str, np.ndarray]


@dataclass(frozen=True)
class BurnIn:
    """Scales of the burn-in of a series, from which models set their priors.

    Parameters
    ----------
    n_series : int
        Number of columns that are modeled.
    n_features : int
        Number of feature columns, for regressions.
    noise : ndarray of shape (n_series,)
        A typical standard deviation of the noise, from the differences of
        neighboring rows, in the units in which models see the series.
    mean : ndarray of shape (n_series,)
        Mean of the rows, in the same units.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint import BurnIn
    >>> BurnIn(1, 0, noise=np.array([0.3]), mean=np.zeros(1)).n_series
    1
    """

    n_series: int
    n_features: int
    noise: np.ndarray
    mean: np.ndarray


@dataclass(frozen=True)
class Row:
    """One row of a series, as models see it: in units of the scale of the burn-in.

    Parameters
    ----------
    values : ndarray of shape (n_series,)
        The row; 0 where it is missing or cannot be used.
    past : ndarray of shape (order, n_series)
        The rows before it, most recent first.
    features : ndarray of shape (n_features,)
        Features of the row.
    index : int
        Index of the row in the series.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint import Row
    >>> Row(np.ones(1), np.zeros((0, 1)), np.zeros(0), index=7).values
    array([1.])
    """

    values: np.ndarray
    past: np.ndarray
    features: np.ndarray
    index: int


@dataclass(frozen=True)
class Window:
    """Consecutive rows, as arrays; single `Row` objects are made on request.

    `past`, (order + n_rows, n_series), has the rows before the first and the rows
    themselves; `index` is that of the first row.
    """

    values: np.ndarray
    past: np.ndarray
    features: np.ndarray
    index: int

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Row]:
        order = len(self.past) - len(self.values)
        for i, (values, features) in enumerate(
            zip(self.values, self.features, strict=True)
        ):
            past = self.past[i : i + order][::-1]
            yield Row(values, past, features, self.index + i)
