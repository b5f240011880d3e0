"""`skvi.evidence_bounds`: the method for objects that do not forward it."""

from typing import Any

from skvi.evidence._result import EvidenceBounds
from skvi.utils._unwrap import unwrap


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
    found, X = unwrap(estimator, X, "evidence_bounds", ADVICE)
    return found.evidence_bounds(X, y, **options)


ADVICE = "Pass a linear model of skvi, or a Pipeline or search that ends in one."
