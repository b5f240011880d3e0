"""Batches and predictions of one target, with further data of its rows."""

from __future__ import annotations  # short types in help()

from functools import partial
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import mean_tweedie_deviance, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _num_samples,
    check_consistent_length,
    check_is_fitted,
)

from skvi.exceptions import SkviWarning
from skvi.linear_model._one_output import OneOutputMixin
from skvi.utils._blocks import by_blocks
from skvi.utils._interrupts import with_callbacks
from skvi.utils._tensors import make_generator
from skvi.utils._validation import (
    _fit_context,
    check_array,
    check_levels,
    column_or_1d,
    interval_levels,
    warn_user,
)

NOT_GIVEN = (
    "{name}: the fit had {word}=..., and this call has not, so that predictions are "
    "for {word}={none}. Give it {word}=..., {word}={none} if that is meant; in "
    "searches and cross-validation, call "
    "sklearn.set_config(enable_metadata_routing=True), set_fit_request({word}=True) "
    "of the regressor, set_score_request({word}=True) of regressor or scorer, and "
    "pass params={{'{word}': ...}}."
)
# Deviance of the null model, relative to the targets, that is rounding.
NO_DEVIANCE = 1e-12


class RowPredictionMixin(OneOutputMixin):
    """Mixin: batches, predictions and scores by the distributions of new targets.

    `_row_data` names the further data of rows, such as the offset of f; see
    `_offset_of`. `_score_power` is the power of the mean in the variance, for
    the deviance of `score`; None is R^2.
    """

    _row_data: dict[str, float] = {"offset": 0}
    _score_power: Any = None

    def __init_subclass__(cls, **options):
        for method in ("partial_fit", "predict", "score"):  # scikit-learn's routing
            name = f"__metadata_request__{method}"
            setattr(cls, name, dict.fromkeys(cls._row_data))
        super().__init_subclass__(**options)

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: ArrayLike | None = None,
        forgetting: float = 1.0,
        **row_data: ArrayLike | None,
    ) -> Self:
        """Learn from a batch: the current posterior is the prior for the next batch.

        As `BayesianLinearModel.partial_fit`.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
        forgetting : float, default=1.0
            Power, in (0, 1], of the posterior so far, for data that drift; the rest is
            the first prior.
        **row_data : array-like of shape (n_samples,)
            What `fit` takes beside weights: ``exposure=``, ``offset=``, ``n_trials=``.

        Returns
        -------
        self
        """
        return self._learn_batch(X, y, sample_weight, row_data, forgetting=forgetting)

    def _offset_of(self, rows, n_rows):
        offset = rows.get("offset")
        return None if offset is None else column_of_rows("offset", offset, n_rows)

    def _row_data_of(self, data):
        return {"offset": data.offset}

    def _offset(self, X, rows):
        """Offset of f in the units of the fit, or None; warns of what only the fit had.

        Columns of f beside that of the target have none.
        """
        self._with_row_data(None, rows)
        for word in self._had_rows - {k for k, v in rows.items() if v is not None}:
            words = {"word": word, "none": self._row_data[word]}
            text = NOT_GIVEN.format(name=type(self).__name__, **words)
            warn_user(text, SkviWarning)
        n_rows = _num_samples(X)
        offset = self._model.offset(self._offset_of(rows, n_rows), n_rows)
        if offset is None or not self._n_beside():
            return offset
        return np.pad(offset[:, None], ((0, 0), (0, self._n_beside())))

    def _check_return_std(self, value):
        """Raise if data of rows are where `return_std` is."""
        if np.ndim(value):
            word = next(iter(self._row_data))
            raise TypeError(
                "return_std must be True or False; data of rows are given by name: "
                f"predict(X, {word}={word}). Got an array."
            )

    def _of_rows(self, X, rows, function, *columns):
        """What a function gives for the distributions of new targets; in X's dtype."""
        check_is_fitted(self)
        X = self._check_X(X)
        return self._of_offset(X, self._offset(X, rows), function, *columns)

    @overload
    def predict(
        self, X: Any, return_std: Literal[False] = ..., **row_data: ArrayLike | None
    ) -> np.ndarray: ...

    @overload
    def predict(
        self, X: Any, return_std: bool = ..., **row_data: ArrayLike | None
    ) -> Any: ...

    @by_blocks
    def predict(
        self, X: Any, return_std: bool = False, **row_data: ArrayLike | None
    ) -> Any:
        """Predict the mean of the target, averaged over the posterior.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        return_std : bool, default=False
            Whether to return standard deviations of a new observation as well.
        **row_data : array-like of shape (n_samples,)
            What `fit` takes beside weights, by the same name: ``exposure=``, without
            which counts are per unit of it, ``offset=`` or ``n_trials=``.

        Returns
        -------
        mean : ndarray of shape (n_samples,)
            That of the predictive distribution, and not of the likelihood at the
            posterior mean. Where it comes from means that have a posterior probability
            below 1 %, as where few rows leave the scale of the coefficients open, or
            does not exist, the median of a new observation, with a `SkviWarning`.
        std : ndarray of shape (n_samples,)
            Only with ``return_std=True``; noise included, infinite without a mean.
        """
        self._check_return_std(return_std)
        mean, std, lacks = self._of_rows(X, row_data, self._moments_or_medians).T
        self._warn_of_medians(lacks)
        return (mean, std) if return_std else mean

    def predict_uncertainty(
        self, X: Any, **row_data: ArrayLike | None
    ) -> dict[str, np.ndarray]:
        """Predict how uncertain a new observation is, for both reasons apart.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        **row_data : array-like of shape (n_samples,)
            What `fit` takes beside weights: ``exposure=``, ``offset=``, ``n_trials=``.

        Returns
        -------
        dict of str to ndarray of shape (n_samples,)
            Standard deviations: "noise_std" of observations around their mean
            ("aleatoric"), and "function_std" of the mean ("epistemic"), which more rows
            would reduce. Their squares sum to the variance of a new observation.
        """
        found = self._of_rows(X, row_data, self._deviations).T
        return dict(zip(("noise_std", "function_std"), found, strict=True))

    def predict_quantiles(
        self, X: Any, quantiles: ArrayLike, **row_data: ArrayLike | None
    ) -> np.ndarray:
        """Predict quantiles of a new observation, noise included.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        quantiles : float or array-like of shape (n_quantiles,)
            Probabilities in (0, 1).
        **row_data : array-like of shape (n_samples,)
            What `fit` takes beside weights: ``exposure=``, ``offset=``, ``n_trials=``.

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles)
            Integrated over the posterior to about 1e-6; of counts the smallest whose
            cumulative probability reaches these values.
        """
        levels = check_levels(quantiles)
        return self._of_rows(X, row_data, lambda new: new.quantiles(levels))

    def _cumulative(self, X, **rows):
        """Distribution function of new observations in rows of X."""
        return lambda y: self._of_rows(X, rows, lambda new, y: new.cdf(y), y)

    def predict_interval(
        self, X: Any, coverage: float = 0.9, **row_data: ArrayLike | None
    ) -> np.ndarray:
        """Predict a central interval for a new observation, noise included.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        coverage : float, default=0.9
            Probability of the interval, of counts the least one, in (0, 1).
        **row_data : array-like of shape (n_samples,)
            What `fit` takes beside weights: ``exposure=``, ``offset=``, ``n_trials=``.

        Returns
        -------
        ndarray of shape (n_samples, 2)
            Lower and upper end; both belong to the interval.
        """
        levels = interval_levels(type(self).__name__, coverage)
        return self.predict_quantiles(X, levels, **row_data)

    def predict_log_density(
        self, X: Any, y: Any, **row_data: ArrayLike | None
    ) -> np.ndarray:
        """Log predictive density, or mass, of each target: a proper score.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        **row_data : array-like of shape (n_samples,)
            What `fit` takes beside weights: ``exposure=``, ``offset=``, ``n_trials=``.

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats, in units of y, each row given the training data alone.

        Raises
        ------
        ValueError
            Of regressions of counts, if they were fitted to rates, or y is of rates.
        """
        check_is_fitted(self)
        y = self._dense_targets(self._with_row_data(y, row_data), "predict_log_density")
        check_consistent_length(X, y)
        return self._of_rows(X, row_data, lambda new, y: new.log_density(y), y)

    def _dense_targets(self, y, name):
        """Encoded targets; raise if a method needs their density, and there is none."""
        return self._model.response.encode(y)

    def sample_y(
        self,
        X: Any,
        n_draws: int = 1,
        random_state: int | np.random.RandomState | None = None,
        **row_data: ArrayLike | None,
    ) -> np.ndarray:
        """Draw new observations from the posterior predictive distribution.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        n_draws : int, default=1
        random_state : int, RandomState instance or None, default=None
        **row_data : array-like of shape (n_samples,)
            What `fit` takes beside weights: ``exposure=``, ``offset=``, ``n_trials=``.

        Returns
        -------
        ndarray of shape (n_samples, n_draws)
            Every column uses one draw of the coefficients and of an unknown dispersion,
            the same for all rows.
        """
        X, random_state = self._check_X(X), check_random_state(random_state)
        theta = self._draw(n_draws, random_state)
        return self._observations(X, theta, random_state, **row_data)

    def _observations(self, X, theta, random_state, **rows):
        """One new target given each draw, (n, S)."""
        new = self._from_draws(X, theta, self._offset(X, rows))
        return new.observations(make_generator(random_state)).astype(X.dtype)

    def score(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: ArrayLike | None = None,
        **row_data: ArrayLike | None,
    ) -> float:
        """Fraction of the deviance, or for rates of the variance, explained.

        The same for every likelihood, so that different ones can be compared.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
        **row_data : array-like of shape (n_samples,)
            What `fit` takes beside weights: ``exposure=``, ``offset=``, ``n_trials=``.

        Returns
        -------
        float
            At most 1. For rates R^2; else D^2, 1 - deviance / null deviance, as of
            scikit-learn's regressor of such targets. The null model has one mean, per
            unit of exposure, or beside the offset; 0 if that explains all.
        """
        mean = self.predict(X, **row_data).astype(np.float64)
        y = self._model.response.encode(y)
        check_consistent_length(y, mean)
        weight = self._check_weights(mean[:, None], sample_weight)
        if (power := self._score_power) is None:
            return float(r2_score(y, mean, sample_weight=weight))
        if not y.any():
            return 0.0
        offset = self._offset_of(row_data, len(y))
        unit = np.ones(len(y)) if offset is None else np.exp(offset)
        w = np.ones(len(y)) if weight is None else weight
        null = unit * (w @ (y * unit ** (1 - power))) / (w @ unit ** (2 - power))
        given = {"power": power, "sample_weight": weight}
        deviance = partial(mean_tweedie_deviance, y, **given)
        scale = float(np.average(y ** (2 - power), weights=weight))
        if (worst := deviance(null)) <= NO_DEVIANCE * scale:
            return 0.0
        return float(1 - deviance(mean) / worst)


def column_of_rows(name, values, n_rows):
    """One finite number for each row, from one for each or one for all."""
    if np.ndim(values) == 0:
        values = np.full(n_rows, float(values))
    values = check_array(values, ensure_2d=False, dtype=np.float64, input_name=name)
    values = column_or_1d(values)
    if len(values) != n_rows:
        raise ValueError(
            f"{name} must have one number for each of the {n_rows} rows. Got "
            f"{len(values)} numbers."
        )
    return values
