"""Multilayer perceptrons, for regressors and classifiers."""

from numbers import Integral

import numpy as np

from skvi.neural_network._flatness import remedies
from skvi.predictors import MLPPredictor
from skvi.predictors._mlp import ACTIVATIONS
from skvi.utils._validation import Interval, StrOptions

__all__ = ["MLPMixin"]

#: What "auto" stands for, and above this number of rows. More units then cost little
#: evidence per row; softplus, which suits waves in few rows, trains too slowly; and
#: minibatches are noisier than draws.
MANY_ROWS = 2000
CHOICES = {
    "hidden_layer_sizes": ((20,), (50,)),
    "activation": ("softplus", "relu"),
    "n_draws": (10, 4),
}


class MLPMixin:
    """Mixin: `hidden_layer_sizes`, `activation`, and the `n_draws` that suit them."""

    _parameter_constraints: dict = {
        "hidden_layer_sizes": [
            StrOptions({"auto"}),
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
        sizes = np.atleast_1d(np.asarray(self._choose("hidden_layer_sizes", len(X))))
        if sizes.ndim > 1 or (sizes.size and sizes.dtype.kind not in "iu"):
            raise ValueError(
                "hidden_layer_sizes must hold integers, one for each hidden layer. "
                f"Got {self.hidden_layer_sizes!r}."
            )
        if (sizes < 1).any():
            raise ValueError(
                f"hidden_layer_sizes must be positive. Got {self.hidden_layer_sizes!r}."
            )
        self.hidden_layer_sizes_ = tuple(int(size) for size in sizes)
        self.activation_ = self._choose("activation", len(X))
        return MLPPredictor(
            self.n_features_in_,
            likelihood.n_outputs,
            self.hidden_layer_sizes_,
            self.activation_,
            *self._scales,
            likelihood.scale_outputs,
        )

    def _choose(self, name, n_rows):
        """Value of a parameter; "auto" remains what it was in a fit that continues."""
        given = getattr(self, name)
        if not isinstance(given, str) or given != "auto":
            return given
        chosen = CHOICES[name][n_rows > MANY_ROWS]
        if self.warm_start or self._continues:
            return getattr(self, f"{name}_", chosen)
        return chosen

    def _draws_per_step(self, n_rows, has_batches):
        """Few for the ELBO of minibatches of many rows."""
        has_noise = has_batches and self.objective_.kind == "expectation"
        return CHOICES["n_draws"][has_noise and n_rows > MANY_ROWS]

    @property
    def _has_hidden_units(self):
        return bool(self.hidden_layer_sizes_)

    def _remedies(self):
        """Possible remedies for a fit that misses a signal."""
        learns = self._learns_scales or bool(self._model.prior.learned)
        return remedies(
            self.hidden_layer_sizes_, self.activation_, self.divergence_, learns
        )
