"""Small deterministic networks for means and deviations, or for probabilities."""

from itertools import pairwise
from numbers import Integral, Real

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, check_random_state, gen_batches
from sklearn.utils.validation import check_is_fitted, validate_data

from skvi._draws import ROW_BLOCK
from skvi.neural_network._onnx import OnnxGraph
from skvi.utils._validation import Interval, _fit_context

__all__ = ["DistilledClassifier", "DistilledRegressor"]

# Steps that L-BFGS remembers: with ten it takes several times as many.
HISTORY = 50
# Iterations between looks at held-out rows, and without a gain before the end.
EVERY, PATIENCE = 10, 200


class _Student(BaseEstimator):
    """A network of tanh units, fitted to distributions of given rows."""

    _parameter_constraints: dict = {
        "hidden_layer_sizes": [tuple, list],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self, hidden_layer_sizes=(50, 50), max_iter=1000, tol=1e-9, random_state=None
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _checked_rows(self, X, y, is_right, needed):
        """Rows, and the numbers that describe their distributions."""
        X, y = validate_data(self, X, y, multi_output=True, dtype=np.float64)
        y = check_array(y, dtype=np.float64)
        if not is_right(y):
            raise ValueError(
                f"y must have {needed}. Got shape {y.shape}; use distill(estimator, X) "
                "for those of an estimator."
            )
        return X, y

    def _train(self, X, y, held_out=None):
        """Minimize the mean divergence of the outputs by L-BFGS.

        With held-out rows, and their numbers, the end is where theirs is smallest.
        """
        self._origin, scale = X.mean(0), X.std(0)
        self._scale = np.where(scale > 0, scale, 1.0)
        sizes = [X.shape[1], *self.hidden_layer_sizes, y.shape[1]]
        shapes = [s for a, b in pairwise(sizes) for s in ((a, b), (b,))]
        numbers = [int(np.prod(shape)) for shape in shapes]
        rng = check_random_state(self.random_state)
        start = [rng.normal(size=s) / np.sqrt(s[0]) * (len(s) > 1) for s in shapes]

        def unpack(theta):
            parts = zip(theta.split(numbers), shapes, strict=True)
            return [part.reshape(shape) for part, shape in parts]

        def mean_divergence(X, y):
            rows = torch.from_numpy((X - self._origin) / self._scale)
            divergence = self._divergence(torch.from_numpy(y.copy()))

            def at(theta):
                return divergence(_outputs(rows, unpack(theta), torch.tanh)).mean()

            return at

        own = mean_divergence(X, y)

        def value_and_gradient(theta):
            theta = torch.from_numpy(theta).requires_grad_()
            value = own(theta)
            (gradient,) = torch.autograd.grad(value, theta)
            return float(value.detach()), gradient.numpy()

        first = np.concatenate([part.ravel() for part in start])
        options = {"maxiter": self.max_iter, "ftol": self.tol, "gtol": 0.0}
        options["maxcor"] = HISTORY
        best = None
        if held_out is not None:
            parts = (check_array(part, dtype=np.float64) for part in held_out)
            best = _Best(mean_divergence(*parts))
        with torch.enable_grad():
            found = minimize(
                value_and_gradient,
                first,
                jac=True,
                method="L-BFGS-B",
                options=options,
                callback=best,
            )
        theta = torch.from_numpy(found.x if best is None else best.ending(found.x))
        parts = [part.numpy() for part in unpack(theta)]
        self.coefs_, self.intercepts_ = parts[::2], parts[1::2]
        self.divergence_ = float((own if best is None else best.value)(theta))
        self.n_iter_ = int(found.nit)
        return self

    def to_onnx(self):
        """Return the network as an ONNX model, of single precision.

        Its input is "X", rows of numbers; outputs are "mean" and "std", or "label" (the
        number of the class, if classes are no integers) and "probabilities". Save it
        with ``onnx.save(student.to_onnx(), path)``; onnxruntime and others run it.

        Returns
        -------
        onnx.ModelProto

        Raises
        ------
        ImportError
            Without the package onnx, which ``pip install 'skvi[onnx]'`` installs.
        """
        check_is_fitted(self)
        graph = OnnxGraph(self.n_features_in_)
        rows = graph.apply("Sub", "X", self._origin)
        rows = graph.apply("Div", rows, self._scale)
        for i, (coef, intercept) in enumerate(
            zip(self.coefs_, self.intercepts_, strict=True)
        ):
            rows = rows if i == 0 else graph.apply("Tanh", rows)
            rows = graph.apply("Gemm", rows, coef, intercept)
        self._add_outputs(graph, rows)
        return graph.model()

    def _forward(self, X):
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        pairs = zip(self.coefs_, self.intercepts_, strict=True)
        weights = [w for pair in pairs for w in pair]
        blocks = (X[rows] for rows in gen_batches(len(X), ROW_BLOCK))
        return np.concatenate(
            [
                _outputs((block - self._origin) / self._scale, weights, np.tanh)
                for block in blocks
            ]
        )


class _Best:
    """Callback that keeps the parameters with the smallest value, of held-out rows."""

    def __init__(self, value):
        self.value, self.least, self.theta = value, np.inf, None
        self.n_iter = self.n_best = 0

    def __call__(self, theta):
        self.n_iter += 1
        if self.n_iter % EVERY == 0:
            self._compare(theta)
            if self.n_iter - self.n_best > PATIENCE:
                raise StopIteration

    def ending(self, theta):
        """The best parameters, among them the last ones."""
        self._compare(theta)
        return self.theta

    @torch.no_grad()
    def _compare(self, theta):
        value = float(self.value(torch.from_numpy(theta)))
        if value < self.least:
            self.least, self.theta, self.n_best = value, theta.copy(), self.n_iter


def _outputs(rows, weights, activation):
    for coef, intercept in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        rows = activation(rows @ coef + intercept)
    return rows @ weights[-2] + weights[-1]


class DistilledRegressor(RegressorMixin, _Student):
    """A network for means and standard deviations that another model predicts.

    It is fitted to a normal distribution for each row, by the mean divergence
    ``KL(given || own)``; `distill` does so.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, default=(50, 50)
    max_iter : int, default=1000
        Of L-BFGS, over all rows.
    tol : float, default=1e-9
        Relative decrease at which it stops.
    random_state : int, RandomState instance or None, default=None
        For the start.

    Attributes
    ----------
    coefs_, intercepts_ : list of ndarray
        Weights of the layers, for standardized features.
    divergence_ : float
        Mean divergence, in nats, of the held-out rows if there are any.
    n_iter_ : int
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.neural_network import DistilledRegressor
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> moments = np.hstack([np.sin(2 * X), 0.1 + X**2])
    >>> student = DistilledRegressor((10,), random_state=0).fit(X, moments)
    >>> mean, std = student.predict([[0.5]], return_std=True)
    >>> mean.round(2), std.round(2)
    (array([0.84]), array([0.35]))
    """

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, held_out=None):
        """Fit to normal distributions.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, 2)
            Means and standard deviations.
        held_out : tuple of (X, y), default=None
            Rows at whose smallest divergence the fit ends.

        Returns
        -------
        self
        """
        X, y = self._checked_rows(
            X,
            y,
            lambda y: y.shape[1] == 2 and (y[:, 1] > 0).all(),
            "two columns, means and positive standard deviations",
        )
        self._unit = float(y[:, 0].mean()), float(y[:, 0].std()) or 1.0
        return self._train(X, y, held_out)

    def _divergence(self, y):
        """Of normal distributions, given means and logs of standard deviations."""
        mean, std = (y[:, 0] - self._unit[0]) / self._unit[1], y[:, 1] / self._unit[1]

        def divergence(f):
            squares = std.square() + (mean - f[:, 0]).square()
            return f[:, 1] - std.log() + 0.5 * squares * (-2 * f[:, 1]).exp() - 0.5

        return divergence

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
        f = self._forward(X)
        mean = self._unit[0] + self._unit[1] * f[:, 0]
        return (mean, self._unit[1] * np.exp(f[:, 1])) if return_std else mean

    def _add_outputs(self, graph, f):
        columns = (graph.apply("Gather", f, np.array(i), axis=1) for i in (0, 1))
        mean, log_std = columns
        mean = graph.apply("Mul", mean, np.array(self._unit[1]))
        graph.output(graph.apply("Add", mean, np.array(self._unit[0]), name="mean"))
        std = graph.apply("Exp", log_std)
        std = graph.apply("Mul", std, np.array(self._unit[1]), name="std")
        graph.output(std)


