"""Small deterministic networks that mimic predictive distributions, for serving."""

from inspect import signature
from numbers import Integral

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted

from skvi.neural_network._students import DistilledClassifier, DistilledRegressor
from skvi.utils._validation import Interval, validate_arguments

__all__ = ["distill"]

# How far copies of rows are moved towards another one at most, and the largest standard
# deviation of their noise in those of the columns.
MOVED, JITTER = 0.5, 0.3
# Share of the rows that is held out.
HELD_OUT = 0.1
# Rows of which none is held out.
FEW_ROWS = 20


def distill(
    estimator,
    X,
    hidden_layer_sizes=(50, 50),
    n_rows=10_000,
    max_iter=1000,
    random_state=None,
):
    """Fit a small network to what an estimator predicts, and how surely.

    The network replaces averages over draws by one pass. It needs no targets: rows are
    labeled by the estimator, as many as are wanted.

    Parameters
    ----------
    estimator : estimator, fitted
        A regressor with ``predict(X, return_std=True)``, or a classifier with
        ``predict_proba``; or a pipeline that ends in one.
    X : array-like of shape (n_samples, n_features)
        Rows like those to be predicted: of the fit, or others.
    hidden_layer_sizes : tuple of int, default=(50, 50)
    n_rows : int, default=10_000
        If X has fewer rows, copies of them are added: moved towards another row, by up
        to a half, with normal noise of up to .3 standard deviations of the columns. A
        tenth of the rows of X is held out, and has no copies: the network is that which
        mimics these best.
    max_iter : int, default=1000
    random_state : int, RandomState instance or None, default=None

    Returns
    -------
    DistilledRegressor or DistilledClassifier
        Fitted. Its ``divergence_`` says how far it is from the estimator.

    References
    ----------
    Hinton, Vinyals and Dean (2015), *Distilling the knowledge in a neural network*;
    Korattikara et al. (2015), *Bayesian dark knowledge*.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> from skvi.neural_network import distill
    >>> X, y = load_iris(return_X_y=True)
    >>> model = BayesianLogisticRegression().fit(X, y)
    >>> student = distill(model, X, (10,), n_rows=300, random_state=0)
    >>> student.divergence_ < 0.01
    True
    """
    allowed = {"n_rows": [Interval(Integral, 1, None, closed="left")]}
    validate_arguments("distill", {"n_rows": n_rows}, allowed)
    check_is_fitted(estimator)
    if is_classifier(estimator):
        needs, has = "predict_proba", hasattr(estimator, "predict_proba")
    else:
        needs, has = "predict(X, return_std=True)", _predicts_std(estimator)
    if not has:
        raise TypeError(
            f"{estimator!r} has no {needs}: there is no predictive distribution to "
            "mimic. Use an estimator that has one, such as BayesianMLPRegressor(), "
            "BayesianLinearRegression() or BayesianRidge()."
        )
    rng = check_random_state(random_state)
    order = rng.permutation(len(check_array(X)))
    n_held_out = int(HELD_OUT * len(order)) if len(order) >= FEW_ROWS else 0
    names = getattr(X, "columns", None)
    word = "schema" if hasattr(X, "schema") else "columns"  # of polars, of pandas

    def labeled(rows):
        if names is not None:
            rows = type(X)(rows, **{word: names})
        if is_classifier(estimator):
            return rows, estimator.predict_proba(rows)
        return rows, np.column_stack(estimator.predict(rows, return_std=True))

    rows = check_array(X, dtype=np.float64)
    own = labeled(_with_copies(rows[order[n_held_out:]], n_rows, rng))
    options = {"held_out": labeled(rows[order[:n_held_out]]) if n_held_out else None}
    kind = DistilledRegressor
    if is_classifier(estimator):
        kind, options["classes"] = DistilledClassifier, estimator.classes_
    seed = int(rng.randint(2**31 - 1))
    student = kind(tuple(hidden_layer_sizes), max_iter=max_iter, random_state=seed)
    return student.fit(*own, **options)


def _with_copies(rows, n_rows, rng):
    """Rows, and if they are fewer moved copies of them: between rows, with noise."""
    n = n_rows - len(rows)
    if n <= 0:
        return rows
    one, other = rows[rng.randint(len(rows), size=(2, n))]
    share, size = rng.random_sample((2, n, 1))
    noise = size * JITTER * rows.std(0) * rng.normal(size=one.shape)
    return np.vstack([rows, one + MOVED * share * (other - one) + noise])


def _predicts_std(estimator):
    """Whether an estimator, or the last step of a pipeline, takes `return_std`."""
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1]
    predict = getattr(estimator, "predict", None)
    return predict is not None and "return_std" in signature(predict).parameters
