"""Mixtures as proposals: one component for each mode, and its weight."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from skvi._sampling._importance import StudentT, WeightedDraws, draw_weighted
from skvi.base import NormalForm
from skvi.base._protocols import Proposal
from skvi.priors import BuiltPrior
from skvi.targets import Target
from skvi.utils._device import CPU
from skvi.utils._random import rand

__all__ = [
    "Mixture",
    "SpikeAndNormal",
    "adapt_mixture",
    "fitted_mixture",
]

# Minimum (defensive) fraction of draws from each component.
LEAST_WEIGHT = 0.02
N_EM, EM_TOL = 300, 1e-6
# Cells of a density on the line: per halving of the distance to 0, where it may be
# infinite, and per standard deviation of a normal factor.
N_CELLS, N_HALVES, N_DEVIATIONS = 12, 100, 12


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


class CellDensity:
    """Density on the line, constant between the M + 1 ascending edges."""

    def __init__(self, edges: torch.Tensor, log_heights: torch.Tensor) -> None:
        self.edges, self.widths = edges, edges.diff()
        log_masses = torch.log_softmax(log_heights + self.widths.log(), 0)
        self.log_heights = log_masses - self.widths.log()
        self.cumulated = log_masses.exp().cumsum(0)[:-1].contiguous()

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Independent draws, (S,)."""
        cell = torch.searchsorted(self.cumulated, rand(generator, n_draws))
        return self.edges[cell] + self.widths[cell] * rand(generator, n_draws)

    def log_prob(self, x: torch.Tensor) -> torch.Tensor:
        """Log density at points, (S,); -inf outside."""
        cell = torch.searchsorted(self.edges, x.contiguous(), right=True) - 1
        is_in = (cell >= 0) & (cell < len(self.widths))
        found = self.log_heights[cell.clamp(0, len(self.widths) - 1)]
        return torch.where(is_in, found, -math.inf)


class SpikeAndNormal:
    """Some coordinates from prior times likelihood, the others normal given them.

    The coordinates `where` are independent: prior times the normal likelihood at 0,
    with deviations times `width`. The others can be Student-t (`df`).
    """

    def __init__(
        self,
        prior: BuiltPrior,
        normal: NormalForm,
        where: torch.Tensor,
        df: int | None = None,
        width: float = 1.0,
    ) -> None:
        self.where, self.mean, self.size = where, normal.mean, normal.size
        covariance = normal.covariance()
        is_rest = torch.ones_like(self.mean, dtype=torch.bool)
        is_rest[where] = False
        self.rest = is_rest.nonzero()[:, 0]
        cross = covariance[self.rest][:, where]
        precision = torch.linalg.inv(covariance[where][:, where])
        self.slope = cross @ precision
        left = covariance[self.rest][:, self.rest] - self.slope @ cross.T
        self.others: Proposal | None = None
        if len(self.rest):
            scale = width * torch.linalg.cholesky(left)
            others = NormalForm(torch.zeros_like(scale[0]), scale)
            self.others = others if df is None else StudentT(others, df)
        variance = width**2 / precision.diagonal()
        # The slope of the factors at 0 does not depend on the width.
        centers = variance * (precision @ normal.mean[where])
        self.cells = [
            self._cells(prior, int(j), float(center), float(v) ** 0.5)
            for j, center, v in zip(where, centers, variance, strict=True)
        ]

    def _cells(
        self, prior: BuiltPrior, column: int, center: float, deviation: float
    ) -> CellDensity:
        edges = _edges(center, deviation).to(self.mean.device)
        middles = 0.5 * (edges[1:] + edges[:-1])
        middles = torch.where(middles == 0, edges[1:], middles)  # may be infinite there
        theta = middles[:, None].expand(-1, self.size)
        log_prior = prior.log_prob_terms(theta)[:, column]
        factor = -0.5 * ((middles - center) / deviation).square()
        return CellDensity(edges, log_prior + factor)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Independent draws, (S, P)."""
        theta = self.mean.new_empty(n_draws, self.size, dtype=torch.float64)
        for j, cells in zip(self.where, self.cells, strict=True):
            theta[:, j] = cells.sample(n_draws, generator)
        if self.others is not None:
            eps = self.others.sample(n_draws, generator)
            theta[:, self.rest] = self._others_mean(theta) + eps
        return theta

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density at points, (S,)."""
        pairs = zip(self.where, self.cells, strict=True)
        total = torch.zeros_like(theta[:, 0])
        for j, cells in pairs:
            total = total + cells.log_prob(theta[:, j])
        if self.others is not None:
            distance = theta[:, self.rest] - self._others_mean(theta)
            total = total + self.others.log_prob(distance)
        return total

    def _others_mean(self, theta: torch.Tensor) -> torch.Tensor:
        inside = theta[:, self.where] - self.mean[self.where]
        return self.mean[self.rest] + inside @ self.slope.T


def _edges(center: float, deviation: float) -> torch.Tensor:
    """Edges of cells for a normal factor times a density with a peak at 0."""
    reach = abs(center) + N_DEVIATIONS * deviation
    powers = torch.arange(N_HALVES * N_CELLS + 1, dtype=torch.float64, device=CPU)
    powers = powers / N_CELLS
    halves = reach * 0.5**powers
    most = N_DEVIATIONS * N_CELLS
    steps = torch.arange(-most, most + 1, device=CPU)
    near = center + deviation * steps.double() / N_CELLS
    edges = torch.cat([-halves, halves, near])
    return torch.unique(edges.clamp(-reach, reach))


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