class DistilledClassifier(ClassifierMixin, _Student):
    """A network for class probabilities that another model predicts.

    It is fitted to the probabilities of each row, by the mean divergence
    ``KL(given || own)``; `distill` does so. Parameters and attributes are those of
    `DistilledRegressor`.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, default=(50, 50)
    max_iter : int, default=1000
    tol : float, default=1e-9
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.neural_network import DistilledClassifier
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> proba = np.hstack([0.5 - 0.4 * X, 0.5 + 0.4 * X])
    >>> student = DistilledClassifier((5,), random_state=0).fit(X, proba)
    >>> student.predict_proba([[0.5]]).round(2)
    array([[0.3, 0.7]])
    """

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, classes=None, held_out=None):
        """Fit to class probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_classes)
            Probabilities, in the order of `classes`.
        classes : array-like of shape (n_classes,), default=None
            None numbers them from 0.
        held_out : tuple of (X, y), default=None
            Rows at whose smallest divergence the fit ends.

        Returns
        -------
        self
        """
        X, y = self._checked_rows(
            X,
            y,
            lambda p: p.shape[1] > 1 and (p >= 0).all() and np.allclose(p.sum(1), 1),
            "a probability for each class, in rows that sum to 1",
        )
        self.classes_ = np.arange(y.shape[1]) if classes is None else np.array(classes)
        return self._train(X, y, held_out)

    def _divergence(self, p):
        """Of class probabilities, given their logs up to a constant."""
        entropy = -torch.special.xlogy(p, p).sum(1)
        return lambda f: -(p * torch.log_softmax(f, 1)).sum(1) - entropy

    def predict_proba(self, X):
        """Class probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            In the order of `classes_`.
        """
        f = self._forward(X)
        p = np.exp(f - f.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)

    def predict(self, X):
        """Most probable class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self.classes_[self.predict_proba(X).argmax(1)]

    def _add_outputs(self, graph, f):
        numbers = np.arange(len(self.classes_))
        if self.classes_.dtype.kind in "iu":
            numbers = self.classes_
        which = graph.apply("ArgMax", f, axis=1, keepdims=0)
        numbers = numbers.astype(np.int64)
        label = graph.apply("Gather", numbers, which, axis=0, name="label")
        graph.output(label, kind=np.int64)
        p = graph.apply("Softmax", f, axis=1, name="probabilities")
        graph.output(p, (len(numbers),))
