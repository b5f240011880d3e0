"""Shared by Bayesian networks for classes."""

import torch

from skvi._estimator._classes import BayesianClassifierMixin
from skvi._estimator._model import Model
from skvi._predictive._draws import average_log_probabilities, log_class_probabilities
from skvi.neural_network._flatness import explained_log_loss, flat_message
from skvi.neural_network._modules import OutputLimits

__all__ = ["NetworkClassifierMixin"]


class NetworkClassifierMixin(BayesianClassifierMixin):
    """Mixin: labels, and class probabilities of the networks' outputs."""

    #: What the fraction that a fit explains is about.
    _error_of_rows = (
        "the log loss of the training rows is {:.3g} times that of the class "
        "frequencies"
    )

    def _assemble(self, data, labels):
        """Return the model: a network for the log odds of the labels."""
        likelihood = labels.likelihood
        network = self._network(data.X, likelihood)
        prior = self._build_prior(network.layout)
        loss, dtype = self.loss_function_, str(data.X.dtype)
        return Model(labels, network, likelihood, loss, prior, dtype)

    def _name_outputs(self, n_outputs):
        """What a module must return, for messages."""
        if n_outputs == 1:
            return "two classes use one log odds, that of classes_[1], as one column"
        return "one column of log odds for each class"

    def _limit_of_outputs(self, f, likelihood):
        """Say that outputs are limited, whatever the parameters are; empty if not.

        Several columns may have one sign, since only their differences matter.
        """
        limits = OutputLimits.of(f)
        if not (limits.saturates.all() or (f.shape[-1] == 1 and limits.one_sided)):
            return ""
        return (
            f"the outputs of the module are {limits}, whatever its parameters are, "
            "but they are log odds, which have no limits: leave out its last layer, "
            "such as Sigmoid, Softmax, ReLU or Tanh"
        )

    def _mean(self, f):
        """Class probabilities of every network, (S, rows, K)."""
        return log_class_probabilities(f).exp()

    def _log_probabilities(self, X):
        X = self._check_X(X)
        log_p = self._drawn().by_rows(X, average_log_probabilities)
        return torch.from_numpy(log_p), X.dtype

    def _compare_with_constant(self, X, y, weight, rows_per_row):
        """Fractional reduction of the log loss relative to the class frequencies."""
        log_proba = self._drawn().by_rows(X, average_log_probabilities)
        codes = y.astype(int)
        explained, entropy = explained_log_loss(log_proba, codes, weight)
        message = flat_message(
            explained,
            entropy,
            weight,
            rows_per_row,
            "the class frequencies",
            self._remedy(),
        )
        return {"explained": explained}, message
