"""Multilayer perceptrons, for regressors and classifiers."""

import math
from dataclasses import replace
from numbers import Integral

import numpy as np

from skvi._estimator._registry import SHORTHANDS
from skvi.neural_network._flatness import remedies
from skvi.posteriors import Ensemble, Family, MeanFieldNormal
from skvi.predictors import MLPPredictor
from skvi.predictors._mlp import ACTIVATIONS
from skvi.utils._validation import Interval, StrOptions

__all__ = ["MLPMixin"]

#: What "auto" stands for: what predicts best by `benchmarks/network_defaults.py`. The
#: step size is the solver's.
CHOICES = {"hidden_layer_sizes": (50, 50), "activation": "relu"}
TRAINING = {"n_draws": 2, "batch_size": 100, "n_steps": 5000, "rate": None}
#: The same for classes. Longer trainings with larger steps are more certain of rotated
#: digits, and no better on others; see `benchmarks/bench_default_classifier.py`.
CLASS_CHOICES = {"hidden_layer_sizes": (100,), "activation": "relu"}
CLASS_TRAINING = TRAINING | {"n_steps": 3000, "rate": 0.01}
# Steps for the fewest rows; passes over the rows in a fit of a chosen length, at least;
# the fraction of it that linear models take.
FEW_STEPS, N_PASSES, SIMPLE_SHARE = 1200, 8, 0.3
# Epochs, or sweeps, of a fit to the optimum; draws of its steps, and of minibatches of
# many rows, which are noisier than draws.
MAX_ITER, N_DRAWS, FEW_DRAWS, MANY_ROWS = 4000, 10, 4, 2000


class MLPMixin:
    """Mixin: `hidden_layer_sizes`, `activation`, and draws that suit them."""

    _parameter_constraints: dict = {
        "hidden_layer_sizes": [
            StrOptions({"auto"}),
            "array-like",
            Interval(Integral, 1, None, closed="left"),
        ],
        "activation": [StrOptions({"auto", *ACTIVATIONS})],
        "skip_connection": ["boolean"],
        "posterior": [StrOptions({"auto", *SHORTHANDS["posterior"]}), Family],
        "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    }
    #: Natural sizes at the input and at the output, see `MLPPredictor`.
    _scales = (1.0, 1.0)
    _choices, _training = CHOICES, TRAINING

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
            skip_outputs=self._skip_outputs(likelihood),
        )

    def _skip_outputs(self, likelihood):
        """Outputs that features act on directly: all but logs of scales of noise."""
        if not self.skip_connection:
            return ()
        noises = likelihood.noise_outputs
        return [k for k in range(likelihood.n_outputs) if k not in noises]

    def _choose(self, name, n_rows):
        """Value of a parameter; "auto" remains what it was in a fit that continues."""
        given = getattr(self, name)
        if not isinstance(given, str) or given != "auto":
            return given
        chosen = self._choices[name]
        if self.warm_start or self._continues:
            return getattr(self, f"{name}_", chosen)
        return chosen

    def _draws_per_step(self, n_rows, has_batches):
        """Few where predictions count, and for the ELBO of minibatches of many rows."""
        if self._is_tempered:
            return self._training["n_draws"]
        has_noise = has_batches and self.objective_.kind == "expectation"
        return FEW_DRAWS if has_noise and n_rows > MANY_ROWS else N_DRAWS

    def _batch_size(self, n_rows):
        if self._is_tempered and n_rows > self._training["batch_size"]:
            return self._training["batch_size"]
        return super()._batch_size(n_rows)

    @property
    def _has_fixed_length(self):
        """Not with steps of the user's own, for which no length was chosen."""
        names = "batch_size", "learning_rate", "n_draws", "tol", "n_iter_no_change"
        own = {getattr(self.solver, name, "auto") for name in names}
        return self.max_iter == "auto" and own == {"auto"} and self._is_tempered

    def _max_iter(self, n_rows):
        """Steps, not epochs, where predictions are what counts."""
        if self.max_iter != "auto":
            return self.max_iter
        if not self._is_tempered:
            return MAX_ITER
        solver = self._given_solver(n_rows)
        n_batches = -(-n_rows // solver.rows_per_step(n_rows))
        per_iter = n_batches if n_batches > 1 else self._steps_per_iter
        share = 1.0 if self._is_simple is None else SIMPLE_SHARE
        n_steps = min(self._training["n_steps"], FEW_STEPS + 8 * n_rows)
        n_epochs = math.ceil(share * n_steps / per_iter)
        return max(n_epochs, N_PASSES if n_batches > 1 else 1)

    def _solver_options(self, target):
        options = super()._solver_options(target)
        rate = self._training["rate"] if self._is_tempered else None
        return replace(options, rate=rate)

    @property
    def _simple_kinds(self):
        """Linear model and constant, which are networks with weights that stay 0."""
        family = self.posterior_family_
        family = family._family() if isinstance(family, Ensemble) else family
        if not isinstance(family, MeanFieldNormal):
            return ()
        has_line = self.skip_connection and self._has_hidden_units
        return ("linear", "constant") if has_line else ("constant",)

    @property
    def _has_hidden_units(self):
        return not np.shape(self.hidden_layer_sizes) == (0,)

    def _remedies(self):
        """Possible remedies for a fit that misses a signal."""
        is_wide = self._is_auto("prior") or bool(self._model.prior.learned)
        return remedies(
            self.hidden_layer_sizes_, self.activation_, self.divergence_, is_wide
        )
