"""Predictions from the moments of f, by nodes of what the fit does not know."""

from typing import Any

import numpy as np
import torch
from sklearn.utils import gen_batches
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._classes import class_divergences, divergence
from skvi._predictive._mixtures import DrawnPredictive, QuadraturePredictive
from skvi._predictive._quantiles import (
    average_log_probabilities,
    log_class_probabilities,
    normal_mixture_quantiles,
)
from skvi.base._layout import Units
from skvi.expectations._logistic import log_mixture_sigmoid
from skvi.expectations._softmax import log_expect_softmax, softmax_at_points
from skvi.linear_model._coefficients import DrawnCoefficients
from skvi.utils._blocks import by_blocks
from skvi.utils._interrupts import limit_threads

# Rows of which predictions hold the moments at all nodes at once.
CHUNK_ROWS = 2**15
# Operations per class and row of a prediction: some thousand nodes.
SOFTMAX_WORK = 20_000


class FunctionsMixin:
    """Mixin: averages over f, whose posterior is in `_coefficients`."""

    def _is_drawn(self):
        """Whether predictions average over draws."""
        check_is_fitted(self)
        return isinstance(self._coefficients, DrawnCoefficients)

    @property
    def _log_weights(self):
        """Log weights of the nodes of `_in_chunks`."""
        return self._coefficients.log_weights

    def _drawn(self, theta=None):
        """Functions that predictions average over if theta is not normal."""
        theta = self._coefficients.theta if theta is None else theta
        return self._coefficients.draws(theta)

    def _average(self, X, function, *columns):
        """Average a function of (likelihood, f) over the posterior, in every row of X.

        It gets f of shape (S, n, 1), and the rows of `columns`, and returns (S, n,
        ...); the result is (n, ...).
        """
        likelihood, units = self._model.bound(self._hyper)[1], Units(0.0, 1.0)

        def of_rows(p, log_w, f, *some):
            return torch.tensordot(log_w.exp(), function(p, f, *some), 1)

        def of_chunk(mean, variance, *some):
            normals = mean, variance.sqrt(), self._log_weights
            return QuadraturePredictive(likelihood, units, *normals).by_rows(
                of_rows, *some
            )

        X = self._check_X(X)
        if not self._is_drawn():
            return self._in_chunks(X, of_chunk, *columns)
        found = DrawnPredictive(likelihood, units, self._drawn(), X)
        return found.by_rows(of_rows, *columns)

    def _in_chunks(self, X, function, *columns):
        """Results of a function of the moments of f by node, of some rows at a time.

        It gets means, (K, n), variances, (K, n) or (K, n, C, C), and rows of `columns`.
        """
        moments, parts = self._coefficients.functions_at_nodes, []
        for rows in gen_batches(X.shape[0], CHUNK_ROWS):
            some = (column[rows] for column in columns)
            parts.append(function(*moments(X[rows], self.n_jobs), *some))
        return np.concatenate(parts)


class ClassPredictionMixin:
    """Mixin: class probabilities from the moments of f, beside `FunctionsMixin`."""

    @by_blocks
    def decision_function(self, X: Any) -> np.ndarray:
        """Log odds, or centered log probabilities, averaged over the posterior.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            For two classes the log odds of ``classes_[1]``; closer to 0 than the
            linear predictor at the posterior mean. For more than two classes the log of
            `predict_proba` minus its mean over the classes.
        """
        log_p, dtype = self._log_probabilities(X)
        if log_p.shape[1] == 2:
            return (log_p[:, 1] - log_p[:, 0]).numpy().astype(dtype)
        return (log_p - log_p.mean(1, keepdim=True)).numpy().astype(dtype)

    def _mean(self, f):
        """Class probabilities given f, (S, n, K)."""
        return log_class_probabilities(f).exp()

    def _probability_quantiles(self, X, levels):
        """Quantiles of class probabilities, (n, q, K)."""
        if self._is_drawn():
            return super()._probability_quantiles(X, levels)
        X, log_w = self._check_X(X), self._log_weights
        q = torch.from_numpy(np.array(levels))

        def of_chunk(mean, variance):
            if mean.ndim == 3:
                points = softmax_at_points(mean, variance, log_w)
                found = [torch.quantile(p, q, dim=0).movedim(0, 1) for _, p in points]
                return torch.cat(found)
            std = variance.sqrt()
            f = normal_mixture_quantiles(mean, std, levels, log_w.exp())
            # The probability of the other class falls where this one's rises.
            return torch.stack([torch.sigmoid(-f.flip(1)), torch.sigmoid(f)], 2)

        return self._in_chunks(X, of_chunk).astype(X.dtype)

    def _information(self, X, log_p):
        """Mean divergence from averaged probabilities, (n,)."""
        if self._is_drawn():
            return super()._information(X, log_p)
        if log_p.shape[1] == 2:
            function = lambda _, f, log_p: class_divergences(f, log_p)
            return self._average(X, function, log_p.numpy())

        def of_chunk(mean, variance, log_p):
            points = softmax_at_points(mean, variance, self._log_weights)
            return torch.cat([divergence(p, log_p[rows]).mean(0) for rows, p in points])

        return self._in_chunks(self._check_X(X), of_chunk, log_p)

    def _log_probabilities(self, X):
        """Log of all averaged probabilities, (n, K)."""
        X = self._check_X(X)

        def of_chunk(mean, variance):
            log_w = self._log_weights
            if mean.ndim < 3:
                return _two_columns(mean, variance, log_w)
            work = SOFTMAX_WORK * mean.numel()
            with torch.no_grad(), limit_threads(work, self.n_jobs):
                flat = mean.flatten(0, 1), variance.flatten(0, 1)
                log_p = log_expect_softmax(*flat).reshape(mean.shape)
                return torch.logsumexp(log_p + log_w[:, None, None], 0)

        if self._is_drawn():
            log_p = self._drawn().by_rows(X, average_log_probabilities)
        else:
            log_p = self._in_chunks(X, of_chunk)
        return torch.from_numpy(log_p), X.dtype


def _two_columns(mean, variance, log_weights):
    """Log probabilities of two classes, (n, 2), from the moments of f, (K, n)."""
    pairs = log_mixture_sigmoid(mean, variance)[::-1]
    logs = [torch.logsumexp(part + log_weights[:, None], 0) for part in pairs]
    return torch.stack(logs, 1)
