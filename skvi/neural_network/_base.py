"""What all Bayesian multilayer perceptrons share."""

from numbers import Integral

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, validate_data

from skvi._variational import BaseVariational
from skvi.predictors import ACTIVATIONS, MLPPredictor
from skvi.priors import build_prior
from skvi.targets import SupervisedTarget
from skvi.utils._arrays import as_tensor
from skvi.utils._random import make_generator
from skvi.utils._threads import limit_threads
from skvi.utils._validation import Interval, StrOptions, _check_sample_weight

__all__ = ["BayesianMLP", "SampledFunction"]

# Rows that are predicted at once. The number never varies (a short block is filled
# up), because matrix products of other sizes may round differently: what is predicted
# for a row must not depend on the rows beside it.
ROW_BLOCK = 64
# Gradient steps in an epoch of small data, and the largest minibatch.
STEPS_PER_EPOCH, MIN_BATCH, MAX_BATCH = 16, 32, 512
DTYPES = [np.float64, np.float32]


class BayesianMLP(BaseVariational):
    """Base class: a network, a posterior over its weights, predictions by draws.

    A subclass owes `_encode(y)`, `_n_outputs()`, `_likelihood()` and `_mean(f)`.
    """

    _parameter_constraints: dict = {
        **BaseVariational._parameter_constraints,
        "hidden_layer_sizes": [
            "array-like",
            Interval(Integral, 1, None, closed="left"),
        ],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "early_stopping": ["boolean"],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "n_predict_draws": [Interval(Integral, 2, None, closed="left")],
    }
    _default_learning_rate = 0.01
    _steps_per_iter = STEPS_PER_EPOCH
    _constant = 0.0
    #: Natural sizes at the input and at the output, see `MLPPredictor`.
    _scales = (1.0, 1.0)

    def _fit(self, X, y, sample_weight):
        X, y = validate_data(self, X, y, dtype=DTYPES)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
        data = {"X": X, "y": y, "metadata": {"sample_weight": sample_weight}}
        self._resolve_all()
        targets = self._encode(y)
        sample_weight = self._row_weights(targets, sample_weight)
        if sample_weight is not None and not (sample_weight > 0).all():
            # Rows of weight zero must not influence anything, batches included.
            keep = sample_weight > 0
            X, targets, sample_weight = X[keep], targets[keep], sample_weight[keep]
            self._check_weighted(targets)
        targets = self._standardize(targets, sample_weight)
        target = SupervisedTarget(
            predictor := self._predictor(),
            self._likelihood(),
            self.loss_function_,
            build_prior(self.prior_, predictor.layout),
            as_tensor(X),
            as_tensor(targets),
            None if sample_weight is None else as_tensor(sample_weight),
            self._constant,
        )
        size = self._batch_size(len(X)) or len(X)
        with limit_threads(self.n_draws * size * predictor.layout.size):
            self._solve(target, **data)
        return self

    def _standardize(self, targets, sample_weight):
        """Targets in the units of the fit."""
        return targets

    def _row_weights(self, targets, sample_weight):
        """Weights of the rows; classifiers multiply class weights."""
        return sample_weight

    def _check_weighted(self, targets):
        """Raise where the rows with a positive weight cannot be fitted."""
        if not len(targets):
            raise ValueError("No row has a positive sample_weight.")

    def _predictor(self):
        sizes = np.atleast_1d(np.asarray(self.hidden_layer_sizes))
        if sizes.ndim > 1 or (sizes.size and (sizes != sizes.astype(int)).any()):
            raise ValueError(
                "hidden_layer_sizes must hold integers, one for each hidden layer. "
                f"Got {self.hidden_layer_sizes!r}."
            )
        if (sizes < 1).any():
            raise ValueError(
                f"hidden_layer_sizes must be positive. Got {self.hidden_layer_sizes!r}."
            )
        hidden = tuple(int(size) for size in sizes)
        return MLPPredictor(
            self.n_features_in_,
            self._n_outputs(),
            hidden,
            self.activation,
            *self._scales,
        )

    def _batch_size(self, n_rows):
        """All rows for weights objectives, which minibatches would bias."""
        if self.batch_size != "auto":
            return super()._batch_size(n_rows)
        if self.objective_.kind == "weights":
            return None
        size = min(max(n_rows // STEPS_PER_EPOCH, MIN_BATCH), MAX_BATCH)
        return size if size < n_rows else None

    def _initialize(self, problem):
        target, posterior, generator = (
            problem.target,
            problem.posterior,
            problem.generator,
        )
        posterior.set_normal(target.predictor.initial_normal(generator))
        posterior.params = posterior.params.to(target.X.dtype)
        self._draw_seed = int(torch.randint(2**31, (1,), generator=generator))

    def _posterior_attributes(self):
        found = super()._posterior_attributes()
        found["_theta"] = self._draw_weights(
            found["posterior_"], self.n_predict_draws, self._draw_seed
        ).numpy()
        return found

    @torch.no_grad()
    def _draw_weights(self, posterior, n_draws, random_state):
        generator = make_generator(random_state)
        return posterior.rsample_with_log_prob(n_draws, generator)[0]

    def _check_X(self, X):
        check_is_fitted(self)
        return validate_data(self, X, dtype=DTYPES, reset=False)

    def _by_rows(self, X, function, *columns, theta=None):
        """Apply a function to the outputs of all drawn networks, in blocks of rows.

        Parameters
        ----------
        X : ndarray of shape (n, d)
        function : callable
            f of shape (S, rows, K) in float64, and the rows of `columns`, to a
            tensor whose first axis is the rows.
        *columns : ndarray of shape (n,)
        theta : Tensor of shape (S, P), default=None
            Weights; None is the draws of the fit.

        Returns
        -------
        ndarray of shape (n, ...)
            In float64.
        """
        theta = torch.from_numpy(self._theta) if theta is None else theta
        predictor, parts = self._predictor(), []
        arrays = [as_tensor(X), *(as_tensor(column) for column in columns)]
        with torch.no_grad(), limit_threads(ROW_BLOCK * theta.numel()):
            for blocks in zip(*(a.split(ROW_BLOCK) for a in arrays), strict=True):
                n_rows = len(blocks[0])
                filled = [_fill(block, ROW_BLOCK) for block in blocks]
                f = predictor.forward(theta, filled[0]).double()
                parts.append(function(f, *filled[1:])[:n_rows])
        return torch.cat(parts).numpy()

    def sample_posterior(self, n_samples=1, random_state=None):
        """Draw weights from the fitted posterior.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        dict of str to ndarray
            "coef_0" of shape (n_samples, d, units), "intercept_0" of shape
            (n_samples, units), and so on for every layer.
        """
        check_is_fitted(self)
        theta = self._draw_weights(self.posterior_, n_samples, random_state)
        blocks = self.posterior_.layout.unpack(theta)
        return {name: block.numpy().copy() for name, block in blocks.items()}

    def sample_function(self, random_state=None):
        """Draw one network from the posterior: the same weights for every X.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        callable
            X of shape (n, d) -> what `predict` (for classifiers `predict_proba`)
            would return if this network were the only one. Noise is not added, and
            calls agree with each other, so that the draw can be plotted,
            optimised, or evaluated anywhere.
        """
        check_is_fitted(self)
        return SampledFunction(
            self, self._draw_weights(self.posterior_, 1, random_state).numpy()
        )


class SampledFunction:
    """One network, drawn from a posterior.

    Parameters
    ----------
    estimator : BayesianMLP
        Fitted.
    theta : ndarray of shape (1, P)
        Its weights.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skvi.neural_network import BayesianMLPRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BayesianMLPRegressor(max_iter=2, early_stopping=False).fit(X, y)
    >>> function = model.sample_function(random_state=0)
    >>> bool((function(X[:3]) == function(X)[:3]).all())
    True
    """

    def __init__(self, estimator, theta):
        self.estimator, self.theta = estimator, theta

    def __call__(self, X):
        """Evaluate the network.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        ndarray of shape (n,) or (n, K)
            Targets in units of y without noise, or class probabilities.
        """
        X = self.estimator._check_X(X)
        theta = torch.from_numpy(self.theta)
        values = self.estimator._by_rows(X, self._only, theta=theta)
        return values.astype(X.dtype)

    def _only(self, f):
        return self.estimator._mean(f)[0]


def _fill(block, n_rows):
    """Append rows of zeros."""
    padding = [0, 0] * (block.ndim - 1) + [0, n_rows - len(block)]
    return torch.nn.functional.pad(block, padding)
