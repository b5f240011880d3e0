"""The mixture of a network with simpler models, over the parameters of the network."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.likelihoods import Likelihood
from skvi.neural_network._flatness import spaced_rows
from skvi.posteriors import Ensemble, MeanFieldNormal, Posterior
from skvi.predictors._mlp import INITIAL_SHARE
from skvi.solvers import Problem
from skvi.solvers._solution import Solution, State
from skvi.utils._random import make_generator

# Share of a network in a mixture with models that are better; draws and rows that tell
# the noise of a posterior.
LEAST_SHARE, N_DRAWS, N_ROWS = 1e-3, 20, 500

__all__ = ["at_candidate", "can_mix", "mixed", "says"]


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


def mixed(network: Any, problem: Problem, solution: Solution) -> Solution:
    """The solution with the noise of held-out rows, mixed with what predicts them."""
    choice, (posterior, target) = network._choice, solution.state
    if not all(part.is_mean_field for part in posterior.components):
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
    theta = part.draw(N_DRAWS, make_generator(0, part.params.device)).theta
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
            "one of skvi.linear_model is as good, faster, and has an evidence",
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
