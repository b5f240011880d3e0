"""Multilayer perceptrons, for regressors and classifiers."""

from numbers import Integral

import numpy as np

from skvi.neural_network._flatness import remedies
from skvi.predictors import ACTIVATIONS, MLPPredictor
from skvi.utils._validation import Interval, StrOptions

__all__ = ["MLPMixin"]


class MLPMixin:
    """Mixin: `hidden_layer_sizes` and `activation`."""

    _parameter_constraints: dict = {
        "hidden_layer_sizes": [
            "array-like",
            Interval(Integral, 1, None, closed="left"),
        ],
        "activation": [StrOptions(set(ACTIVATIONS))],
    }
    #: Natural sizes at the input and at the output, see `MLPPredictor`.
    _scales = (1.0, 1.0)
    _block_of_features = "coef_0"

    def _network(self, X, likelihood):
        """Predictor with the requested hidden layers."""
        sizes = np.atleast_1d(np.asarray(self.hidden_layer_sizes))
        if sizes.ndim > 1 or (sizes.size and sizes.dtype.kind not in "iu"):
            raise ValueError(
                "hidden_layer_sizes must hold integers, one for each hidden layer. "
                f"Got {self.hidden_layer_sizes!r}."
            )
        if (sizes < 1).any():
            raise ValueError(
                f"hidden_layer_sizes must be positive. Got {self.hidden_layer_sizes!r}."
            )
        return MLPPredictor(
            self.n_features_in_,
            likelihood.n_outputs,
            tuple(int(size) for size in sizes),
            self.activation,
            *self._scales,
            likelihood.scale_outputs,
        )

    def _remedies(self):
        """Possible remedies for a fit that misses a signal."""
        hidden = self._model.predictor.sizes[1:-1]
        learns = self._learns_scales or bool(self._model.prior.learned)
        return remedies(hidden, self.activation, self.divergence_, learns)
