"""Predictive distributions of any regressor or classifier, by skvi's methods."""

import inspect
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from sklearn.base import is_classifier
from sklearn.utils import check_random_state

from skvi.utils._tensors import LOG_2PI
from skvi.utils._validation import check_levels, interval_levels
from skvi.utils._wrappers import TransformedTarget, innermost, missing


def find_forecast(estimator: Any, X: Any, name: str, advice: str) -> tuple[Any, Any]:
    """Return the inner object with a method of forecasts, and X transformed for it.

    Estimators of other libraries are wrapped. `advice` ends the message of a TypeError.
    """
    found, X = innermost(estimator, X, name)
    forecast = found if hasattr(found, "predict_log_density") else _wrapped(found)
    if not hasattr(forecast, name):
        raise missing(found, name, advice)
    return forecast, X


def _wrapped(estimator: Any) -> Any:
    """The estimator with methods of forecasts, or as it is if it has none."""
    if hasattr(estimator, "regressor_") and hasattr(estimator, "transformer_"):
        return TransformedTarget(estimator, find_forecast)
    if is_classifier(estimator):
        is_probable = hasattr(estimator, "predict_proba")
        return ClassForecast(estimator) if is_probable else estimator
    predict = getattr(estimator, "predict", None)
    if predict and "return_std" in inspect.signature(predict).parameters:
        return NormalForecast(estimator)
    return estimator


class NormalForecast:
    """Normals with the moments of ``predict(X, return_std=True)``."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def _moments(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        # Arrays, since some estimators answer a DataFrame by a Series.
        mean, std = map(np.asarray, self.estimator.predict(X, return_std=True))
        bad = int(np.sum(~(std > 0)))
        if bad:
            raise ValueError(
                f"{type(self.estimator).__name__} predicts a standard deviation of 0 "
                f"{bad} times: a certain forecast has no density. Give it noise, such "
                "as kernel=... + WhiteKernel() of a Gaussian process."
            )
        return mean, std

    def predict_quantiles(self, X: Any, quantiles: ArrayLike) -> np.ndarray:
        """Quantiles, (n, q) or (n, q, K)."""
        mean, std = self._moments(X)
        z = ndtri(check_levels(quantiles))
        return np.stack([mean + std * offset for offset in z], 1)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Central intervals, (n, 2) or (n, 2, K)."""
        name = type(self.estimator).__name__
        return self.predict_quantiles(X, interval_levels(name, coverage))

    def predict_log_density(self, X: Any, y: ArrayLike) -> np.ndarray:
        """Log densities, (n,), summed over targets."""
        mean, std = self._moments(X)
        z = (np.asarray(y, dtype=np.float64) - mean) / std
        density = -0.5 * (z**2 + LOG_2PI) - np.log(std)
        return density.reshape(len(density), -1).sum(1)

    def sample_y(
        self, X: Any, n_draws: int = 1, random_state: Any = None
    ) -> np.ndarray:
        """Independent draws, (n, S) or (n, K, S)."""
        mean, std = (a[..., None] for a in self._moments(X))
        shape = (*mean.shape[:-1], n_draws)
        return mean + std * check_random_state(random_state).standard_normal(shape)

    def _predictive_normals(self, X: Any) -> tuple[np.ndarray, np.ndarray, None]:
        mean, std = self._moments(X)
        return mean[..., None], std[..., None], None


class ClassForecast:
    """Log probabilities from ``predict_proba(X)``."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def predict_log_density(self, X: Any, y: ArrayLike) -> np.ndarray:
        """Log probability of each label, (n,)."""
        is_own = np.asarray(y)[:, None] == self.estimator.classes_
        unknown = np.asarray(y)[~is_own.any(1)]
        if len(unknown):
            raise ValueError(
                f"y has the label {unknown[0]}, which was not in the fit. Score rows "
                f"of the classes {list(self.estimator.classes_)}."
            )
        with np.errstate(divide="ignore"):
            return np.log(self.estimator.predict_proba(X)[is_own])
