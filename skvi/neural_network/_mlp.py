"""Multilayer perceptrons, and their mixture with simpler models."""

import math
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import torch

from skvi._estimator._features import feature_units, with_new_features
from skvi._estimator._parts import SHORTHANDS
from skvi.base import NormalForm
from skvi.likelihoods import Likelihood
from skvi.neural_network._reports import remedies
from skvi.posteriors import Ensemble, Family, MeanFieldNormal, Posterior
from skvi.posteriors._normal import _DiagonalPosterior
from skvi.predictors import MLPPredictor
from skvi.predictors._mlp import ACTIVATIONS, INITIAL_SHARE
from skvi.solvers._solution import Solution, State
from skvi.utils._rows import spaced_rows
from skvi.utils._tensors import make_generator
from skvi.utils._validation import Interval, StrOptions

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
# Epochs, or sweeps, of a fit to the optimum; draws of the weights in its steps, and in
# those of minibatches of many rows, which are noisier.
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
    #: Origins and scales of the features, see `feature_units`.
    _features = None

    def _resolve_divergence(self, X, y, sample_weight):
        """After the units of the features, which all candidates share."""
        if not (self._is_candidate or self._continues):
            w = sample_weight
            used = (X, w) if w is None else (X[w > 0], w[w > 0])
            self._features = feature_units(*used, True, "each")
        return super()._resolve_divergence(X, y, sample_weight)

    def _with_features(self, units, data):
        """Units with those of the features, in their dtype."""
        if self._given_units() is None:
            origin, scale, unseen = self._features
            units = replace(units, x_mean=origin, x_scale=scale, unseen=unseen)
        else:
            units = with_new_features(units, data.X, data.weight)
        origin, scale = (x.astype(data.X.dtype) for x in (units.x_mean, units.x_scale))
        return replace(units, x_mean=origin, x_scale=scale)

    def _network(self, X, likelihood):
        """Predictor with the requested hidden layers."""
        sizes = np.atleast_1d(np.asarray(self._choose("hidden_layer_sizes", len(X))))
        is_whole = sizes.ndim == 1 and (not sizes.size or sizes.dtype.kind in "iu")
        if not is_whole or (sizes < 1).any():
            raise ValueError(
                "hidden_layer_sizes must hold positive integers, one for each hidden "
                f"layer. Got {self.hidden_layer_sizes!r}."
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
        """Few where predictions count, and where noise averages out over rows."""
        if self._is_tempered or getattr(self.objective_, "gradient", "") == "local":
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
        return replace(options, rate=rate, has_fixed_length=self._has_fixed_length)

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


# Share of a network in a mixture with models that are better; draws and rows that tell
# the noise of a posterior.
LEAST_SHARE, N_CHECKED, N_ROWS = 1e-3, 20, 500


def can_mix(family: Any, likelihood: Likelihood) -> bool:
    """Whether a mixture can hold the network and simpler models.

    They share what the likelihood learns, so that each needs outputs for its noise.
    """
    if not isinstance(family, Ensemble):
        return False
    n_levels = len(levels_of(likelihood))
    has_own = n_levels > 0 and n_levels == len(likelihood.noise_outputs)
    is_free = has_own or not likelihood.learned
    return is_free and isinstance(family._family(), MeanFieldNormal)


def levels_of(likelihood: Likelihood) -> list[int]:
    """Positions of levels of noise among the numbers that a likelihood learns."""
    names = [name.partition("[")[0] for name in likelihood.learned]
    return [k for k, name in enumerate(names) if name == "noise_scale"]


def mixed(network: Any, solution: Solution) -> Solution:
    """The solution with the noise of held-out rows, mixed with what predicts them."""
    choice, (posterior, target) = network._choice, solution.state
    if not all(isinstance(q, _DiagonalPosterior) for q in posterior.components):
        return solution
    likelihood, name = network._model.likelihood, choice.zeros or "network"
    shares, n_learned = choice.shares, len(likelihood.learned)
    if choice.zeros or not can_mix(network.posterior_family_, likelihood):
        shares = {name: 1.0}
    shares = {kind: share for kind, share in shares.items() if share}
    levels, hyper = levels_of(likelihood), target.hyper.detach().double().cpu().numpy()
    models = {kind: choice.simple[kind] for kind in shares if kind != name}
    own = {kind: model._hyper for kind, model in models.items()} | {name: hyper}
    numbers = hyper.copy()
    if models:  # they share what the likelihood learns: its mean
        terms = [share * own[kind][:n_learned] for kind, share in shares.items()]
        numbers[:n_learned] = sum(terms)
        target = target.at(torch.from_numpy(numbers).to(target.hyper))
    level = numbers[levels]

    def part_of(posterior: Posterior, kind: str) -> Posterior:
        if not likelihood.noise_outputs or kind not in choice.log_noise:
            return posterior
        now = _log_noise(network, posterior, target, level)
        return _with_noise(network, posterior, choice.log_noise[kind] - now)

    parts = [part_of(part, name) for part in posterior.components]
    # The network stays, whatever its share is: the training was its own.
    logs = [np.log(max(shares.get(name, 0.0), LEAST_SHARE) / len(parts))] * len(parts)
    for kind, model in models.items():
        part = _as_network(model, parts[0], network._model.predictor)
        parts.append(part_of(part, kind))
        logs.append(np.log(shares[kind]))
    if models:
        posterior = posterior.weighted(parts, posterior.params.new_tensor(logs))
    else:
        posterior = posterior.with_components(parts)
    return replace(solution, state=State(posterior, target))


def log_noise_of(fitted: Any, X: np.ndarray) -> np.ndarray:
    """Mean of the log of the scale of the noise in some rows, for each output of it."""
    likelihood = fitted._model.likelihood
    outputs, levels = list(likelihood.noise_outputs), levels_of(likelihood)
    if not outputs:
        return np.zeros(0)
    means = fitted._drawn().by_rows(X, lambda f: _columns(f, outputs).mean(0))
    level: np.ndarray = means.mean(0) + (fitted._hyper[levels] if levels else 0.0)
    return level


def _columns(f: torch.Tensor, outputs: list[int]) -> torch.Tensor:
    return torch.stack([f[..., k] for k in outputs], -1)


@torch.no_grad()
def _log_noise(
    network: Any, part: Posterior, target: Any, level: np.ndarray
) -> np.ndarray:
    """The same of a posterior in rows of its fit."""
    outputs = list(network._model.likelihood.noise_outputs)
    theta = part.draw(N_CHECKED, make_generator(0, part.params.device)).theta
    X = target.rows.X[
        torch.from_numpy(spaced_rows(target.n_rows, N_ROWS)).to(theta.device)
    ]
    means = _columns(target.predictor.forward(theta, X), outputs).mean((0, 1))
    found: np.ndarray = means.double().cpu().numpy() + (level if len(level) else 0.0)
    return found


def at_candidate(fitted: Any, state: State) -> State:
    """The state in which all members are a candidate that was fitted to some rows."""
    posterior, predictor = state.posterior, state.target.predictor
    parts = [_as_network(fitted, part, predictor) for part in posterior.components]
    posterior = posterior.with_components(parts)
    hyper = torch.from_numpy(fitted._hyper)
    if len(hyper) < len(state.target.hyper):
        return State(posterior, state.target)
    return State(posterior, state.target.at(hyper.to(state.target.hyper)))


def says(best: str, shares: dict[str, float]) -> str:
    """That a simpler model predicts, `best`, and what to do."""
    model, advice = {
        "constant": ("a constant", "the features may tell nothing, or need more rows"),
        "linear": (
            "a linear model",
            "one of skvi.linear_model, if its noise suits y, is as good and faster",
        ),
    }[best]
    return (
        f"held-out rows are predicted best by {model}, which has {shares[best]:.0%} of "
        f"the mixture that predicts (and the network {shares['network']:.0%}): {advice}"
    )


def _with_noise(network: Any, part: Posterior, log_factor: Any) -> Posterior:
    """A factorized posterior whose noise is larger by a factor."""
    outputs = list(network._model.likelihood.noise_outputs)
    params = part.params.clone()
    at = network._model.predictor.last_intercept[outputs].to(params.device)
    params[at] += torch.as_tensor(log_factor).to(params)
    return part.at(params)


def _as_network(fitted: Any, like: Posterior, predictor: Any) -> Posterior:
    """The posterior of a candidate as one of the parameters of a larger network."""
    own = fitted.posterior_.components[0].as_normal()
    layout, inner = predictor.layout, fitted._model.predictor
    if dict(layout) == dict(inner.layout):
        part = like.near(own)
        return part.at(part.params.to(like.params))
    scale = layout.natural_scales()
    normal = NormalForm(torch.zeros_like(scale), scale.clone())
    still = predictor.zeros_of("linear")
    normal.scale[still] *= INITIAL_SHARE
    for to, source in (
        (layout["coef_skip"].slice, inner.layout["coef_skip"].slice),
        (predictor.last_intercept, inner.last_intercept),
    ):
        normal.mean[to] = own.mean[source].to(normal.mean)
        normal.scale[to] = own.scale[source].to(normal.mean)
    part = like.near(normal)
    return part.at(part.params.to(like.params))
