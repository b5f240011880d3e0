"""`skvi.evidence_bounds`: the method for objects that do not delegate it."""

from typing import Any

from numpy.typing import ArrayLike

from skvi.evidence._result import EvidenceBounds
from skvi.utils._transformers import refuse_samplers, refuse_supervised
from skvi.utils._unwrap import unwrap


def evidence_bounds(
    estimator: Any,
    X: Any,
    y: ArrayLike,
    *,
    allow_supervised_transformers: bool = False,
    **options: Any,
) -> EvidenceBounds:
    """Bound the log evidence of a fitted estimator, pipeline or search.

    A `Pipeline` and a `GridSearchCV` do not delegate the estimator's method
    ``evidence_bounds``; this function finds the estimator and transforms X on the way.

    Parameters
    ----------
    estimator : estimator, Pipeline or search, fitted
    X : array-like of shape (n_samples, n_features)
        The training features, before the pipeline's transformations.
    y : array-like of shape (n_samples,)
        The training target.
    allow_supervised_transformers : bool, default=False
        Whether transformers of the pipeline may use y. Features made from y are not
        part of a model of y: the number is then not an evidence (it is high even for
        pure noise). True is for transformers that do not actually use y, or were fitted
        to other rows.
    **options : dict
        Passed to the estimator's method: ``sample_weight``, ``n_draws``,
        ``precision``, ``random_state``, ``method``.

    Returns
    -------
    EvidenceBounds

    Raises
    ------
    TypeError
        There is no inner estimator with the method ``evidence_bounds``.
    ValueError
        A transformer of the pipeline uses y, such as `SelectKBest` or `TargetEncoder`,
        possibly inside another one; or there is a sampler of imbalanced-learn, which
        changes the rows of the fit.

    Notes
    -----
    Transformers that use y are detected by scikit-learn's tags (``target_tags``,
    classifiers, regressors), by a ``fit`` whose ``y`` has no default, and, as most
    feature selectors have no tag, by their class. Third-party transformers that take
    ``y=None``, use it and have no tag are not detected; nor are functions that get y
    from elsewhere, and features that were selected by y beforehand.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import skvi
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> X, y = X[:100], y[:100]
    >>> regression = BayesianLogisticRegression(prior="normal")
    >>> model = make_pipeline(StandardScaler(), regression).fit(X, y)
    >>> bounds = skvi.evidence_bounds(model, X, y, random_state=0)
    >>> bool(abs(bounds.estimate + 9.20) < 0.02)
    True
    """
    refuse_samplers(estimator)
    if not allow_supervised_transformers:
        refuse_supervised(estimator)
    found, X = unwrap(estimator, X, "evidence_bounds", ADVICE)
    return found.evidence_bounds(X, y, **options)


ADVICE = "Pass an estimator of skvi, or a Pipeline or search that ends in one."
