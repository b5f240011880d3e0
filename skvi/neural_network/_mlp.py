"""Multilayer perceptrons, for regressors and classifiers."""

from dataclasses import replace
from numbers import Integral

import numpy as np

from skvi._registry import SHORTHANDS
from skvi.neural_network._flatness import remedies
from skvi.posteriors import Family
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
#: What it stands for where predictions are what counts; see `_is_accurate`.
ACCURATE = {
    "hidden_layer_sizes": (50, 50),
    "activation": "relu",
    "n_draws": 2,
    "batch_size": 100,
    "n_steps": 5000,
    "rate": None,
}
#: The same for classes. Longer trainings with larger steps are more certain of rotated
#: digits, and no better on others; see `benchmarks/bench_default_classifier.py`.
ACCURATE_CLASSES = ACCURATE | {
    "hidden_layer_sizes": (100,),
    "n_steps": 3000,
    "rate": 0.01,
}
# Epochs, or sweeps, of a fit; where predictions are what counts a number of steps, and
# at least so many passes over the rows.
MAX_ITER, N_PASSES = 4000, 8


class MLPMixin:
    """Mixin: `hidden_layer_sizes`, `activation`, and the `n_draws` that suit them."""

    _parameter_constraints: dict = {
        "hidden_layer_sizes": [
            StrOptions({"auto"}),
            "array-like",
            Interval(Integral, 1, None, closed="left"),
        ],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "posterior": [StrOptions({"auto", *SHORTHANDS["posterior"]}), Family],
        "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    }
    #: Natural sizes at the input and at the output, see `MLPPredictor`.
    _scales = (1.0, 1.0)
    _block_of_features = "coef_0"
    _accurate = ACCURATE

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
        chosen = self._accurate[name] if self._is_accurate else chosen
        if self.warm_start or self._continues:
            return getattr(self, f"{name}_", chosen)
        return chosen

    def _draws_per_step(self, n_rows, has_batches):
        """Few for the ELBO of minibatches of many rows."""
        if self._is_accurate:
            return self._accurate["n_draws"]
        has_noise = has_batches and self.objective_.kind == "expectation"
        return CHOICES["n_draws"][has_noise and n_rows > MANY_ROWS]

    def _batch_size(self, n_rows):
        if self._is_accurate and n_rows > self._accurate["batch_size"]:
            return self._accurate["batch_size"]
        return super()._batch_size(n_rows)

    @property
    def _has_fixed_length(self):
        return self.max_iter == "auto" and self._is_accurate

    def _max_iter(self, n_rows):
        """Steps, not epochs, where predictions are what counts."""
        if self.max_iter != "auto":
            return self.max_iter
        if not self._is_accurate:
            return MAX_ITER
        solver = self._given_solver(n_rows)
        n_batches = -(-n_rows // solver.rows_per_step(n_rows))
        per_iter = n_batches if n_batches > 1 else self._steps_per_iter
        return max(
            -(-self._accurate["n_steps"] // per_iter), N_PASSES if n_batches > 1 else 1
        )

    def _solver_options(self, target):
        options = super()._solver_options(target)
        rate = self._accurate["rate"] if self._is_accurate else None
        return replace(options, rate=rate)

    @property
    def _has_hidden_units(self):
        return bool(self.hidden_layer_sizes_)

    def _remedies(self):
        """Possible remedies for a fit that misses a signal."""
        is_chosen = self._is_auto("prior")
        learns = is_chosen or bool(self._model.prior.learned)
        return remedies(
            self.hidden_layer_sizes_, self.activation_, self.divergence_, learns
        )
