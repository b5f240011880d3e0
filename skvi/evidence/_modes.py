"""Proposals that cover the peak of the prior and the mode of the likelihood."""

from collections.abc import Sequence
from itertools import combinations

import torch

from skvi._sampling._chains import Chains
from skvi._sampling._importance import StudentT, WeightedDraws, adapt_proposal
from skvi._sampling._mixture import (
    Mixture,
    SpikeAndNormal,
    adapt_mixture,
    fitted_mixture,
)
from skvi.base import NormalForm
from skvi.base._protocols import Density, Proposal
from skvi.evidence._one_mode import is_heavy_tailed
from skvi.evidence._proposals import N_CHAINS, Explored, ProposalFamily, Setting
from skvi.priors import BuiltPrior
from skvi.solvers._mode import convex_part, factorize
from skvi.solvers._wide_start import dispersed_starts, likelihood_normal
from skvi.targets import SupervisedTarget, Target
from skvi.targets._row_terms import terms_at

__all__ = ["Modes"]

# Up to this number of parameters that a peak can hide, each subset of them gets a
# component.
MAX_SUBSETS = 3
# A prior wider than this many standard deviations of the likelihood has no peak there.
SPIKE = 3.0
DF, NARROWER, FLATTEST = 5, 0.9, 1e-3


class Modes(ProposalFamily):
    """Modes hidden by a prior that is not log-concave, and proposals for them.

    `spikes` are pairs of coordinates that are jointly in the prior's peak, and the
    normal likelihood given that.
    """

    def __init__(
        self,
        normal: NormalForm,
        likelihood: NormalForm,
        prior: BuiltPrior,
        spikes: list[tuple[torch.Tensor, NormalForm]],
    ) -> None:
        self.normal, self.likelihood = normal, likelihood
        self.prior, self.spikes = prior, spikes

    @staticmethod
    def find(target: Target, fit: NormalForm) -> "Modes | None":
        """Modes of a target; None if there can be only one, or too many.

        `fit`, near the posterior, says which of many coordinates are in the peak.
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
        return Modes(fit, normal, prior, spikes)

    def proposal(
        self, target: Target, first: StudentT, generator: torch.Generator
    ) -> tuple[Mixture, WeightedDraws]:
        """Mixture of a first proposal, the likelihood, and every spike."""
        spikes = [
            SpikeAndNormal(self.prior, seen, where, DF, NARROWER)
            for where, seen in self.spikes
        ]
        components: list[Proposal] = [first, StudentT(self.likelihood, DF), *spikes]
        return adapt_mixture(target, components, generator)

    def starts(
        self, target: Target, n_chains: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Starts of chains, also where the likelihood is large."""
        return dispersed_starts(target, self.normal, generator, n_chains)

    def explore(self, setting: Setting, n_pilot: int) -> Explored:
        """Fit the mixture; chains use it to jump between modes."""
        target, generator = setting.target, setting.generator
        first, _ = adapt_proposal(
            target, self.normal, generator, n_pilot, deadline=setting.deadline
        )
        mixture, pilot = self.proposal(target, first, generator)
        starts = dispersed_starts(target, first.normal, generator, N_CHAINS)
        return setting.jumping(mixture, pilot, starts, first.normal)

    def lighter(
        self, chains: Chains, widths: Sequence[float], more: Sequence[NormalForm] = ()
    ) -> list[Density]:
        """Mixtures fitted to the draws, one of each width."""
        normals = self.normal, *more, self.likelihood
        return [self._lighter(chains, normals, width) for width in widths]

    def _lighter(
        self, chains: Chains, normals: Sequence[NormalForm], factor: float
    ) -> Mixture:
        spikes = [
            SpikeAndNormal(self.prior, seen, where, width=factor)
            for where, seen in self.spikes
        ]
        narrower = [NormalForm(n.mean, factor * n.scale) for n in normals]
        return fitted_mixture([*narrower, *spikes], chains.theta.flatten(0, 1))


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
    _, slope, curvature = terms_at(target, theta)
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
