"""Small deterministic networks that mimic predictive distributions, for serving."""

from inspect import signature
from numbers import Integral

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, is_classifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from skvi.utils._validation import (
    Interval,
    check_array,
    validate_arguments,
    validate_data,
)

# How far copies of rows are moved towards another one at most, and the largest standard
# deviation of their noise in those of the columns.
MOVED, JITTER = 0.5, 0.3
# Probabilities of classes that are not worth a row.
NEGLIGIBLE = 1e-4


class DistilledRegressor(RegressorMixin, BaseEstimator):
    """A network for means and standard deviations that another model predicts.

    It is fitted to the means, in units of the typical standard deviation, and to the
    logs of the standard deviations, by least squares; `distill` does so.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, default=(50, 50)
    max_iter : int, default=1000
        Of L-BFGS, over all rows.
    random_state : int, RandomState instance or None, default=None
        For the start.

    Attributes
    ----------
    network_ : MLPRegressor
        Its outputs are standardized means and logs of standard deviations.
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.neural_network._distill import DistilledRegressor
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> moments = np.hstack([np.sin(2 * X), 0.1 + X**2])
    >>> student = DistilledRegressor((10,), random_state=0).fit(X, moments)
    >>> mean, std = student.predict([[0.5]], return_std=True)
    >>> mean.round(2), std.round(2)
    (array([0.84]), array([0.35]))
    """

    def __init__(self, hidden_layer_sizes=(50, 50), max_iter=1000, random_state=None):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X, y):
        """Fit to normal distributions.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Standardized features learn best.
        y : array-like of shape (n_samples, 2)
            Means and standard deviations.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            y has other columns, or standard deviations that are not positive.
        """
        X, y = validate_data(self, X, y, multi_output=True, dtype=np.float64)
        y = check_array(y, dtype=np.float64)
        if y.shape[1] != 2 or not (y[:, 1] > 0).all():
            raise ValueError(
                "y must have two columns, means and positive standard deviations. Got "
                f"shape {y.shape}; use distill(estimator, X) for those of an estimator."
            )
        log_std = np.log(y[:, 1])
        self._middle, self._unit = y[:, 0].mean(), np.exp(log_std.mean())
        means = (y[:, 0] - self._middle) / self._unit
        # Half a square of the standardized mean, a whole one of the log deviation: the
        # Kullback-Leibler divergence of normals that are close.
        targets = np.column_stack([means, np.sqrt(2) * (log_std - log_std.mean())])
        network = _like(MLPRegressor, self)
        self.network_ = network.fit(X, targets)
        return self

    def predict(self, X, return_std=False):
        """Predict means, and standard deviations.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        return_std : bool, default=False

        Returns
        -------
        mean : ndarray of shape (n_samples,)
        std : ndarray of shape (n_samples,)
            Only with ``return_std=True``.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        f = self.network_.predict(X)
        mean = self._middle + self._unit * f[:, 0]
        std = self._unit * np.exp(f[:, 1] / np.sqrt(2))
        return (mean, std) if return_std else mean


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
        to a half, with normal noise of up to .3 standard deviations of the columns.
    max_iter : int, default=1000
    random_state : int, RandomState instance or None, default=None

    Returns
    -------
    Pipeline
        Fitted: a `StandardScaler`, and a `DistilledRegressor` or scikit-learn's
        `MLPClassifier`, which has each row once for each class, with its probability
        as weight.

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
    >>> change = student.predict_proba(X) - model.predict_proba(X)
    >>> bool(abs(change).mean() < 0.02)
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
    rows = _with_copies(check_array(X, dtype=np.float64), n_rows, rng)
    if (names := getattr(X, "columns", None)) is not None:
        word = "schema" if hasattr(X, "schema") else "columns"  # of polars, of pandas
        rows = type(X)(rows, **{word: names})
    seed = int(rng.randint(2**31 - 1))
    own = DistilledRegressor(tuple(hidden_layer_sizes), max_iter, seed)
    if not is_classifier(estimator):
        moments = np.column_stack(estimator.predict(rows, return_std=True))
        return make_pipeline(StandardScaler(), own).fit(rows, moments)
    scaler = StandardScaler().fit(rows)
    p = estimator.predict_proba(rows)
    row, label = np.nonzero(p > NEGLIGIBLE)
    network = _like(MLPClassifier, own)
    labels = np.asarray(estimator.classes_)[label]
    network.fit(scaler.transform(rows)[row], labels, p[row, label])
    steps = [("standardscaler", scaler), ("mlpclassifier", network)]
    return Pipeline(steps)


def _like(kind, student):
    """An unfitted network of scikit-learn."""
    return kind(
        hidden_layer_sizes=student.hidden_layer_sizes,
        activation="tanh",
        solver="lbfgs",
        alpha=0.0,
        max_iter=student.max_iter,
        max_fun=10 * student.max_iter,
        random_state=student.random_state,
    )


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
