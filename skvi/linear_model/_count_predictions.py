"""The model of counts, and predictions from a normal log rate."""

from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _num_samples,
    check_consistent_length,
    check_is_fitted,
)

from skvi._estimator._model import Response, check_numbers
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.likelihoods import HurdleLikelihood, Likelihood
from skvi.linear_model._one_output import OneOutputMixin
from skvi.losses import Loss
from skvi.utils._blocks import by_blocks
from skvi.utils._tensors import make_generator
from skvi.utils._validation import (
    check_array,
    check_levels,
    column_or_1d,
    interval_levels,
    warn_user,
)

NO_EXPOSURE = (
    "{}: the fit had an exposure and this call has none, so that predictions are of "
    "one unit of it. Give it exposure=..., exposure=1 if that is meant; in searches "
    "and cross-validation, call "
    "sklearn.set_config(enable_metadata_routing=True), set_fit_request(exposure=True) "
    "of the regressor, set_score_request(exposure=True) of regressor or scorer, and "
    "pass params={{'exposure': ...}}."
)


class CountPredictionMixin(OneOutputMixin):
    """Mixin: predictive moments, quantiles, mass and draws of Poisson counts."""

    def _of_rows(self, X, exposure, function, *columns):
        """What a function gives for the distributions of new counts; in X's dtype."""
        check_is_fitted(self)
        X = self._check_X(X)
        return self._of_offset(X, self._offset(X, exposure), function, *columns)

    def _offset(self, X, exposure):
        """Offset of f, (n,), or None; warns if only the fit had an exposure."""
        if self._had_exposure and exposure is None:
            warn_user(NO_EXPOSURE.format(type(self).__name__), SkviWarning)
        given = self._check_exposure(X, exposure)
        offset = self._model.offset(given, _num_samples(X))
        if offset is None or not self._n_beside():
            return offset
        return np.pad(offset[:, None], ((0, 0), (0, self._n_beside())))

    @overload
    def predict(
        self, X: Any, return_std: Literal[False] = ..., exposure: ArrayLike | None = ...
    ) -> np.ndarray: ...

    @overload
    def predict(
        self, X: Any, return_std: bool = ..., exposure: ArrayLike | None = ...
    ) -> Any: ...

    @by_blocks
    def predict(
        self, X: Any, return_std: bool = False, exposure: ArrayLike | None = None
    ) -> Any:
        """Predict the mean count, averaged over the posterior.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        return_std : bool, default=False
            Whether to return standard deviations of a new count as well.
        exposure : array-like of shape (n_samples,), default=None
            Positive; None is 1 for every row: the rate per unit.

        Returns
        -------
        mean : ndarray of shape (n_samples,)
            E exp(f), exact: larger than the rate at the posterior mean. Where it comes
            from rates above it that have a posterior probability below 1 %, as where
            few rows leave the scale of the coefficients open, or does not exist, the
            median of a new count, with a `SkviWarning`.
        std : ndarray of shape (n_samples,)
            Only with ``return_std=True``: the square root of the variance of the rate
            plus the mean rate (Poisson noise), and for negative binomial counts the
            mean of dispersion times squared rate; infinite without a mean.
        """
        found = self._of_rows(X, exposure, self._moments_or_medians)
        return self._warned_moments(found, return_std)

    def predict_uncertainty(
        self, X: Any, exposure: ArrayLike | None = None
    ) -> dict[str, np.ndarray]:
        """Predict how uncertain a new count is, for both reasons apart.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        exposure : array-like of shape (n_samples,), default=None

        Returns
        -------
        dict of str to ndarray of shape (n_samples,)
            Standard deviations: "noise_std" of counts around their rate ("aleatoric"),
            and "function_std" of the rate ("epistemic"), which more rows would reduce.
            Their squares sum to that of ``predict(X, return_std=True)``.
        """
        return self._parts_apart(self._of_rows(X, exposure, self._deviations))

    def predict_quantiles(
        self, X: Any, quantiles: ArrayLike, exposure: ArrayLike | None = None
    ) -> np.ndarray:
        """Predict quantiles of a new count.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        quantiles : float or array-like of shape (n_quantiles,)
            Probabilities in (0, 1).
        exposure : array-like of shape (n_samples,), default=None

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles)
            The smallest counts whose cumulative probability reaches these values.
        """
        levels = check_levels(quantiles)
        return self._of_rows(X, exposure, lambda counts: counts.quantiles(levels))

    def _cumulative(self, X, exposure=None):
        """Distribution function of new counts in rows of X."""
        return lambda y: self._of_rows(X, exposure, lambda p, y: p.cdf(y), y)

    def predict_interval(
        self, X: Any, coverage: float = 0.9, exposure: ArrayLike | None = None
    ) -> np.ndarray:
        """Predict a central interval for a new count.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        coverage : float, default=0.9
            Minimum probability of the interval, in (0, 1).
        exposure : array-like of shape (n_samples,), default=None

        Returns
        -------
        ndarray of shape (n_samples, 2)
            Lower and upper end; both belong to the interval.
        """
        levels = interval_levels(type(self).__name__, coverage)
        return self.predict_quantiles(X, levels, exposure)

    def predict_log_density(
        self, X: Any, y: Any, exposure: ArrayLike | None = None
    ) -> np.ndarray:
        """Log predictive mass of each count: the proper score of a forecast.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Counts.
        exposure : array-like of shape (n_samples,), default=None
            Without it, a `SkviWarning` if the fit had one.

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats, each row given the training data alone.

        Raises
        ------
        ValueError
            The fit, or this call, was given rates instead of counts.
        """
        check_is_fitted(self)
        counts = self._model.response.check_counts(y, "predict_log_density")
        check_consistent_length(X, counts)
        return self._of_rows(X, exposure, lambda p, y: p.log_density(y), counts)

    def sample_y(
        self,
        X: Any,
        n_draws: int = 1,
        random_state: int | np.random.RandomState | None = None,
        exposure: ArrayLike | None = None,
    ) -> np.ndarray:
        """Draw new counts from the posterior predictive distribution.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        n_draws : int, default=1
        random_state : int, RandomState instance or None, default=None
        exposure : array-like of shape (n_samples,), default=None

        Returns
        -------
        ndarray of shape (n_samples, n_draws)
            Every column uses one draw of the coefficients and of an unknown dispersion,
            the same for all rows.
        """
        X = self._check_X(X)
        random_state = check_random_state(random_state)
        theta = self._draw(n_draws, random_state)
        return self._observations(X, theta, random_state, exposure)

    def _observations(self, X, theta, random_state, exposure=None):
        """One new count given each draw, (n, S)."""
        counts = self._from_draws(X, theta, self._offset(X, exposure))
        return counts.observations(make_generator(random_state)).astype(X.dtype)

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> float:
        """Fraction of the Poisson deviance explained, D^2.

        The same for every likelihood, so that different ones can be compared.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
        exposure : array-like of shape (n_samples,), default=None
            Without it, a `SkviWarning` if the fit had one.

        Returns
        -------
        float
            1 - deviance / null deviance, as in `PoissonRegressor`; the null model has
            one rate per unit of exposure. At most 1; 0 if all predicted rates are
            equal.
        """
        rate = self.predict(X, exposure=exposure).astype(np.float64)
        y = self._model.response.encode(y)
        check_consistent_length(y, rate)
        weight = self._check_weights(rate[:, None], sample_weight)
        weight = np.ones(len(y)) if weight is None else weight
        offset = self._check_exposure(rate, exposure)
        unit = np.ones(len(y)) if offset is None else np.exp(offset)
        null = unit * (weight @ y) / (weight @ unit)

        def deviance(mean):
            return float(weight @ (xlogy(y, y) - xlogy(y, mean) - y + mean))

        worst = deviance(null)
        if worst <= 1e-12 * float(weight @ y):
            return 0.0
        return 1 - deviance(rate) / worst


