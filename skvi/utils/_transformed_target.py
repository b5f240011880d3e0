"""Forecasts of y from those of a regressor of a transformed y."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skvi.utils._validation import check_levels, interval_levels

__all__ = ["TransformedTarget"]

# Beyond these quantiles a transformation is not looked at.
TAIL = 1e-3
# Places between them.
N_GRID = 1000
# Step of a derivative, in quartile distances; how far two of its estimates may differ.
STEP, SMOOTH = 1e-3, 1e-3
ROUNDING = 1e-10


class TransformedTarget:
    """A fitted `TransformedTargetRegressor`, with methods of forecasts.

    Quantiles of y are ``inverse_func`` of those of z = func(y), if it is monotone.
    """

    def __init__(self, estimator: Any, find: Callable) -> None:
        self.estimator, self._find = estimator, find

    def predict_quantiles(
        self, X: Any, quantiles: ArrayLike, **options: Any
    ) -> np.ndarray:
        """Quantiles of y, (n, q), or (n, q, 1) if y was a column."""
        levels = check_levels(quantiles)
        ends = [TAIL, 1 - TAIL]
        z = self._quantiles(X, np.r_[levels, 1 - levels, ends], options)
        direction = self._direction(z)
        size = len(levels)
        y = self._inverse(z[:, :size] if direction > 0 else z[:, size : 2 * size])
        return self._shaped(y)

    def predict_interval(
        self, X: Any, coverage: float = 0.9, **options: Any
    ) -> np.ndarray:
        """Central intervals, (n, 2), or (n, 2, 1) if y was a column."""
        levels = interval_levels(type(self.estimator).__name__, coverage)
        return self.predict_quantiles(X, levels, **options)

    def sample_y(self, X: Any, n_draws: int = 1, **options: Any) -> np.ndarray:
        """Draws of y, (n, S), for any transformation, or (n, 1, S)."""
        found, X = self._inner(X, "sample_y")
        z = self._one_target(found.sample_y(X, n_draws=n_draws, **options), 1)
        y = self._inverse(z)
        return y[:, None] if self._is_column else y

    def predict_log_density(self, X: Any, y: ArrayLike, **options: Any) -> np.ndarray:
        """Log density of y: that of z, minus log |dy/dz|."""
        y = np.asarray(y, dtype=np.float64).reshape(-1, 1)
        with np.errstate(all="ignore"):
            z = np.asarray(self.estimator.transformer_.transform(y), dtype=np.float64)
        if z.shape != y.shape or not np.isfinite(z).all():
            raise self._refusal("some y are transformed to no finite number")
        y, z = y[:, 0], z[:, 0]
        around = self._quantiles(X, np.array([0.25, 0.75, TAIL, 1 - TAIL]), options)
        self._direction(around)
        if not np.allclose(self._inverse(z), y, rtol=1e-6, atol=0):
            raise self._refusal("its inverse does not return y")
        log_slope = self._log_slope(z, STEP * (around[:, 1] - around[:, 0]))
        found, X = self._inner(X, "predict_log_density")
        return found.predict_log_density(X, z, **options) - log_slope

    def _log_slope(self, z: np.ndarray, h: np.ndarray) -> np.ndarray:
        """Log |dy/dz|, by differences of fourth order."""
        near, far = (
            (self._inverse(z + k * h) - self._inverse(z - k * h)) / (2 * k * h)
            for k in (1, 2)
        )
        slope = (4 * near - far) / 3
        if not (np.abs(near - far) < SMOOTH * np.abs(slope)).all():
            raise self._refusal("its inverse has no smooth derivative")
        return np.log(np.abs(slope))

    def _inner(self, X: Any, name: str) -> tuple[Any, Any]:
        advice = "The regressor of a TransformedTargetRegressor must have it."
        return self._find(self.estimator.regressor_, X, name, advice)

    def _quantiles(self, X: Any, levels: np.ndarray, options: dict) -> np.ndarray:
        """Quantiles of z."""
        found, X = self._inner(X, "predict_quantiles")
        return self._one_target(found.predict_quantiles(X, levels, **options), 2)

    def _one_target(self, z: np.ndarray, axis: int) -> np.ndarray:
        """Quantiles or draws, (n, q), without the axis of several targets."""
        if z.ndim == 3 and z.shape[axis] == 1:
            z = z.squeeze(axis)
        if z.ndim == 3:
            raise self._refusal(
                "it may mix several targets, so that quantiles of one are no function "
                "of those of another"
            )
        return np.asarray(z, dtype=np.float64)

    def _inverse(self, z: np.ndarray) -> np.ndarray:
        """Values of y; NaN is refused."""
        inverse = self.estimator.transformer_.inverse_transform
        with np.errstate(all="ignore"):
            y = np.asarray(inverse(z.reshape(-1, 1)), dtype=np.float64)
        if y.size != z.size or np.isnan(y).any():
            raise self._refusal(
                f"its inverse is undefined for some predictions of {self._of(z)}"
            )
        return y.reshape(z.shape)

    def _direction(self, z: np.ndarray) -> int:
        """1 if y increases with z where predictions are, -1 if it decreases."""
        grid = np.linspace(z.min(), z.max(), N_GRID)
        y = self._inverse(np.unique(np.r_[grid, z.ravel()]))
        low, high = y[:-1], y[1:]
        slack = ROUNDING * np.maximum(np.abs(low), np.abs(high))
        for sign in (1, -1):
            if ((sign * high >= sign * low) | (np.abs(high - low) <= slack)).all():
                return sign
        raise self._refusal(
            f"its inverse is not monotone over predictions of {self._of(z)}, so "
            "that it does not map quantiles to quantiles"
        )

    def _of(self, z: np.ndarray) -> str:
        return f"transformed y from {z.min():.3g} to {z.max():.3g}"

    def _refusal(self, reason: str) -> ValueError:
        return ValueError(
            f"{type(self.estimator).__name__} has no such forecast of y: {reason}. "
            "Give it a monotone func and its inverse_func for one target, such as "
            "np.log and np.exp, or transform y beforehand."
        )

    @property
    def _is_column(self) -> bool:
        """Whether y was a column, the shape that predictions then have."""
        return getattr(self.estimator, "_training_dim", 1) == 2

    def _shaped(self, y: np.ndarray) -> np.ndarray:
        return y[..., None] if self._is_column else y
