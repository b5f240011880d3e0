"""Transformers that use the target, and why an evidence refuses them."""

import inspect
from collections.abc import Iterator
from typing import Any

from sklearn.base import is_classifier, is_regressor
from sklearn.utils import get_tags

from skvi.utils._unwrap import resamples

__all__ = [
    "refuse_samplers",
    "refuse_supervised",
    "supervised_transformers",
]

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
