"""Proposals of several components: a fitted mixture, or several modes."""

from collections.abc import Sequence

import torch

from skvi._sampling._chains import N_CHAINS, Chains
from skvi._sampling._importance import StudentT, adapt_proposal
from skvi._sampling._mixture import (
    adapt_mixture,
    fitted_mixture,
)
from skvi.base import NormalForm
from skvi.base._protocols import Density
from skvi.evidence._changes import are_far
from skvi.evidence._proposals import Explored, ProposalFamily, Setting
from skvi.posteriors import Posterior
from skvi.posteriors._mixture import Mixture as MixturePosterior
from skvi.solvers._mode import factorize
from skvi.solvers._wide_start import dispersed_starts
from skvi.targets import Target

__all__ = ["Several"]

# Degrees of freedom of components of a proposal.
DF = 5


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

    def starts(
        self, target: Target, n_chains: int, generator: torch.Generator
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
        parts = [first, *(StudentT(normal, DF) for normal in self.others)]
        mixture, pilot = adapt_mixture(target, parts, generator)
        starts = self.starts(target, N_CHAINS, generator)
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
        theta, normals = chains.theta.flatten(0, 1), [self.normal, *more, *self.others]
        return [
            fitted_mixture([NormalForm(n.mean, w * n.scale) for n in normals], theta)
            for w in widths
        ]
