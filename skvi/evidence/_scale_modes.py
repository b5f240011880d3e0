"""Proposals for a posterior whose prior has one unknown scale."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.base._protocols import Density, Proposal
from skvi.divergences import KL
from skvi.evidence._proposals import (
    N_CHAINS,
    Explored,
    ProposalFamily,
    Setting,
    relative_variance,
)
from skvi.evidence._sides import is_loose
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, Posterior
from skvi.sampling import Chains, StudentT, WeightedDraws
from skvi.sampling._mixture import Mixture, adapt_mixture, fitted_mixture
from skvi.solvers import NaturalGradient, Problem, SolverOptions, implied_scale
from skvi.targets import SupervisedTarget, Target

__all__ = ["ScaleModes", "center_of"]

# Normals at neighboring scales are about CLOSE nats apart, and at most LONGEST in the
# log scale, from the best one to where the integrand has fallen by so many nats below
# it, and above, where a Cauchy has the tail of the hyperprior. Beyond so many scales or
# parameters there is no proposal.
CLOSE, FIRST, SHORTEST, LONGEST = 0.5, 0.2, 0.003, 0.7
FALLS = {-1: 9.0, 1: 5.0}
MAX_SCALES, MAX_PARAMS = 64, 500
# Nats that fits at known scales may leave: they are proposals.
TOL, MAX_ITER = 0.01, 30
# Some draws are of the least likely scales, and far out: a bound averages logs of means
# of so many at least.
LEAST_BLOCK = 64
# Draws behind the weights, and what they must be like for the mixture to be near.
N_PILOT, LEAST_ESS, GOOD_ESS, MOST_KHAT = 4096, 0.05, 0.5, 0.7


def center_of(target: SupervisedTarget, posterior: Posterior) -> float:
    """Log scale that a fitted posterior implies."""
    normal = posterior.components[0].as_normal()
    return 0.0 if normal is None else math.log(implied_scale(target.prior, normal))


@dataclass(frozen=True, eq=False)
class ScaleModes(ProposalFamily):
    """Normals at known scales, whose mixture is near the posterior.

    Parameters
    ----------
    normals : list of NormalForm
        The last one is at the largest scale.
    normal : NormalForm
        The one at the scale with the most mass.
    proposal : Mixture
        Theirs, with heavier tails and fitted weights.
    pilot : WeightedDraws
        Of the proposal; used in the fit, and therefore not for estimates.
    """

    normals: list[NormalForm]
    normal: NormalForm
    proposal: Mixture
    pilot: WeightedDraws

    @staticmethod
    def find(
        target: SupervisedTarget,
        center: float,
        generator: torch.Generator,
        precision: float | None = None,
        deadline: float = math.inf,
    ) -> "ScaleModes | None":
        """Fit normals at scales around one; None where their mixture is not near.

        Parameters
        ----------
        target : SupervisedTarget
            With one unknown scale.
        center : float
            A likely log scale.
        generator : torch.Generator
        precision : float, default=None
            See `bound_evidence`.
        deadline : float, default=inf
            Reading of `time.monotonic` after which no further normal is fitted.
        """
        fits = _Fits(target, deadline)
        if target.layout.size > MAX_PARAMS or not fits.are_possible:
            return None
        found = fits.around(center)
        if found is None:
            return None
        components = [StudentT(n) for n in found[0]]
        components.append(StudentT(found[0][-1], df=1))
        n_draws = N_PILOT // 4 if is_loose(precision) else N_PILOT
        mixture, pilot = adapt_mixture(target, components, generator, n_draws)
        share = pilot.ess / n_draws
        is_near = share > GOOD_ESS or (share > LEAST_ESS and pilot.khat <= MOST_KHAT)
        return ScaleModes(*found, mixture, pilot) if is_near else None

    least_draws = N_PILOT
    #: In each block of so many some draws are not far out.
    least_block = LEAST_BLOCK

    def variance(self, pilot: WeightedDraws) -> float:
        """Relative variance alone: blocks are large."""
        return relative_variance(pilot)

    def nearly_constant(
        self, target: Target, generator: torch.Generator, n_draws: int
    ) -> list[tuple[Proposal, WeightedDraws]]:
        """The mixture, and the draws that it was fitted with."""
        return [(self.proposal, self.pilot)]

    def starts(
        self, target: Target, n_chains: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Starts of chains, (n_chains, P), at all scales, also at unlikely ones.

        No chain leaves the peak at 0 that draws of the prior are in.
        """
        return self.proposal.sample(n_chains, generator)

    def explore(self, setting: Setting, n_pilot: int) -> Explored:
        """Chains that use the mixture to jump between scales."""
        starts = self.starts(setting.target, N_CHAINS, setting.generator)
        return setting.jumping(self.proposal, self.pilot, starts, self.normal)

    def lighter(
        self, chains: Chains, widths: Sequence[float], more: Sequence[NormalForm] = ()
    ) -> list[Density]:
        """Mixtures fitted to the draws, one of each width."""
        theta, normals = chains.theta.flatten(0, 1), (*more, *self.normals)
        narrower = [
            [NormalForm(n.mean, width * n.scale) for n in normals] for width in widths
        ]
        return [fitted_mixture(components, theta) for components in narrower]


