"""The estimator that a pipeline or a fitted search ends in."""

from typing import Any

from sklearn.exceptions import NotFittedError

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


def missing(estimator: Any, name: str, advice: str) -> TypeError:
    """Say that an estimator lacks an attribute."""
    if hasattr(estimator, "regressor_") and hasattr(estimator, "transformer_"):
        advice = TRANSFORMED
    kind = "attribute" if name.endswith("_") else "method"
    return TypeError(f"{type(estimator).__name__} has no {kind} {name}. {advice}")
