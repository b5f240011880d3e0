"""Shared by Bayesian networks for classes."""

import numpy as np
import torch

from skvi._classes import BayesianClassifierMixin, Labels
from skvi._draws import average_log_probabilities, log_class_probabilities
from skvi._model import Model
from skvi.neural_network._flatness import explained_log_loss, flat_message
from skvi.neural_network._modules import OutputLimits
from skvi.neural_network._stream import fit_batch
from skvi.utils._callbacks import with_callbacks
from skvi.utils._validation import _fit_context

__all__ = ["NetworkClassifierMixin"]


class NetworkClassifierMixin(BayesianClassifierMixin):
    """Mixin: labels, and class probabilities of the networks' outputs."""

    #: What the fraction that a fit explains is about.
    _error_of_rows = (
        "the log loss of the training rows is {:.3g} times that of the class "
        "frequencies"
    )

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, sample_weight=None, classes=None):
        """Learn from a batch: the current posterior is the prior for the next batch.

        The first call is a `fit`; after a `fit` the next call continues it. Every call
        trains for `max_iter` epochs of its batch, and starts where the last one ended.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Some of the classes.
        sample_weight : array-like of shape (n_samples,), default=None
        classes : array-like of shape (n_classes,), default=None
            All classes; required in the first call, and equal in every other.

        Returns
        -------
        self

        Raises
        ------
        IncompatibleComponentsError
            The posterior is not normal, so that it cannot be a prior.
        ValueError
            `classes` is missing in the first call, or different in a later one, or
            ``class_weight="balanced"``, which would need all rows.
        KeyboardInterrupt
            On Ctrl-C. In the first call the best posterior so far is kept, in a later
            one that of the batches before: the batch can be given again.

        Notes
        -----
        `lower_bound_` and `evidence_bounds` are those of the last batch given the
        previous ones: of log p(batch) under the posterior that was its prior. Summed
        over the batches they estimate the evidence of all rows, but are not a bound,
        since that posterior is an approximation. A factorized one forgets: every batch
        should be representative of all rows.
        """
        return fit_batch(self, X, y, sample_weight, self._labels(classes))

    def _labels(self, classes):
        """Labels of a stream of batches."""
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} needs all rows, but "
                "partial_fit sees only a batch. Give the weights as a dict."
            )
        found = None if classes is None else np.unique(classes)
        if self.__sklearn_is_fitted__():
            if found is not None and not np.array_equal(found, self.classes_):
                raise ValueError(
                    f"classes={classes!r} is not the same as on last call to "
                    f"partial_fit, was: {self.classes_!r}"
                )
            return None
        if found is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        return Labels.find(found, self.class_weight)

    def _response(self, y):
        if self._stream is None:
            return super()._response(y)
        self.classes_ = self._stream.response.classes
        return self._stream.response

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
