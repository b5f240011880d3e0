"""Proposals that cover the peak of the prior and the mode of the likelihood."""

from itertools import combinations
from typing import TypeGuard

import torch

from skvi.base import NormalForm
from skvi.base._protocols import Proposal
from skvi.priors import BuiltPrior
from skvi.sampling import Chains, StudentT, WeightedDraws
from skvi.sampling._mixture import Mixture, SpikeAndNormal, adapt_mixture, fit_weights
from skvi.solvers import likelihood_normal
from skvi.solvers._mode import convex_part, factorize
from skvi.targets import SupervisedTarget, Target

__all__ = ["Modes", "is_heavy_tailed"]

# Mixtures are tried up to this number of parameters, and up to the second number of
# parameters that a peak can hide get a component for each of their subsets.
MAX_PARAMS, MAX_SUBSETS = 30, 3
# A prior wider than this many standard deviations of the likelihood has no peak there.
SPIKE = 3.0
DF, NARROWER, FLATTEST = 5, 0.9, 1e-3


class Modes:
    """Modes hidden by a prior that is not log-concave, and proposals for them.

    Parameters
    ----------
    normal : NormalForm
        Normal approximation of the likelihood alone.
    prior : BuiltPrior
    spikes : list of pairs of Tensor of int and NormalForm
        Coordinates that are jointly in the peak, and the likelihood given that.
    """

    def __init__(
        self,
        normal: NormalForm,
        prior: BuiltPrior,
        spikes: list[tuple[torch.Tensor, NormalForm]],
    ) -> None:
        self.normal, self.prior, self.spikes = normal, prior, spikes

    @property
    def is_complete(self) -> bool:
        """Whether every combination of spikes has a component."""
        return max(len(where) for where, _ in self.spikes) <= MAX_SUBSETS

    @staticmethod
    def find(target: Target, fit: NormalForm) -> "Modes | None":
        """Modes of a target; None if there can be only one, or too many.

        Parameters
        ----------
        target : Target
        fit : NormalForm
            Close to the posterior: determines which of many coordinates are in the
            peak.
        """
        if not is_heavy_tailed(target) or not target.prior.has_log_prob_terms:
            return None
        prior = target.prior
        normal = likelihood_normal(target, only_hidden=False)
        around = prior.matching_normal()
        if normal is None or around is None:
            return None
        is_hidden = around.variance < SPIKE**2 * normal.variance
        hidden = is_hidden.nonzero()[:, 0]
        if not len(hidden):
            return None
        subsets = _subsets(hidden, normal, fit)
        spikes = [(where, _seen_from(target, normal, where)) for where in subsets]
        return Modes(normal, prior, spikes)

    def proposal(
        self, target: Target, first: StudentT, generator: torch.Generator
    ) -> tuple[Mixture, WeightedDraws]:
        """Mixture of a first proposal, the likelihood, and every spike."""
        spikes = [
            SpikeAndNormal(self.prior, seen, where, DF, NARROWER)
            for where, seen in self.spikes
        ]
        components: list[Proposal] = [first, StudentT(self.normal, DF), *spikes]
        return adapt_mixture(target, components, generator)

    def reverse(
        self, pilot: Chains, normals: list[NormalForm], factor: float
    ) -> Mixture:
        """Mixture of lighter tails than the posterior's, fitted to its draws."""
        spikes = [
            SpikeAndNormal(self.prior, seen, where, width=factor)
            for where, seen in self.spikes
        ]
        normals = [NormalForm(n.mean, factor * n.scale) for n in normals]
        components: list[Proposal] = [*normals, *spikes]
        theta = pilot.theta.flatten(0, 1)
        equal = theta.new_ones(len(components), dtype=torch.float64)
        terms = Mixture(components, equal).log_terms(theta)
        weights = fit_weights(terms)
        return Mixture(components, weights)


def is_heavy_tailed(target: Target) -> TypeGuard[SupervisedTarget]:
    """Whether a linear model of few parameters has a prior that is not log-concave."""
    is_small = target.has_design and target.layout.size <= MAX_PARAMS
    return is_small and not target.reference.is_log_concave


def _seen_from(
    target: SupervisedTarget, normal: NormalForm, where: torch.Tensor
) -> NormalForm:
    """Normal with the slope and the curvature of the likelihood where T is 0.

    The others are at their conditional mean under `normal`.
    """
    covariance = normal.covariance()
    precision = torch.linalg.inv(covariance[where][:, where])
    theta = normal.mean - covariance[:, where] @ (precision @ normal.mean[where])
    theta[where] = 0.0
    _, slope, curvature = target.loss_terms(theta)
    hessian = target.predictor.gram(target.X, convex_part(target, curvature))
    # If the likelihood is flat, a small fraction of the curvature at its mode.
    hessian = hessian + FLATTEST * torch.diag(1 / normal.variance)
    factor = factorize(hessian)
    gradient = target.predictor.pull_back(target.X, slope)
    step = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
    scale = factorize(torch.cholesky_inverse(factor))
    return NormalForm(theta - step, scale)


def _subsets(
    hidden: torch.Tensor, normal: NormalForm, fit: NormalForm
) -> list[torch.Tensor]:
    """Sets of coordinates that can be in the peak while the others are not."""
    n = len(hidden)
    if n <= MAX_SUBSETS:
        sizes = range(1, n + 1)
        return [hidden[list(c)] for k in sizes for c in combinations(range(n), k)]
    is_narrow = fit.variance[hidden] < 0.25 * normal.variance[hidden]
    found = [hidden]
    if 0 < int(is_narrow.sum()) < n:
        found.append(hidden[is_narrow])
    return found
