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

__all__ = ["ScaleFits", "ScaleModes", "center_of"]

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
class ScaleFits:
    """Normals near the posterior at known scales, in ascending order of these.

    Parameters
    ----------
    log_scales : list of float
    normals : list of NormalForm
    values : list of float
        ELBOs, with the log density of the logarithm of the scale.
    is_dense : bool
        Whether neighbors are close, from where there is hardly any mass to where there
        is hardly any again.
    """

    log_scales: list[float]
    normals: list[NormalForm]
    values: list[float]
    is_dense: bool

    @staticmethod
    def around(
        target: SupervisedTarget, center: float, deadline: float = math.inf
    ) -> "ScaleFits | None":
        """Fit normals at scales around one; None where none can be fitted.

        Parameters
        ----------
        target : SupervisedTarget
            With one unknown scale.
        center : float
            A likely log scale.
        deadline : float, default=inf
            Reading of `time.monotonic` after which no further normal is fitted.
        """
        if target.layout.size > MAX_PARAMS:
            return None
        fits = _Fits(target)
        return fits.around(center, deadline) if fits.are_possible else None

    @property
    def likeliest(self) -> NormalForm:
        """The normal at the scale with the most mass."""
        return self.normals[self.values.index(max(self.values))]


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
    def of(
        target: SupervisedTarget,
        fits: ScaleFits,
        generator: torch.Generator,
        precision: float | None = None,
    ) -> "ScaleModes | None":
        """Mix normals at known scales; None where that is not near the posterior.

        Parameters
        ----------
        target : SupervisedTarget
            With one unknown scale.
        fits : ScaleFits
        generator : torch.Generator
        precision : float, default=None
            See `bound_evidence`.
        """
        if not fits.is_dense:
            return None
        components = [StudentT(n) for n in fits.normals]
        components.append(StudentT(fits.normals[-1], df=1))
        n_draws = N_PILOT // 4 if is_loose(precision) else N_PILOT
        mixture, pilot = adapt_mixture(target, components, generator, n_draws)
        share = pilot.ess / n_draws
        is_near = share > GOOD_ESS or (share > LEAST_ESS and pilot.khat <= MOST_KHAT)
        found = fits.normals, fits.likeliest, mixture, pilot
        return ScaleModes(*found) if is_near else None

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

    def __init__(self, target: SupervisedTarget) -> None:
        self.target = target
        shape = FullRankNormal().build(target.layout).to(target.hyper.device)
        self.problem = Problem(target, ELBO(), KL(), shape, None)

    @property
    def are_possible(self) -> bool:
        return not NaturalGradient.missing(self.problem)

    def around(self, center: float, deadline: float) -> ScaleFits:
        middle = (center, *self.at(center, None))
        found, top, is_dense = [middle], middle[2], True
        for sign, fall in FALLS.items():
            step, last = FIRST, middle
            while last[2] > top - fall:
                if len(found) == MAX_SCALES or time.monotonic() > deadline:
                    is_dense = False
                    break
                log_scale = last[0] + sign * step
                trial = (log_scale, *self.at(log_scale, last[1]))
                apart = _divergence(last[1], trial[1])
                if apart > 2 * CLOSE and step > SHORTEST:
                    step *= 0.5
                    continue
                step = min(step * min((CLOSE / max(apart, 1e-9)) ** 0.5, 2), LONGEST)
                found.append(trial)
                top, last = max(top, trial[2]), trial
        found.sort(key=lambda fit: fit[0])
        log_scales, normals, values = zip(*found, strict=True)
        return ScaleFits(list(log_scales), list(normals), list(values), is_dense)

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
