"""What Bayesian networks for classes share."""

import torch

from skvi._classes import BayesianClassifierMixin
from skvi._draws import average_log_probabilities, log_class_probabilities
from skvi._model import Model
from skvi.neural_network._flatness import explained_log_loss, flat_message

__all__ = ["NetworkClassifierMixin"]


class NetworkClassifierMixin(BayesianClassifierMixin):
    """Mixin: labels, and class probabilities of the networks' outputs."""

    def _assemble(self, data, labels):
        """Return the model: a network for the log odds of the labels."""
        likelihood = labels.likelihood
        network = self._network(data.X, likelihood)
        prior = self._build_prior(network.layout)
        loss, dtype = self.loss_function_, str(data.X.dtype)
        return Model(labels, network, likelihood, loss, prior, dtype)

    def _mean(self, f):
        """Class probabilities of every network, (S, rows, K)."""
        return log_class_probabilities(f).exp()

    def _log_probabilities(self, X):
        X = self._check_X(X)
        log_p = self._drawn().by_rows(X, average_log_probabilities)
        return torch.from_numpy(log_p), X.dtype

    def _compare_with_constant(self, X, y, weight, rows_per_row):
        """Share of the log loss of the class frequencies that the fit saves."""
        log_proba = self._drawn().by_rows(X, average_log_probabilities)
        codes = y.astype(int)
        explained, entropy = explained_log_loss(log_proba, codes, weight)
        message = flat_message(
            explained,
            entropy,
            weight,
            rows_per_row,
            "the class frequencies",
            self._remedies(),
        )
        return {"explained": explained}, message
