"""Results of a detector for the rows that it has seen."""

from __future__ import annotations  # short types in help()

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skvi.changepoint._records import Change
from skvi.changepoint._stream import Feed, Stream
from skvi.losses.base import Loss
from skvi.utils._links import page_template
from skvi.utils._tables import MAX_PRINTED, as_html
from skvi.utils._validation import validate_parameters


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

    def _repr_html_(self) -> str:
        columns = self.to_dict().items()
        return as_html({k: [as_text(k, x) for x in values] for k, values in columns})


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


class Results(BaseEstimator):
    """Attributes that are computed on access, from the state of the stream."""

    _validate_params = validate_parameters
    _doc_link_module = "skvi"
    _doc_link_template = property(page_template)
    _feed: Feed
    _series: np.ndarray
    _features: np.ndarray
    threshold: float

    def predict_next(
        self, features: ArrayLike | None = None, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the row that comes next.

        Parameters
        ----------
        features : array-like of shape (n_feature_columns,), default=None
            Its features, if the detector has `feature_columns`.
        return_std : bool, default=False
            Whether to return standard deviations as well. They account for the
            possibility that a new segment begins.

        Returns
        -------
        mean : ndarray of shape (n_series,)
        std : ndarray of shape (n_series,)
            Only if `return_std`.

        Raises
        ------
        ValueError
            The features are not those of the fit.
        """
        check_is_fitted(self)
        given = np.zeros(0) if features is None else np.asarray(features, float)
        n = len(self._features)
        if given.shape != (n,):
            raise ValueError(
                f"features must be the {n} feature(s) of the next row, in the order "
                f"of feature_columns; got an array of shape {given.shape}."
            )
        mean, std = self._stream.predict_next(given)
        return (mean, std) if return_std else mean

    def summary(self) -> ChangepointTable:
        """Table of the changepoints: probability, interval, and means on either side.

        Returns
        -------
        ChangepointTable
            The intervals have 90 % of the probability. Prints as a table; ``to_frame``
            gives a data frame.
        """
        check_is_fitted(self)
        stream = self._stream
        labels = stream.labels
        values = self.location_ + self.scale_ * stream.records.column("value")
        return make_table(
            self._changes(),
            values,
            self.first_row_,
            (lambda row: labels.get(row, row)) if labels else None,
            self._series_names(),
        )

    def _series_names(self) -> list[str]:
        known = getattr(self, "feature_names_in_", np.arange(self.n_features_in_))
        return [str(name) for name in known[self._series]]

    def _fitted(self) -> Feed:
        if "_feed" not in vars(self):
            raise AttributeError(
                f"This {type(self).__name__} is not fitted; call fit or partial_fit."
            )
        return self._feed

    @property
    def _stream(self) -> Stream:
        return self._fitted().current

    @property
    def location_(self) -> np.ndarray:
        """Zero of the units in which models see the series, (n_series,)."""
        return self._stream.scaling.location

    @property
    def scale_(self) -> np.ndarray:
        """Size of these units, (n_series,)."""
        return self._stream.scaling.scale

    @property
    def n_rows_seen_(self) -> int:
        """Number of rows so far."""
        return self._fitted().n_rows

    @property
    def first_row_(self) -> int:
        """Index of the row that the first entry of the per-row arrays refers to."""
        records = self._stream.records
        return records.n_rows - len(records.rows)

    @property
    def changepoints_(self) -> np.ndarray:
        """First rows of all segments except the first; `summary` says more."""
        return np.array([change.row for change in self._changes()], dtype=int)

    @property
    def changepoint_labels_(self) -> np.ndarray:
        """The changepoints' labels in the index of X, such as dates."""
        labels = self._stream.labels
        return np.array([labels.get(s, s) for s in self.changepoints_])

    @property
    def segment_models_(self) -> np.ndarray:
        """Number of the model of every segment."""
        starts, models = np.transpose(self._stream.filter.segmentation())
        first_rows = np.concatenate([starts[:1], self.changepoints_])
        return models[np.searchsorted(starts, first_rows, side="right") - 1]

    @property
    def labels_(self) -> np.ndarray:
        """Number of the segment of every row that is kept."""
        rows = np.arange(self.first_row_, self.n_rows_seen_)
        return np.searchsorted(self.changepoints_, rows, side="right")

    @property
    def change_probability_(self) -> np.ndarray:
        """Probability that a row is the first of a segment, given all rows."""
        return np.clip(self._stream.records.smoothed(), 0.0, 1.0)

    @property
    def run_lengths_(self) -> np.ndarray:
        """Possible lengths of the current segment so far, in increasing order."""
        return self._run_lengths()[0]

    @property
    def run_length_posterior_(self) -> np.ndarray:
        """Probability of each of `run_lengths_`."""
        return self._run_lengths()[1]

    @property
    def model_posterior_(self) -> np.ndarray:
        """Probability of every model in the current segment."""
        filter_ = self._stream.filter
        if not len(filter_.start):
            return filter_.model_prior.copy()
        n_models = len(filter_.model_prior)
        return np.bincount(filter_.model, filter_.probability, n_models)

    @property
    def loss_function_(self) -> Loss:
        """Loss of the parameters; if it is chosen, the one that has predicted best."""
        return self._stream.losses[0]

    @property
    def run_length_loss_(self) -> Loss:
        """Loss of the run lengths that belongs to it."""
        return self._stream.losses[1]

    @property
    def log_evidence_(self) -> float:
        """Joint log density of all rows, in nats; a lower bound if any was dropped."""
        return self._stream.log_evidence

    @property
    def dropped_mass_(self) -> float:
        """Sum of the probabilities that hypotheses had when they were dropped."""
        return self._stream.filter.dropped_mass

    @property
    def log_densities_(self) -> np.ndarray:
        """Log density of every kept row, given the rows before it, in nats."""
        column = self._stream.records.column
        return column("log_density") - column("scored") @ np.log(self.scale_)

    @property
    def predictions_(self) -> np.ndarray:
        """Prediction of every kept row from those before it: (n_samples, n_series)."""
        return self._stream.predictions()[0]

    @property
    def prediction_stds_(self) -> np.ndarray:
        """Standard deviations of `predictions_`."""
        return self._stream.predictions()[1]

    @property
    def model_posteriors_(self) -> np.ndarray:
        """`model_posterior_` after every kept row: (n_samples, n_models)."""
        return self._stream.records.column("models")

    def _changes(self) -> list[Change]:
        """Changes that pass the threshold; without one, the most probable path."""
        found = self._stream.changes()
        if self.threshold == 0:
            return [change for change in found if change.is_best]
        return [change for change in found if change.isolated >= self.threshold]

    def _run_lengths(self) -> tuple[np.ndarray, np.ndarray]:
        filter_ = self._stream.filter
        lengths, place = np.unique(filter_.t - filter_.start, return_inverse=True)
        return lengths, np.bincount(place, filter_.probability, len(lengths))
