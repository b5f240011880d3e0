"""Mixtures as proposals: one component for each mode, and its weight."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from skvi._sampling._importance import WeightedDraws, draw_weighted
from skvi.base._protocols import Proposal
from skvi.targets import Target
from skvi.utils._random import rand

__all__ = [
    "Mixture",
    "adapt_mixture",
    "fitted_mixture",
]

# Minimum (defensive) fraction of draws from each component.
LEAST_WEIGHT = 0.02
N_EM, EM_TOL = 300, 1e-6


@dataclass(frozen=True, eq=False)
class Mixture:
    """Mixture of densities, whose weights, (K,), are positive and have sum 1."""

    components: Sequence[Proposal]
    weights: torch.Tensor

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Independent draws, (S, P), in random order of the components."""
        edges = self.weights.cumsum(0)[:-1].contiguous()
        chosen = torch.searchsorted(edges, rand(generator, n_draws))
        parts = []
        for k, component in enumerate(self.components):
            parts.append(component.sample(int((chosen == k).sum()), generator))
        theta = torch.cat(parts)
        found = torch.empty_like(theta)
        found[torch.argsort(chosen, stable=True)] = theta
        return found

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density at points, (S,)."""
        return torch.logsumexp(self.log_terms(theta) + self.weights.log(), 1)

    def log_terms(self, theta: torch.Tensor) -> torch.Tensor:
        """Log densities of the components, (S, K)."""
        return torch.stack([c.log_prob(theta) for c in self.components], 1)


def fit_weights(
    log_terms: torch.Tensor, log_importance: torch.Tensor | None = None
) -> torch.Tensor:
    """Weights of maximum (weighted) likelihood, (K,), by expectation maximization.

    From log densities of the components at draws, (S, K).
    """
    n, n_components = log_terms.shape
    importance = log_terms.new_full((n,), 1 / n, dtype=torch.float64)
    if log_importance is not None:
        importance = torch.softmax(log_importance, 0)
    weights = importance.new_full((n_components,), 1 / n_components)
    terms = torch.exp(log_terms - log_terms.amax(1, keepdim=True))
    for _ in range(N_EM):
        last = weights
        weights = last * (terms.T @ (importance / (terms @ last)))
        weights = weights.clamp(min=1e-12) / weights.sum()
        if float((weights - last).abs().max()) < EM_TOL:
            break
    return weights


def fitted_mixture(components: Sequence[Proposal], theta: torch.Tensor) -> Mixture:
    """Mixture with the weights of maximum likelihood at draws, (S, P)."""
    equal = theta.new_ones(len(components), dtype=torch.float64)
    terms = Mixture(components, equal).log_terms(theta)
    return Mixture(components, fit_weights(terms))


def adapt_mixture(
    target: Target,
    components: Sequence[Proposal],
    generator: torch.Generator,
    n_draws: int = 4096,
    n_rounds: int = 2,
) -> tuple[Mixture, WeightedDraws]:
    """Fit the weights of a mixture to a target, each at least 0.02.

    Population Monte Carlo (Cappé, Douc, Guillin, Marin and Robert 2008). The draws were
    used in the fit, so that they must not be used for estimates.
    """
    n, device = len(components), generator.device
    equal = torch.full((n,), 1 / n, dtype=torch.float64, device=device)
    mixture = Mixture(components, equal)
    pilot = draw_weighted(target, mixture, n_draws, generator)
    for _ in range(n_rounds):
        terms = mixture.log_terms(pilot.theta)
        weights = fit_weights(terms, pilot.log_weights).clamp(min=LEAST_WEIGHT)
        mixture = Mixture(components, weights / weights.sum())
        pilot = draw_weighted(target, mixture, n_draws, generator)
    return mixture, pilot
