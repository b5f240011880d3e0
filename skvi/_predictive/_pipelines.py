"""Predictions of the final estimator of a pipeline or search."""

from operator import methodcaller
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skvi.utils._forecasts import find_forecast
from skvi.utils._wrappers import feature_names, unwrap

ADVICE = (
    "Pass an estimator of skvi, or one with predict(X, return_std=True), or a Pipeline "
    "or fitted search that ends in one."
)


def _call(estimator: Any, method: str, X: Any, *args: Any, **options: Any) -> Any:
    found, X = find_forecast(estimator, X, method, ADVICE)
    return methodcaller(method, X, *args, **options)(found)


def predict_interval(estimator: Any, X: Any, **options: Any) -> np.ndarray:
    """Predict a central interval for a new observation, noise included.

    A `Pipeline` and a `GridSearchCV` do not delegate the estimator's method
    ``predict_interval``; this function finds the estimator and transforms X on the way.

    Parameters
    ----------
    estimator : estimator, Pipeline or search, fitted
        The final estimator is an skvi regressor, or another one with
        ``predict(X, return_std=True)``, taken as normal; or a
        `TransformedTargetRegressor` of one, with a monotone function.
    X : array-like of shape (n_samples, n_features)
        Features before the transformations of the pipeline.
    **options : dict
        Passed to the estimator's method: ``coverage``, and ``exposure`` of counts.

    Returns
    -------
    ndarray of shape (n_samples, 2)
        Lower and upper end. For several targets, shape (n_samples, 2, n_outputs).

    Raises
    ------
    TypeError
        There is no inner estimator with this method.
    ValueError
        A transformed target has no such forecast, with the reason.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import skvi
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), BayesianLinearRegression()).fit(X, y)
    >>> skvi.predict_interval(model, X[:2], coverage=0.5).round()
    array([[166., 240.],
           [ 34., 108.]])
    """
    return _call(estimator, "predict_interval", X, **options)


def predict_quantiles(
    estimator: Any, X: Any, quantiles: ArrayLike, **options: Any
) -> np.ndarray:
    """Predict quantiles of a new observation, noise included.

    Parameters
    ----------
    estimator : estimator, Pipeline or search, fitted
        As for `predict_interval`.
    X : array-like of shape (n_samples, n_features)
        Features before the transformations of the pipeline.
    quantiles : float or array-like of shape (n_quantiles,)
        Probabilities in (0, 1).
    **options : dict
        Passed to the estimator's method: ``exposure`` of counts.

    Returns
    -------
    ndarray of shape (n_samples, n_quantiles)
        For several targets, shape (n_samples, n_quantiles, n_outputs).

    Raises
    ------
    TypeError
        There is no inner estimator with this method.
    ValueError
        A transformed target has no such forecast, with the reason.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import skvi
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), BayesianLinearRegression()).fit(X, y)
    >>> skvi.predict_quantiles(model, X[:2], [0.25, 0.75]).round()
    array([[166., 240.],
           [ 34., 108.]])
    """
    return _call(estimator, "predict_quantiles", X, quantiles, **options)


def predict_log_density(
    estimator: Any, X: Any, y: ArrayLike, **options: Any
) -> np.ndarray:
    """Log predictive density, or probability, of each target, in nats.

    Parameters
    ----------
    estimator : estimator, Pipeline or search, fitted
        As for `predict_interval`, or a classifier with ``predict_proba``.
    X : array-like of shape (n_samples, n_features)
        Features before the transformations of the pipeline.
    y : array-like of shape (n_samples,)
        Targets, or labels.
    **options : dict
        Passed to the estimator's method: ``exposure`` of counts.

    Returns
    -------
    ndarray of shape (n_samples,)
        Each row given the training data alone.

    Raises
    ------
    TypeError
        There is no inner estimator with this method.
    ValueError
        A transformed target has no such forecast, with the reason.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import GridSearchCV
    >>> import skvi
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> grid = {"posterior": ["mean_field", "full_rank"]}
    >>> search = GridSearchCV(BayesianLogisticRegression(prior="normal"), grid).fit(
    ...     X, y
    ... )
    >>> skvi.predict_log_density(search, X, y).mean().round(1)
    np.float64(-0.1)
    """
    return _call(estimator, "predict_log_density", X, y, **options)


