"""What a detector says of the rows that it has seen."""

import numpy as np
from sklearn.base import BaseEstimator

from skvi.changepoint._stream import Stream

__all__ = ["Results"]


class Results(BaseEstimator):
    """Attributes that are computed when asked for, from the state of the stream."""

    _stream: Stream

    def _of_stream(self) -> Stream:
        if "_stream" not in vars(self):
            raise AttributeError(
                f"This {type(self).__name__} is not fitted; call fit or partial_fit."
            )
        return self._stream

    @property
    def n_rows_seen_(self) -> int:
        """Number of rows so far."""
        return self._of_stream().filter.t

    @property
    def first_row_(self) -> int:
        """Number of the first row of which the arrays of rows speak."""
        records = self._of_stream().records
        return records.n_rows - len(records.rows)

    @property
    def changepoints_(self) -> np.ndarray:
        """First rows of all segments but the first, most probable segmentation."""
        return np.array([s for s, _ in self._segments()[1:]], dtype=int)

    @property
    def changepoint_labels_(self) -> np.ndarray:
        """The changepoints' labels in the index of X, such as dates."""
        labels = self._of_stream().labels
        return np.array([labels.get(s, s) for s in self.changepoints_])

    @property
    def segment_models_(self) -> np.ndarray:
        """Number of the model of every segment, most probable segmentation."""
        return np.array([model for _, model in self._segments()], dtype=int)

    @property
    def labels_(self) -> np.ndarray:
        """Number of the segment of every row that is kept."""
        rows = np.arange(self.first_row_, self.n_rows_seen_)
        return np.searchsorted(self.changepoints_, rows, side="right")

    @property
    def change_probability_(self) -> np.ndarray:
        """Probability that a row is the first of a segment, given all rows."""
        found = self._of_stream().records.smoothed()
        if self.first_row_ == 0 and len(found):
            found[0] = 0.0  # it begins the series; nothing changed
        return np.clip(found, 0.0, 1.0)

    @property
    def run_lengths_(self) -> np.ndarray:
        """Possible lengths of the present segment so far, rising."""
        return self._run_lengths()[0]

    @property
    def run_length_posterior_(self) -> np.ndarray:
        """Probability of each of `run_lengths_`."""
        return self._run_lengths()[1]

    @property
    def model_posterior_(self) -> np.ndarray:
        """Probability of every model in the present segment."""
        stream = self._of_stream()
        posterior = stream.filter.posterior()
        if not len(posterior.start):
            return np.exp(stream.filter.log_prior)
        return np.bincount(posterior.model, posterior.probability, len(stream.models))

    @property
    def log_evidence_(self) -> float:
        """Log density of all rows together, nats; a lower bound if some was dropped."""
        stream = self._of_stream()
        return stream.filter.log_evidence + stream.log_jacobian

    @property
    def dropped_mass_(self) -> float:
        """Sum of the probabilities of all dropped hypotheses."""
        return self._of_stream().filter.dropped_mass

    @property
    def log_densities_(self) -> np.ndarray:
        """Log density of every kept row, given the rows before it, in nats."""
        return self._of_stream().records.column("log_density")

    @property
    def predictions_(self) -> np.ndarray:
        """Prediction of every kept row from those before it: (n_rows, n_series)."""
        return self._of_stream().records.column("mean")

    @property
    def prediction_stds_(self) -> np.ndarray:
        """Standard deviations of `predictions_`."""
        return self._of_stream().records.column("std")

    @property
    def model_posteriors_(self) -> np.ndarray:
        """`model_posterior_` after every kept row: (n_rows, n_models)."""
        return self._of_stream().records.column("models")

    def _segments(self) -> list[tuple[int, int]]:
        filter_ = self._of_stream().filter
        return filter_.segmentation() if len(filter_.gather("path")) else [(0, 0)]

    def _run_lengths(self) -> tuple[np.ndarray, np.ndarray]:
        stream = self._of_stream()
        posterior = stream.filter.posterior()
        lengths, place = np.unique(
            stream.filter.t - posterior.start, return_inverse=True
        )
        return lengths, np.bincount(place, posterior.probability, len(lengths))