# Above this, not every integer is representable.
MAX_COUNT = 2.0**53


@dataclass(frozen=True, eq=False)
class Counts(Response):
    """Nonnegative numbers, and whether those of the fit were counts."""

    are_counts: bool

    @classmethod
    def find(cls, y: Any) -> "Counts":
        """Inspect the targets of a fit."""
        y = check_numbers(y)
        return cls(bool((y == np.floor(y)).all()))

    def encode(self, y: Any) -> np.ndarray:
        """Check that targets can be counts or rates; see `Response.encode`."""
        y = column_or_1d(check_numbers(y), warn=True)
        if (y < 0).any():
            raise ValueError(
                "Negative values in y: counts are needed, 0, 1, 2, ... Got "
                f"{y.min():.6g}. For such numbers use BayesianLinearRegression."
            )
        if y.max(initial=0.0) > MAX_COUNT:
            raise ValueError(
                f"y has values up to {y.max():.6g}: floats above {MAX_COUNT:.0g} are "
                "not counts. Give counts in larger units, with exposure for their size."
            )
        return y

    def check_loss(self, loss: Loss) -> None:
        """Raise if a loss sums over counts, and the targets are not counts."""
        if not (self.are_counts or loss.is_log_loss):
            raise IncompatibleComponentsError(
                f"loss={loss!r}",
                "counts, 0, 1, 2, ..., because it sums over them; y has other values",
                "counts and exposure, or loss='log'",
            )

    def check_counts(self, y: Any, name: str) -> np.ndarray:
        """Encode targets; raise if they, or those of the fit, are not counts."""
        y = self.encode(y)
        if self.are_counts and (y == np.floor(y)).all():
            return y
        raise ValueError(
            f"{name} needs counts, 0, 1, 2, ...: a Poisson distribution gives other "
            "values no probability. Fit counts with exposure=... instead of rates "
            "with sample_weight=..., which has the same posterior."
        )


def log_exposure(exposure: Any, n_rows: int) -> np.ndarray:
    """Logarithms of positive exposures, one for each row, or one for all of them."""
    if np.ndim(exposure) == 0:
        exposure = np.full(n_rows, exposure)
    exposure = check_array(
        exposure, ensure_2d=False, dtype=np.float64, input_name="exposure"
    )
    exposure = column_or_1d(exposure)
    if len(exposure) != n_rows or not (exposure > 0).all():
        raise ValueError(
            f"exposure must have one positive number for each of the {n_rows} "
            f"rows. Got {len(exposure)} numbers, the smallest "
            f"{exposure.min():.6g}. Leave out rows that were never exposed."
        )
    return np.log(exposure)


def check_likelihood(likelihood: Likelihood) -> None:
    """Raise if a likelihood is not one of counts."""
    is_hurdle = isinstance(likelihood, HurdleLikelihood) and likelihood.at == 0
    if not likelihood.is_discrete or likelihood.n_outputs != 1 + is_hurdle:
        raise IncompatibleComponentsError(
            f"likelihood={likelihood!r}",
            "is_discrete = True and n_outputs = 1, as a distribution of counts; zeros "
            "apart need HurdleLikelihood(..., at=0) or ZeroInflatedLikelihood",
            "'poisson', 'negative_binomial', or another Likelihood",
        )