def predict_proba_interval(estimator: Any, X: Any, **options: Any) -> np.ndarray:
    """Credible intervals of class probabilities.

    Parameters
    ----------
    estimator : estimator, Pipeline or search, fitted
        The final estimator is an skvi classifier.
    X : array-like of shape (n_samples, n_features)
        Features before the transformations of the pipeline.
    **options : dict
        Passed to the estimator's method: ``coverage``.

    Returns
    -------
    ndarray of shape (n_samples, 2, n_classes)
        Lower and upper end, for each class separately.

    Raises
    ------
    TypeError
        There is no inner estimator with this method.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import skvi
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> regression = BayesianLogisticRegression(prior="normal")
    >>> model = make_pipeline(StandardScaler(), regression).fit(X, y)
    >>> skvi.predict_proba_interval(model, X[:1]).shape
    (1, 2, 3)
    """
    return _call(estimator, "predict_proba_interval", X, **options)


def predict_uncertainty(estimator: Any, X: Any, **options: Any) -> dict:
    """Predict how uncertain a new target is, and how much of it is for lack of rows.

    Parameters
    ----------
    estimator : estimator, Pipeline or search, fitted
        The final estimator is one of skvi.
    X : array-like of shape (n_samples, n_features)
        Features before the transformations of the pipeline.
    **options : dict
        Passed to the estimator's method: ``exposure`` of counts.

    Returns
    -------
    dict of str to ndarray of shape (n_samples,)
        For regressors "noise_std" and "function_std", for classifiers "entropy" and
        "mutual_information", in nats.

    Raises
    ------
    TypeError
        There is no inner estimator with this method.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import skvi
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), BayesianLinearRegression()).fit(X, y)
    >>> skvi.predict_uncertainty(model, X[:2])["function_std"].round(1)
    array([7. , 7.7])
    """
    return _call(estimator, "predict_uncertainty", X, **options)


def sample_y(estimator: Any, X: Any, n_draws: int = 1, **options: Any) -> np.ndarray:
    """Draw new observations from the posterior predictive distribution.

    Parameters
    ----------
    estimator : estimator, Pipeline or search, fitted
        As for `predict_interval`.
    X : array-like of shape (n_samples, n_features)
        Features before the transformations of the pipeline.
    n_draws : int, default=1
    **options : dict
        Passed to the estimator's method: ``random_state``, and ``exposure`` of counts.

    Returns
    -------
    ndarray of shape (n_samples, n_draws)
        For several targets, shape (n_samples, n_outputs, n_draws).

    Raises
    ------
    TypeError
        There is no inner estimator with this method.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import skvi
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), BayesianLinearRegression()).fit(X, y)
    >>> skvi.sample_y(model, X[:2], n_draws=5, random_state=0).shape
    (2, 5)
    """
    return _call(estimator, "sample_y", X, n_draws=n_draws, **options)


def summary(estimator: Any, **options: Any) -> Any:
    """Table of the coefficients of the final model of a pipeline or search.

    Parameters
    ----------
    estimator : estimator, Pipeline or search, fitted
        The final estimator is an skvi linear model.
    **options : dict
        Passed to the estimator's method: ``coverage``, and ``feature_names``, by
        default those after the transformations of the pipeline, if known.

    Returns
    -------
    CoefficientTable

    Raises
    ------
    TypeError
        There is no inner estimator with this method.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import skvi
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), BayesianLinearRegression()).fit(X, y)
    >>> skvi.summary(model).to_dict()["name"][:3]
    ['intercept', 'x0', 'x1']
    """
    found, _ = unwrap(estimator, None, "summary", ADVICE, transform=False)
    if (names := feature_names(estimator)) is not None:
        options = {"feature_names": names, **options}
    return methodcaller("summary", **options)(found)
