"""The detector as a scikit-learn estimator."""

from __future__ import annotations  # short types in help()

from collections.abc import Sequence
from copy import copy
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skvi.changepoint._input import (
    Settings,
    as_table,
    check_values,
    find_columns,
    labels_of,
    misfits,
    times_of,
)
from skvi.changepoint._results import Results
from skvi.changepoint._stream import Batch, Feed
from skvi.changepoint.base import Hazard, SegmentModel
from skvi.divergences import KLDivergence
from skvi.exceptions import SkviWarning
from skvi.losses import BetaLoss, LogLoss
from skvi.utils._validation import (
    Interval,
    StrOptions,
    _fit_context,
    as_numpy,
    validate_data,
    warn_user,
)

# Default number of burn-in rows of a stream.
STREAM_BURN_IN = 100


class BayesianChangepointDetector(Results, TransformerMixin, BaseEstimator):
    """Bayesian online changepoint detection, with model selection, optionally robust.

    A series consists of segments. Within a segment, rows follow one model with one set
    of parameters; at a changepoint both are drawn anew. Row by row, the detector
    computes the posterior of the first row of the current segment and of the model that
    it follows; parameters are integrated out. It is exact for
    ``max_hypotheses=None, min_probability=0``; by default improbable hypotheses are
    dropped, so that the cost of a row does not depend on the number of rows before it,
    and the detector can run on an endless stream. It gives the most probable
    segmentation, the probability of each changepoint, a prediction of the next row, and
    the evidence of the series.

    With ``loss="beta"`` outliers are no longer mistaken for changepoints: rows far from
    the prediction of a segment have little influence on its parameters and on its
    weight.

    Parameters
    ----------
    models : str, SegmentModel or list of them, default="auto"
        Models of the rows of a segment, which compete in every segment:
        "constant_mean", "known_noise", "autoregression", "vector_autoregression",
        "linear_regression", "linear_trend", "poisson" or "bernoulli", or such objects.
        "auto" is a constant mean and an autoregression, of the series or of their
        normal scores, whichever have more evidence; with a beta loss or loss="auto",
        and if more than a tenth of the rows is missing, a constant mean.
    hazard : float or Hazard, default=100.0
        Prior mean number of rows of a segment; or a `Hazard`, the probability that a
        segment ends as a function of its length.
    loss : {"auto", "log", "beta"}, LogLoss or BetaLoss, default="log"
        Loss by which parameters are learned from rows. "log" is Bayes' rule. "beta" is
        robust, for regressions: rows farther than 2 standard deviations from their
        prediction have less and less influence; ``BetaLoss(beta)`` sets the order.
        "auto" runs both, and gives the results of the one that has predicted the rows
        so far better.
    run_length_loss : {"auto", "log", "beta"}, LogLoss or BetaLoss, default="auto"
        Loss by which rows weight the hypotheses about segments; "auto" is `loss`.
        "beta" is ``BetaLoss(1.75)``: a row far from every prediction carries almost no
        information. With ``loss="auto"`` it is "auto", and a beta loss has the same
        order for both.
    divergence : {"kl"} or KL, default="kl"
        ``KLDivergence(weight=w)`` gives each row the weight 1/w in learning parameters.
    model_prior : array-like of shape (n_models,), default=None
        Probabilities of the models at the start of a segment; None: all equal.
    feature_columns : list of int or str, default=None
        Columns of X that are not series but exogenous features, for
        ``Regression(features=True)``.
    scaling : "auto", None or (location, scale), default="auto"
        Units in which models see the series, and of their prior scales: (x - location)
        / scale. "auto" takes the median and a robust scale of the burn-in (for counts
        and binary data: 0 and 1); None is (0, 1).
    burn_in : int, default=None
        Number of rows from which the priors are scaled, for each series from where its
        values begin to vary. None: all rows of `fit`, and 100 rows of a stream.
    max_hypotheses : int, default=200
        Maximum number of hypotheses to keep, each a pair of a first row and a model;
        the least probable ones are dropped. With None the cost may grow with every row.
    min_probability : float, default=1e-7
        Hypotheses with a smaller probability are dropped; with p parameters of a
        segment, which cost something before they gain anything, the threshold is
        ``min_probability ** (p / 2)``.
    threshold : float, default=0.5
        A changepoint is reported if there is an interval with a change in it, and with
        none in half as many rows on either side, with at least this probability. 0
        reports the most probable segmentation.
    history : int, default=5000
        Minimum number of later rows that `change_probability_` takes into account. The
        hypotheses of up to twice as many rows are kept in memory.
    verbose : int, default=0
        If positive, the progress of a long fit is printed every second.

    Attributes
    ----------
    changepoints_ : ndarray of int
        First rows of all segments except the first, if they pass the `threshold`, and
        of other probable changes whose place is too uncertain for the most probable
        segmentation. `summary` has their intervals.
    changepoint_labels_ : ndarray
        Their labels in the index of a DataFrame, such as dates.
    segment_models_ : ndarray of int
        Index of the model of each segment.
    labels_ : ndarray of shape (n_samples,)
        Number of the segment of every row.
    change_probability_ : ndarray of shape (n_samples,)
        Probability that a new segment began at a row, given all rows so far.
    run_lengths_, run_length_posterior_ : ndarray of shape (n_lengths,)
        Possible numbers of rows of the current segment, and their probabilities.
    model_posterior_ : ndarray of shape (n_models,)
        Probability of each model in the current segment.
    model_posteriors_ : ndarray of shape (n_samples, n_models)
        The same after every row.
    predictions_, prediction_stds_ : ndarray of shape (n_samples, n_series)
        Prediction of every row from the rows before it.
    log_densities_ : ndarray of shape (n_samples,)
        Predictive log density of every row, given the rows before it, in nats.
    log_evidence_ : float
        Log density of the whole series, in nats; a lower bound if hypotheses were
        dropped. It is comparable for the same kind of values, and with a robust
        `run_length_loss`, as a generalized evidence, with no other.
    dropped_mass_ : float
        Sum of the probabilities that hypotheses had when they were dropped. On average
        over series drawn from the models and the hazard it bounds the probability that
        the true one was dropped, not for the series at hand.
    n_rows_seen_ : int
        Number of rows so far.
    first_row_ : int
        Index of the row that the first entry of the per-row arrays refers to: 0 after
        `fit`; streams keep only the last `history` rows.
    location_, scale_ : ndarray of shape (n_series,)
        Units of the models.
    models_, hazard_, model_prior_, loss_function_, run_length_loss_, divergence_
        Resolved values of the parameters; with ``loss="auto"`` losses may change with
        every row, and all results with them.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Their names, if X has any.

    See Also
    --------
    ChangepointDisplay : Draws all this.
    Regression : The default model, with the parameters of its prior.

    Notes
    -----
    Missing values (NaN) are allowed anywhere and are integrated out. Autoregressive
    models are an exception: rows whose past has a missing value are left out by all
    models of the detector, so that the models remain comparable.

    The recursion is that of Adams and MacKay [1]_ and of Fearnhead and Liu [2]_, with
    models as in [3]_. The robust detector follows [4]_: posteriors of the parameters
    are normal inverse gamma distributions that minimize the expected beta loss plus
    the divergence from the prior, and hypotheses are weighted by the beta loss of their
    predictions. The most probable segmentation is that of the joint posterior.

    ``loss="auto"`` compares errors of the predictions, row by row, as in [4]_, from a
    few candidates instead of by gradients. An error counts up to 2 standard deviations
    of the noise, so that outliers do not decide; rows before the last `history` ones
    hardly count.

    Only the Kullback-Leibler divergence is offered: with any other, rows could not be
    processed one at a time. The beta loss takes densities in units of the noise of the
    burn-in. The robust posterior of a segment is optimal up to 25 rows; from then on it
    takes one step per row, and older rows keep their influence.

    References
    ----------
    .. [1] Adams and MacKay (2007), Bayesian online changepoint detection.
    .. [2] Fearnhead and Liu (2007), On-line inference for multiple changepoint
       problems.
    .. [3] Knoblauch and Damoulas (2018), Spatio-temporal Bayesian on-line changepoint
       detection with model selection.
    .. [4] Knoblauch, Jewson and Damoulas (2018), Doubly robust Bayesian inference for
       non-stationary streaming data with beta-divergences.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.changepoint import BayesianChangepointDetector
    >>> X = np.random.default_rng(0).standard_normal((100, 1))
    >>> X[60:] += 4.0
    >>> detector = BayesianChangepointDetector().fit(X)
    >>> detector.changepoints_
    array([60])
    >>> print(detector.change_probability_[60].round(2))
    1.0

    The stream goes on:

    >>> detector.partial_fit([[4.2], [np.nan], [3.9]]).n_rows_seen_
    103
    >>> detector.predict_next()
    array([4.0])

    One wild row is no changepoint to the robust detector:

    >>> X[30] = 25.0
    >>> BayesianChangepointDetector(loss="beta").fit(X).changepoints_
    array([60])
    """

    _parameter_constraints: dict = {
        "models": [str, SegmentModel, "array-like"],
        "hazard": [Interval(Real, 1, None, closed="neither"), Hazard],
        "loss": [StrOptions({"auto", "log", "beta"}), LogLoss, BetaLoss],
        "run_length_loss": [StrOptions({"auto", "log", "beta"}), LogLoss, BetaLoss],
        "divergence": [StrOptions({"kl"}), KLDivergence],
        "model_prior": ["array-like", None],
        "feature_columns": ["array-like", None],
        "scaling": [StrOptions({"auto"}), tuple, None],
        "burn_in": [Interval(Integral, 1, None, closed="left"), None],
        "max_hypotheses": [Interval(Integral, 2, None, closed="left"), None],
        "min_probability": [Interval(Real, 0, 1, closed="left")],
        "threshold": [Interval(Real, 0, None, closed="left")],
        "history": [Interval(Integral, 1, None, closed="left")],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        models: str | SegmentModel | Sequence[SegmentModel] = "auto",
        hazard: float | Hazard = 100.0,
        loss: str | LogLoss | BetaLoss = "log",
        run_length_loss: str | LogLoss | BetaLoss = "auto",
        divergence: str | KLDivergence = "kl",
        model_prior: ArrayLike | None = None,
        feature_columns: Sequence[int | str] | None = None,
        scaling: str | tuple | None = "auto",
        burn_in: int | None = None,
        max_hypotheses: int | None = 200,
        min_probability: float = 1e-7,
        threshold: float = 0.5,
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
        self.threshold = threshold
        self.history = history
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Detect the changepoints of a series.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples,)
            The rows of a series in their order, NaN where missing. Dates belong into
            the index of a DataFrame or Series, which is the time of trends.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            X, a parameter or a combination is not valid; the message says what to do.
        KeyboardInterrupt
            Ctrl-C was pressed. The rows so far have been processed, and `partial_fit`
            can continue with row ``n_rows_seen_``.
        """
        rows = self._batch(X, reset=True, is_series=True)
        n = len(rows)
        self._feed = Feed(self._settings, self.burn_in or n, max(n, self.history))
        name = type(self).__name__ if self.verbose else None
        try:
            self._feed.push(rows, closes=True, name=name)
        except Exception:
            del self._feed
            raise
        finally:
            if "_feed" in vars(self):
                self._feed.burn_in = self.burn_in or STREAM_BURN_IN
        self._warn(is_complete=True)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Process the next rows of a series.

        Until the burn-in is complete, results are those of a fit to the rows so far,
        computed on request. Afterwards, they do not depend on how the stream is divided
        into calls.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            One row or many, NaN where missing.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            As `fit`.
        KeyboardInterrupt
            As `fit`.
        """
        if "_feed" in vars(self):
            rows = self._batch(X)
        else:
            rows = self._batch(X, reset=True)
            burn_in = self.burn_in or STREAM_BURN_IN
            self._feed = Feed(self._settings, burn_in, self.history)
        self._feed.push(rows, name=type(self).__name__ if self.verbose else None)
        self._warn(is_complete=False)
        return self

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
        return self._replay(X).labels_

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

    def __sklearn_is_fitted__(self) -> bool:
        return "_feed" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _batch(
        self, X: ArrayLike, reset: bool = False, is_series: bool = False
    ) -> Batch:
        """Check rows; one dimension is one series for `fit`, and perhaps one row."""
        if reset:
            vars(self).pop("_feed", None)
        X = as_numpy(X)
        labels = labels_of(X)
        times = times_of(labels)
        X = as_table(X, is_series if reset else self.n_features_in_ == 1)
        X = validate_data(
            self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan"
        )
        if reset:
            names = getattr(self, "feature_names_in_", None)
            columns = find_columns(self.feature_columns, X.shape[1], names)
            self._series, self._features = columns
            self._settings = found = Settings.of(self, X[:, self._series])
            self.models_, self.hazard_ = found.models, found.hazard
            self.model_prior_, self.divergence_ = found.model_prior, found.divergence
        series = X[:, self._series]
        check_values(series, self.models_[0].support)
        return Batch(series, X[:, self._features], labels, times)

    def _replay(self, X: ArrayLike) -> Self:
        """Run a series from its first row, with the priors of the fit."""
        check_is_fitted(self)
        rows = self._batch(X)
        other = copy(self)
        other._feed = self._feed.replay(rows)
        return other

    def _warn(self, is_complete: bool) -> None:
        """Warn once of columns that the models do not suit."""
        columns, self._feed.measured = self._feed.measured, ()
        names = [f"Column {name}" for name in self._series_names()][: len(columns)]
        if message := misfits(columns, names, self.models_, is_complete):
            warn_user(message, SkviWarning)
