"""Proposals in the normal scores of a positive parameter with a Gamma posterior.

The density of a dispersion that the data do not show is largest at 0, and that of its
logarithm has a long left tail, which no normal or Student-t has. In the coordinate in
which the fitted Gamma distribution is a standard normal it is nearly normal.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.special import gammainccinv, gammaincinv

from skvi.base import GammaForm, NormalForm
from skvi.base._protocols import Density, Proposal
from skvi.evidence._one_mode import OneMode
from skvi.evidence._proposals import WIDTHS, Above, closest, relative_variance
from skvi.posteriors import Posterior
from skvi.sampling import Chains, StudentT, WeightedDraws
from skvi.sampling._mixture import Mixture
from skvi.targets import Target
from skvi.targets._precisions import BuiltHierarchy
from skvi.utils._gamma import log_gamma_density
from skvi.utils._log_space import LOG_2PI

__all__ = ["ScoredMode"]

# Scores beyond have probabilities below the smallest double.
MAX_SCORE = 37.0
# Part of the draws from each density of heavy tails, and its degrees of freedom.
DEFENSIVE, HEAVY = 0.05, 5


@dataclass(frozen=True, eq=False)
class _Scores:
    """Coordinates x: theta, with the normal score of the logarithm in one column."""

    column: int
    gamma: GammaForm

    def of(self, theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x, (S, P), and the log derivative of the score, (S,)."""
        (shape, rate), log_value = self.gamma, theta[:, self.column]
        value = rate * log_value.exp()
        # The smaller of both probabilities keeps its digits.
        below = torch.special.ndtri(torch.special.gammainc(shape, value))
        above = -torch.special.ndtri(torch.special.gammaincc(shape, value))
        score = torch.where(below < 0, below, above).clamp(-MAX_SCORE, MAX_SCORE)
        log_slope = log_gamma_density(log_value, shape, rate.log())
        log_slope = log_slope + 0.5 * (score.square() + LOG_2PI)
        return self._replaced(theta, score), log_slope

    def back(self, x: torch.Tensor) -> torch.Tensor:
        """Theta, (S, P)."""
        shape = float(self.gamma.shape)
        score = x[:, self.column].clamp(-MAX_SCORE, MAX_SCORE)
        log_tail = torch.special.log_ndtr(-score.abs())
        tail = log_tail.exp().cpu().numpy()
        small, large = gammaincinv(shape, tail), gammainccinv(shape, tail)
        value = torch.where(score < 0, torch.from_numpy(small), torch.from_numpy(large))
        # The first term of the series of `gammainc`, where the value underflows.
        least = (log_tail + math.lgamma(shape + 1)) / shape
        log_value = torch.where(value > 1e-16, value.log(), least)
        return self._replaced(x, log_value - self.gamma.rate.log())

    def _replaced(self, x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.index_copy(1, x.new_tensor([self.column]).long(), values[:, None])


@dataclass(frozen=True, eq=False)
class _Scored:
    """Density of theta from that of x, a normal or a Student-t."""

    density: NormalForm | StudentT
    scores: _Scores

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        x, log_slope = self.scores.of(theta)
        return self.density.log_prob(x) + log_slope

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        return self.scores.back(self.density.sample(n_draws, generator))


class ScoredMode(OneMode):
    """A normal of theta, and one with the normal score of one column.

    `least_shape` is that of the Gamma prior, or of the posterior if that is smaller.
    """

    #: Logs of single weights in the heavy tails mean nothing.
    least_block, least_draws = 32, 2048

    def __init__(
        self, normal: NormalForm, scores: _Scores, least_shape: torch.Tensor
    ) -> None:
        super().__init__(normal)
        self.scores, self.least_shape = scores, least_shape
        mean, scale, column = normal.mean.clone(), normal.scale.clone(), scores.column
        mean[column], scale[column] = 0.0, 0.0
        scale[..., column] = 0.0
        scale[(column,) * scale.ndim] = 1.0
        self.scored = NormalForm(mean, scale)

    @classmethod
    def find(
        cls, target: Target, posterior: Posterior, normal: NormalForm
    ) -> "ScoredMode | None":
        """The family, if a density is log-concave given one Gamma variable."""
        prior = target.reference
        if not isinstance(prior, BuiltHierarchy) or not _is_concave(target, prior):
            return None
        ((name, hyperprior),) = prior.gammas.items()
        gamma = posterior.part(name).as_gamma()
        if gamma is None:
            return None
        scores = _Scores(posterior.layout[name].start, gamma)
        return cls(normal, scores, gamma.shape.clamp(max=hyperprior.shape))

    def nearly_constant(
        self, target: Target, generator: torch.Generator, n_draws: int
    ) -> Iterator[tuple[Proposal, WeightedDraws]]:
        """Two Student-t in x."""
        yield from self.student_t(target, generator, n_draws)

    def starts(
        self, target: Target, n_chains: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Draws of the densities with heavy tails, the same number of each."""
        n_first = n_chains // 2
        sizes = n_first, n_chains - n_first
        parts = zip(self._heavy(), sizes, strict=True)
        return torch.cat([density.sample(n, generator) for density, n in parts])

    def _heavy(self) -> tuple[Proposal, Proposal]:
        """Bound the weights near 0, where p is like the prior, and far out."""
        flat = GammaForm(self.least_shape, self.least_shape / self.scores.gamma.mean)
        near_zero = _Scored(
            StudentT(self.scored, HEAVY), _Scores(self.scores.column, flat)
        )
        return near_zero, StudentT(self.normal, HEAVY)

    def _proposal(self, df: int) -> Proposal:
        """A Student-t in x, and a little of each density with heavy tails."""
        main = _Scored(StudentT(self.scored, df), self.scores)
        weights = [1 - 2 * DEFENSIVE, DEFENSIVE, DEFENSIVE]
        return Mixture((main, *self._heavy()), self.normal.mean.new_tensor(weights))

    def lighter(
        self, chains: Chains, widths: Sequence[float], more: Sequence[NormalForm] = ()
    ) -> list[Density]:
        """Normals of all widths, in theta and in x."""
        base = self.scored
        narrow = [NormalForm(base.mean, width * base.scale) for width in widths]
        scored = [_Scored(normal, self.scores) for normal in narrow]
        return super().lighter(chains, widths, more) + scored

    def variance(self, pilot: WeightedDraws) -> float:
        """Relative variance alone: blocks are large; see `least_block`."""
        return relative_variance(pilot)

    def above_nearly_constant(self, chains: Chains) -> Above:
        """Density of the least variance, in theta or in x."""
        return closest(self.lighter(chains, WIDTHS), chains)


def _is_concave(target: Any, prior: BuiltHierarchy) -> bool:
    """Whether a parameter of the likelihood is all that keeps it from log-concavity."""
    likelihood, rest = target.likelihood_spec, prior.prior
    is_convex = target.loss.is_log_loss and likelihood.is_log_concave
    is_known = list(prior.gammas) == [likelihood.gamma_block[0]]
    return is_convex and is_known and (rest is None or rest.is_log_concave)