class _Fits:
    """ELBO solutions at known scales, each from the one beside it."""

    def __init__(self, target: SupervisedTarget, deadline: float) -> None:
        self.target, self.deadline = target, deadline
        shape = FullRankNormal().build(target.layout).to(target.hyper.device)
        self.problem = Problem(target, ELBO(), KL(), shape, None)

    @property
    def are_possible(self) -> bool:
        return not NaturalGradient.missing(self.problem)

    def around(self, center: float) -> tuple[list[NormalForm], NormalForm] | None:
        """Normals at scales around one, ascending at the end, and the likeliest one."""
        middle = self.at(center, None)
        normals, top = [middle[0]], middle
        for sign, fall in FALLS.items():
            log_scale, step, (normal, value) = center, FIRST, middle
            while value > top[1] - fall:
                if len(normals) == MAX_SCALES or time.monotonic() > self.deadline:
                    return None
                found = self.at(log_scale + sign * step, normal)
                apart = _divergence(normal, found[0])
                if apart > 2 * CLOSE and step > SHORTEST:
                    step *= 0.5
                    continue
                log_scale += sign * step
                step = min(step * min((CLOSE / max(apart, 1e-9)) ** 0.5, 2), LONGEST)
                normal, value = found
                normals.append(normal)
                top = max(top, found, key=lambda pair: pair[1])
        return normals, top[0]

    def at(
        self, log_scale: float, start: NormalForm | None
    ) -> tuple[NormalForm, float]:
        """Normal, and the ELBO with the log density of the scale."""
        prior = self.target.prior
        known = self.target.with_prior(prior.given_scale(math.exp(log_scale)))
        problem = replace(self.problem, target=known)
        if start is not None:
            problem = replace(problem, posterior=problem.posterior.near(start))
        options = SolverOptions(
            max_iter=MAX_ITER, tol=TOL, warm_start=start is not None
        )
        found = NaturalGradient().solve(problem, options)
        if found.interrupted:
            raise KeyboardInterrupt
        normal = cast(NormalForm, found.posterior.as_normal())
        return normal, prior.log_density_of_scale(log_scale) - found.value


def _divergence(q: NormalForm, p: NormalForm) -> float:
    """Kullback-Leibler divergence of full-rank normals, in nats."""
    moved = p.whiten((q.mean - p.mean)[None]).square().sum()
    spread = torch.linalg.solve_triangular(p.scale, q.scale, upper=False)
    trace = spread.square().sum() - q.size
    return float(0.5 * (moved + trace) + p.half_log_det - q.half_log_det)
