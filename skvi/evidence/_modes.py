"""Proposals of several components: a fitted mixture, or modes that a prior hides."""

from collections.abc import Sequence
from itertools import combinations

import torch

from skvi._sampling._chains import N_CHAINS, Chains
from skvi._sampling._importance import StudentT, WeightedDraws, adapt_proposal
from skvi._sampling._mixture import (
    Mixture,
    SpikeAndNormal,
    adapt_mixture,
    fitted_mixture,
)
from skvi.base import NormalForm
from skvi.base._protocols import Density, Proposal
from skvi.evidence._changes import are_far
from skvi.evidence._one_mode import is_heavy_tailed
from skvi.evidence._proposals import Explored, ProposalFamily, Setting
from skvi.posteriors import Posterior
from skvi.posteriors._mixture import Mixture as MixturePosterior
from skvi.priors import BuiltPrior
from skvi.solvers._mode import convex_part, factorize
from skvi.solvers._wide_start import dispersed_starts, likelihood_normal
from skvi.targets import SupervisedTarget, Target
from skvi.targets._row_terms import terms_at

__all__ = ["Modes", "Several"]

# Up to this number of parameters that a peak can hide, each subset of them gets a
# component.
MAX_SUBSETS = 3
# A prior wider than this many standard deviations of the likelihood has no peak there.
SPIKE = 3.0
DF, NARROWER, FLATTEST = 5, 0.9, 1e-3


class Several(ProposalFamily):
    """Normals that cover the posterior together, and one near all of it.

    Proposals are mixtures of Student-t around them, with a fitted one for the latter.
    """

    def __init__(self, normal: NormalForm, others: Sequence[NormalForm]) -> None:
        self.normal, self.others = normal, others

    @staticmethod
    def of(
        target: Target,
        posterior: Posterior,
        normal: NormalForm,
        modes: Sequence[NormalForm] = (),
    ) -> "Several | None":
        """Components of a fitted mixture, and other modes; None if there is one."""
        if target.has_design:
            return None
        known = list(modes) or [normal]
        if isinstance(posterior, MixturePosterior):
            known = posterior.normals()
        normals = [*known, *(n for n in (normal, *modes) if are_far(n, known))]
        return Several(normal, normals) if len(normals) > 1 else None

    def heavier(self) -> list[Proposal]:
        """Components of heavier tails than the posterior's."""
        return [StudentT(normal, DF) for normal in self.others]

    def narrower(self, width: float, more: Sequence[NormalForm]) -> list[Proposal]:
        """Components of lighter tails."""
        normals = self.normal, *more, *self.others
        return [NormalForm(n.mean, width * n.scale) for n in normals]

    def proposal(
        self, target: Target, first: StudentT, generator: torch.Generator
    ) -> tuple[Mixture, WeightedDraws]:
        """Mixture of a first proposal, and one for each of the others."""
        return adapt_mixture(target, [first, *self.heavier()], generator)

    def starts(
        self, target: Target, n_chains: int, generator: torch.Generator
    ) -> torch.Tensor:
        return self.starts_near(self.normal, target, n_chains, generator)

    def starts_near(
        self,
        normal: NormalForm,
        target: Target,
        n_chains: int,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Starts of chains around each of the normals, whatever the one near all is."""
        size = -(-n_chains // len(self.others))
        parts = [dispersed_starts(target, n, generator, size) for n in self.others]
        return torch.stack(parts, 1).flatten(0, 1)[:n_chains]

    def explore(self, setting: Setting, n_pilot: int) -> Explored:
        """Fit the mixture; chains use it to jump between modes."""
        target, generator = setting.target, setting.generator
        first, _ = adapt_proposal(
            target, self.normal, generator, n_pilot, deadline=setting.deadline
        )
        mixture, pilot = self.proposal(target, first, generator)
        starts = self.starts_near(first.normal, target, N_CHAINS, generator)
        near = pilot.moments() or self._pooled() or first.normal
        return Explored(mixture, pilot, setting.chains(starts, near, mixture))

    def _pooled(self) -> NormalForm | None:
        """Normal of the mean covariance of modes; None unless they are far apart."""
        n = len(self.others)
        far = [are_far(self.others[k], self.others[:k]) for k in range(1, n)]
        if not (far and all(far)):
            return None
        covariance = torch.stack([n.covariance() for n in self.others]).mean(0)
        return NormalForm(self.others[0].mean, factorize(covariance))

    def lighter(
        self, chains: Chains, widths: Sequence[float], more: Sequence[NormalForm] = ()
    ) -> list[Density]:
        """Mixtures fitted to the draws, one of each width."""
        theta = chains.theta.flatten(0, 1)
        return [fitted_mixture(self.narrower(width, more), theta) for width in widths]


class Modes(Several):
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
        super().__init__(normal, [likelihood])
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

    def heavier(self) -> list[Proposal]:
        """The likelihood, and every spike."""
        return [*super().heavier(), *self._spikes(DF, NARROWER)]

    def narrower(self, width: float, more: Sequence[NormalForm]) -> list[Proposal]:
        return [*super().narrower(width, more), *self._spikes(None, width)]

    def _spikes(self, df: int | None, width: float) -> list[Proposal]:
        return [
            SpikeAndNormal(self.prior, seen, where, df, width)
            for where, seen in self.spikes
        ]

    def starts_near(
        self,
        normal: NormalForm,
        target: Target,
        n_chains: int,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Starts of chains, also where the likelihood is large."""
        return dispersed_starts(target, normal, generator, n_chains)


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
