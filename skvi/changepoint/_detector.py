"""The detector as an estimator of scikit-learn."""

import time
from collections.abc import Sequence
from copy import copy
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from skvi.changepoint._assembly import (
    make_scaling,
    make_stream,
    resolve_divergence,
    power_of,
    resolve_hazard,
    resolve_loss,
    resolve_models,
    resolve_prior,
)
from skvi.changepoint._columns import Pending, find_columns, labels_of
from skvi.changepoint._interrupts import interrupts_between_rows
from skvi.changepoint._results import Results
from skvi.changepoint._stream import Stream
from skvi.changepoint.base import Hazard, SegmentModel
from skvi.divergences import KL
from skvi.losses import BetaLoss, LogLoss
from skvi.utils._validation import Interval, StrOptions, _fit_context

__all__ = ["BayesianChangepointDetector"]

# Rows of the burn-in of a stream, unless told otherwise.
STREAM_BURN_IN = 100
SECONDS_BETWEEN_LINES = 1.0


class BayesianChangepointDetector(Results, TransformerMixin, BaseEstimator):
    """TODO."""

    _parameter_constraints: dict = {
        "models": [
            str,
            SegmentModel,
            "array-like",
        ],
        "hazard": [Interval(Real, 1, None, closed="neither"), Hazard],
        "loss": [StrOptions({"log", "beta"}), LogLoss, BetaLoss],
        "run_length_loss": [StrOptions({"auto", "log", "beta"}), LogLoss, BetaLoss],
        "divergence": [StrOptions({"kl"}), KL],
        "model_prior": ["array-like", None],
        "feature_columns": ["array-like", None],
        "scaling": [StrOptions({"auto"}), tuple, None],
        "burn_in": [Interval(Integral, 1, None, closed="left"), None],
        "max_hypotheses": [Interval(Integral, 2, None, closed="left"), None],
        "min_probability": [Interval(Real, 0, 1, closed="left")],
        "history": [Interval(Integral, 1, None, closed="left")],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        models: str | SegmentModel | Sequence[SegmentModel] = "constant_mean",
        hazard: float | Hazard = 100.0,
        loss: str | LogLoss | BetaLoss = "log",
        run_length_loss: str | LogLoss | BetaLoss = "auto",
        divergence: str | KL = "kl",
        model_prior: ArrayLike | None = None,
        feature_columns: Sequence[int | str] | None = None,
        scaling: str | tuple | None = "auto",
        burn_in: int | None = None,
        max_hypotheses: int | None = 200,
        min_probability: float = 1e-7,
        history: int = 5000,
        verbose: int = 0,
    ) -> None:
        self.models = models
        self.hazard = hazard
        self.loss = loss
        self.run_length_loss = run_length_loss
        self.divergence = divergence
        self.model_prior = model_prior
        self.feature_columns = feature_columns
        self.scaling = scaling
        self.burn_in = burn_in
        self.max_hypotheses = max_hypotheses
        self.min_probability = min_probability
        self.history = history
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Detect the changepoints of a series."""
        labels = labels_of(X)
        X = self._check(X, reset=True)
        self._pending = None
        stream = self._begin(X, X[: self.burn_in], max(len(X), self.history))
        return self._run(stream, X, labels)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Take in the next rows of a series."""
        is_first = "_stream" not in vars(self)
        labels = labels_of(X)
        X = self._check(X, reset=is_first)
        if not is_first and self._pending is None:
            return self._run(self._stream, X, labels)
        # Until the burn-in is complete, every call begins again.
        before = [] if is_first else [self._pending]
        rows = Pending.join([*before, Pending(X, labels)])
        n = self.burn_in or STREAM_BURN_IN
        stream = self._begin(rows.X, rows.X[:n], self.history)
        self._pending = rows if len(rows.X) < n else None
        return self._run(stream, rows.X, rows.labels)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Number of the segment of every row, most probable segmentation."""
        detector = self._replay(X)
        return detector.labels_

    def fit_predict(self, X: ArrayLike, y: Any = None) -> np.ndarray:
        """Number of the segment of every row of a series."""
        return self.fit(X).labels_

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Probability of a change at every row, and length of its segment so far."""
        detector = self._replay(X)
        return np.column_stack(
            [
                detector.change_probability_,
                detector._stream.records.column("run_length"),
            ]
        )

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of `transform`."""
        return np.array(["change_probability", "run_length"], dtype=object)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Mean log density of a row, given the rows before it."""
        return float(self._replay(X).log_densities_.mean())

    def predict_next(
        self, features: ArrayLike | None = None, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the row that comes next."""
        check_is_fitted(self)
        given = np.zeros(0) if features is None else np.asarray(features, float)
        n = len(self._columns.features)
        if given.shape != (n,):
            raise ValueError(
                f"features must be the {n} feature(s) of the next row, in the order "
                f"of feature_columns; got an array of shape {given.shape}."
            )
        mean, std = self._stream.predict_next(given)
        return (mean, std) if return_std else mean

    def _check(self, X: ArrayLike, reset: bool) -> np.ndarray:
        return validate_data(
            self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan"
        )

    def _begin(self, X: np.ndarray, first_rows: np.ndarray, n_kept: int) -> Stream:
        """Resolve the parameters, and begin a stream."""
        names = getattr(self, "feature_names_in_", None)
        self._columns = find_columns(self.feature_columns, X.shape[1], names)
        self.models_ = resolve_models(self.models)
        self.hazard_ = resolve_hazard(self.hazard)
        self.model_prior_ = resolve_prior(self.model_prior, len(self.models_))
        self.loss_function_ = resolve_loss(self.loss, self.models_)
        judge = self.run_length_loss
        judge = self.loss_function_ if judge == "auto" else judge
        self.run_length_loss_ = resolve_loss(judge, self.models_)
        self.divergence_ = resolve_divergence(self.divergence, self.models_)
        series, features = self._columns.split(first_rows, self.models_[0].support)
        self._scaling = make_scaling(
            series, self.scaling, self.models_, features.shape[1]
        )
        self.location_, self.scale_ = self._scaling.location, self._scaling.scale
        self._stream = self._new_stream(n_kept)
        return self._stream

    def _new_stream(self, n_kept: int) -> Stream:
        return make_stream(
            self.models_,
            self._scaling,
            self.hazard_,
            self.model_prior_,
            self.divergence_,
            (power_of(self.loss_function_), power_of(self.run_length_loss_)),
            self.max_hypotheses,
            self.min_probability,
            self.history,
            n_kept,
        )

    def _run(self, stream: Stream, X: np.ndarray, labels: np.ndarray | None) -> Self:
        """Push rows, until the last one or Ctrl-C."""
        series, features = self._columns.split(X, self.models_[0].support)
        told = time.monotonic()
        with interrupts_between_rows() as interrupt:
            for i in range(len(X)):
                stream.push(
                    series[i], features[i], labels if labels is None else labels[i]
                )
                if interrupt.came:
                    break
                if self.verbose and time.monotonic() - told > SECONDS_BETWEEN_LINES:
                    told = time.monotonic()
                    name = type(self).__name__
                    print(f"[{name}] row {i + 1} of {len(X)}", flush=True)  # noqa: T201
        return self

    def _replay(self, X: ArrayLike) -> "BayesianChangepointDetector":
        """Run a series from its first row, with the priors of the fit."""
        check_is_fitted(self)
        labels = labels_of(X)
        X = self._check(X, reset=False)
        other = copy(self)
        other._stream = self._new_stream(len(X))
        return other._run(other._stream, X, labels)
