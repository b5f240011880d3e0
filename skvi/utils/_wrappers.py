"""Pipelines and searches: what they end in, and transformed targets."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags

from skvi.utils._validation import check_levels, interval_levels

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


TRANSFORMED = (
    "It changes the unit of y, so that coefficients and evidences of its regressor "
    "are not those of y. Use normalize_y=True, or transform y beforehand."
)


def feature_names(estimator: Any) -> Any:
    """Names of the features that a pipeline hands to its last step, or None."""
    while hasattr(estimator, "best_estimator_"):
        estimator = estimator.best_estimator_
    if not hasattr(estimator, "steps") or len(estimator.steps) < 2:
        return None
    try:
        return estimator[:-1].get_feature_names_out()
    except (AttributeError, ValueError):  # a transformer that names nothing
        return None


def unwrap(
    estimator: Any, X: Any, name: str, advice: str, transform: bool = True
) -> tuple[Any, Any]:
    """Return the inner estimator with an attribute, and X transformed for it.

    `advice` ends the message of the TypeError that is raised if nothing has it.
    """
    found, X = innermost(estimator, X, name, transform)
    if not hasattr(found, name):
        raise missing(found, name, advice)
    return found, X


def innermost(
    estimator: Any, X: Any, name: str, transform: bool = True
) -> tuple[Any, Any]:
    """Follow searches and pipelines to an attribute, or else to their end."""
    while not hasattr(estimator, name):
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "best_params_") or hasattr(estimator, "param_grid"):
            raise NotFittedError("Fit the search with refit=True first.")
        elif hasattr(estimator, "steps"):
            if transform:
                X = _transformed(estimator, X)
            estimator = estimator.steps[-1][1]
        else:
            break
    return estimator, X


def _transformed(pipeline: Any, X: Any) -> Any:
    """Features for the last step; samplers act on the rows of a fit alone."""
    for _, step in pipeline.steps[:-1]:
        if step not in (None, "passthrough") and not resamples(step):
            X = step.transform(X)
    return X


def resamples(step: Any) -> bool:
    """Whether a step of imbalanced-learn's pipelines is a sampler."""
    return hasattr(step, "fit_resample")


OF_NUMBERS = "predict_interval", "predict_quantiles", "sample_y"


def missing(estimator: Any, name: str, advice: str) -> TypeError:
    """Say that an estimator lacks an attribute."""
    if hasattr(estimator, "regressor_") and hasattr(estimator, "transformer_"):
        advice = TRANSFORMED
    elif is_classifier(estimator) and name in OF_NUMBERS:
        advice = "Classes have predict_proba and predict_proba_interval instead."
    elif name == "summary":
        advice = "Tables of coefficients are those of linear models."
    kind = "attribute" if name.endswith("_") else "method"
    return TypeError(f"{type(estimator).__name__} has no {kind} {name}. {advice}")


POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def refuse_supervised(estimator: Any) -> None:
    """Raise ValueError if transformers that use y made an estimator's features."""
    found = supervised_transformers(estimator)
    if found:
        raise ValueError(
            f"The pipeline makes its features from y, by {', '.join(found)}. An "
            "evidence is the probability that a model gave to y before it saw it, and "
            "features that were made from y are no such model: noise gets a high "
            "evidence. Use transformers without y (PCA, VarianceThreshold, "
            "SplineTransformer), give the model all features with a sparse prior such "
            "as prior='horseshoe', or choose the columns on other rows. "
            "allow_supervised_transformers=True computes the number regardless: for "
            "transformers that do not use y after all, or were fitted to other rows."
        )


def refuse_samplers(estimator: Any) -> None:
    """Raise ValueError if a pipeline's sampler changes the rows of the fit."""
    if found := _samplers(estimator):
        raise ValueError(
            f"The sampler {', '.join(found)} makes the rows of the fit, and an "
            "evidence of rows that were drawn or invented is not one of the data. "
            "Leave it out, or use sample_weight or class_weight in its place."
        )


def _samplers(estimator: Any) -> list[str]:
    """Names of the classes of imbalanced-learn's samplers in a pipeline."""
    return [type(step).__name__ for step in _steps(estimator) if resamples(step)]


def supervised_transformers(estimator: Any) -> list[str]:
    """Names of the classes of the transformers that use y, in order.

    Known by scikit-learn's tags, by a ``fit`` whose ``y`` has no default, or by kind
    (searches, partial least squares, feature selectors). Others are not detected.
    """
    found = [type(t).__name__ for t in _transformers(estimator) if _uses_y(t)]
    return list(dict.fromkeys(found))


def _transformers(estimator: Any) -> Iterator[Any]:
    """All transformers before the final estimator, with those inside of them."""
    for step in _steps(estimator):
        yield from _with_inner(step)


def _steps(estimator: Any) -> Iterator[Any]:
    """All steps before the final estimator."""
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "steps"):
            for _, step in estimator.steps[:-1]:
                yield step
            estimator = estimator.steps[-1][1]
        else:
            return


def _with_inner(step: Any) -> Iterator[Any]:
    """A step, and the transformers inside it; "passthrough" and None are none."""
    inner = step.get_params(deep=True).values() if hasattr(step, "get_params") else ()
    for part in (step, *inner):
        if hasattr(part, "transform") and not isinstance(part, type):
            yield part


def _uses_y(transformer: Any) -> bool:
    # Imported late: they would make `import skvi` take almost twice as long.
    from sklearn.cross_decomposition import PLSSVD
    from sklearn.feature_selection import (
        SelectFromModel,
        SelectorMixin,
        VarianceThreshold,
    )
    from sklearn.frozen import FrozenEstimator

    if isinstance(transformer, VarianceThreshold):
        return False
    if isinstance(transformer, (SelectFromModel, FrozenEstimator)):
        return _uses_y(transformer.estimator)
    return (
        isinstance(transformer, (SelectorMixin, PLSSVD))
        or _scores(transformer)
        or _needs_y(transformer.fit)
        or _has_supervised_tags(transformer)
    )


def _scores(transformer: Any) -> bool:
    """Whether a transformer chooses by scores, as searches do."""
    get_params = getattr(transformer, "get_params", None)
    return get_params is not None and "scoring" in get_params(deep=False)


def _needs_y(fit: Any) -> bool:
    """Whether `fit` cannot be called with X alone, under any name of y."""
    second = list(inspect.signature(fit).parameters.values())[1:2]
    return any(p.kind in POSITIONAL and p.default is p.empty for p in second)


def _has_supervised_tags(transformer: Any) -> bool:
    if not hasattr(transformer, "__sklearn_tags__"):
        return False
    required = get_tags(transformer).target_tags.required
    return bool(required or is_classifier(transformer) or is_regressor(transformer))
