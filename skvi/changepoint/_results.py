"""Results of a detector for the rows that it has seen."""

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skvi.changepoint._changes import Change
from skvi.changepoint._feed import Batch, Feed
from skvi.changepoint._scaling import Scaling
from skvi.changepoint._stream import Stream
from skvi.changepoint._table import ChangepointTable, make_table

__all__ = ["Results"]


class Results(BaseEstimator):
    """Attributes that are computed on access, from the state of the stream."""

    _feed: Feed
    _series: np.ndarray
    _features: np.ndarray
    threshold: float

    def _batch(self, X: ArrayLike) -> Batch:
        raise NotImplementedError

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Number of the segment of every row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            A series from its first row on; priors are scaled as in the fit. The
            detector itself learns nothing from it.

        Returns
        -------
        ndarray of int of shape (n_samples,)
        """
        detector = self._replay(X)
        return detector.labels_

    def fit(self, X: ArrayLike, y: Any = None) -> "Results":
        """Detect the changepoints of a series."""
        raise NotImplementedError

    def fit_predict(self, X: ArrayLike, y: Any = None) -> np.ndarray:
        """Fit, and return `labels_`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            As for `fit`.
        y : None
            Ignored.

        Returns
        -------
        ndarray of int of shape (n_samples,)
        """
        return self.fit(X).labels_

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Probability of a change at every row, and length of its segment so far.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            A series from its first row on; priors are scaled as in the fit.

        Returns
        -------
        ndarray of shape (n_samples, 2)
            The probability that a new segment begins at a row, given all rows; and the
            expected number of earlier rows of its segment, given the rows up to this
            one.
        """
        detector = self._replay(X)
        return np.column_stack(
            [
                detector.change_probability_,
                detector._stream.records.column("run_length"),
            ]
        )

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of `transform`.

        Parameters
        ----------
        input_features : None
            Ignored.

        Returns
        -------
        ndarray of str
        """
        return np.array(["change_probability", "run_length"], dtype=object)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Mean log density of a row, given the rows before it: larger is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            A series from its first row on; priors are scaled as in the fit.
        y : None
            Ignored.

        Returns
        -------
        float
            In nats per row.
        """
        return float(self._replay(X).log_densities_.mean())

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

    def _replay(self, X: ArrayLike) -> "Results":
        """Run a series from its first row, with the priors of the fit."""
        check_is_fitted(self)
        rows = self._batch(X)
        other = copy(self)
        other._feed = self._feed.replay(rows)
        return other

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
    def _scaling(self) -> Scaling:
        return self._stream.scaling

    @property
    def location_(self) -> np.ndarray:
        """Zero of the units in which models see the series, (n_series,)."""
        return self._scaling.location

    @property
    def scale_(self) -> np.ndarray:
        """Size of these units, (n_series,)."""
        return self._scaling.scale

    @property
    def n_rows_seen_(self) -> int:
        """Number of rows so far."""
        return self._fitted().n_rows

    @property
    def first_row_(self) -> int:
        """Index of the row that the first entry of the per-row arrays refers to."""
        records = self._stream.records
        return records.n_rows - records.n_known()

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
        stream = self._stream
        posterior = stream.filter.posterior()
        if not len(posterior.start):
            return stream.filter.model_prior.copy()
        return np.bincount(posterior.model, posterior.probability, len(stream.models))

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
        mean = self._stream.records.column("mean")
        return self.location_ + self.scale_ * mean

    @property
    def prediction_stds_(self) -> np.ndarray:
        """Standard deviations of `predictions_`."""
        return self.scale_ * self._stream.records.column("std")

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
        stream = self._stream
        posterior = stream.filter.posterior()
        lengths, place = np.unique(
            stream.filter.t - posterior.start, return_inverse=True
        )
        return lengths, np.bincount(place, posterior.probability, len(lengths))
