"""`skvi.evidence_bounds`: the method for objects that do not forward it."""

from typing import Any

from sklearn.exceptions import NotFittedError

from skvi.evidence._result import EvidenceBounds


def evidence_bounds(estimator: Any, X: Any, y: Any, **options: Any) -> EvidenceBounds:
    """Bound the log evidence of a fitted estimator, pipeline or search.

    A `Pipeline` and a `GridSearchCV` do not forward the estimator's method
    ``evidence_bounds``; this function finds the estimator and transforms X on the
    way.

    Parameters
    ----------
    estimator : estimator, Pipeline or search, fitted
    X : array-like of shape (n, d)
        The training features, before the pipeline's transformations.
    y : array-like of shape (n,)
        The training target.
    **options : dict
        Passed to the estimator's method: ``sample_weight``, ``n_draws``,
        ``precision``, ``random_state``, ``method``.

    Returns
    -------
    EvidenceBounds

    Raises
    ------
    TypeError
        There is no estimator with the method ``evidence_bounds`` inside.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import skvi
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> X, y = X[:100], y[:100]
    >>> model = make_pipeline(StandardScaler(), BayesianLogisticRegression()).fit(X, y)
    >>> bounds = skvi.evidence_bounds(model, X, y, random_state=0)
    >>> bool(abs(bounds.estimate + 7.19) < 0.02)
    True
    """
    found = estimator
    while not hasattr(found, "evidence_bounds"):
        if hasattr(found, "best_estimator_"):
            found = found.best_estimator_
        elif hasattr(found, "best_params_") or hasattr(found, "param_grid"):
            raise NotFittedError("Fit the search with refit=True first.")
        elif hasattr(found, "steps"):
            if len(found.steps) > 1:
                X = found[:-1].transform(X)
            found = found[-1]
        else:
            raise TypeError(
                f"{type(found).__name__} has no method evidence_bounds. Pass a linear "
                "model of skvi, or a Pipeline or search that ends in one."
            )
    return found.evidence_bounds(X, y, **options)
