"""Proposals of one mode, of several, and over the scales of a prior.

The fits at nodes of the log scale give a map under which parameters and scale together
are about N(0, I) (`LiftedTarget`). What serves a known scale then serves here.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeGuard

import torch

from skvi._sampling._chains import N_CHAINS, Chains
from skvi._sampling._importance import (
    StudentT,
    WeightedDraws,
    adapt_mixture,
    adapt_proposal,
    badness,
    draw_weighted,
    fitted_mixture,
)
from skvi.base import NormalForm
from skvi.base._component import Density, Proposal
from skvi.divergences import KLDivergence
from skvi.evidence._changes import are_far
from skvi.evidence._fitted import TAIL_DF
from skvi.evidence._near_normal import (
    WIDTHS,
    Above,
    Explored,
    ProposalFamily,
    Setting,
    closest,
    relative_variance,
)
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, Posterior
from skvi.posteriors._mixture import Mixture as MixturePosterior
from skvi.posteriors._mixture import MixtureOverScales, leading
from skvi.solvers import Problem, SolverOptions
from skvi.solvers._mode import DENSE_LIMIT, factorize
from skvi.solvers._natural_gradient import NaturalGradient, dispersed_starts
from skvi.solvers._nodes import Nodes
from skvi.targets import SupervisedTarget, Target
from skvi.targets._lifted import LiftedTarget, NodeGrid
from skvi.targets._numbers import (
    LikelihoodNumber,
    Number,
    Scale,
    bound_at,
    numbers_of,
    slopes_of,
)
from skvi.targets._precisions import UnknownNumber
from skvi.targets._reduced import reduced


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
        parts = [first, *(StudentT(normal, TAIL_DF) for normal in self.others)]
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

    def lighter(self, chains: Chains, more: Sequence[NormalForm] = ()) -> list[Density]:
        """Mixtures fitted to the draws, one of each width."""
        theta, normals = chains.theta.flatten(0, 1), [self.normal, *more, *self.others]
        return [
            fitted_mixture([NormalForm(n.mean, w * n.scale) for n in normals], theta)
            for w in WIDTHS
        ]


# With fewer rows gradients cost next to nothing, and posteriors are skewed.
MIN_ROWS = 1000
# Degrees of freedom that are tried: few bound the weights, many are closer to normal,
# whose radius is the more certain the more parameters there are.
MANY, FEW, PER_PARAMETER = 100, 20, 10
# A prior that is not log-concave matters for linear models up to this size.
MAX_PARAMS = 30
# Draws of chains per parameter required to estimate a full covariance.
DRAWS_PER_PARAMETER = 10
# A proposal fails with a smaller fraction of effective draws, or a heavier tail.
LOST_FRACTION, LOST_KHAT, MAX_RESCUES = 0.05, 0.7, 2


class OneMode(ProposalFamily):
    """A normal near the posterior, and what is fitted from there."""

    def __init__(self, normal: NormalForm) -> None:
        self.normal = normal

    def nearly_constant(
        self, target: Target, generator: torch.Generator, n_draws: int
    ) -> Iterator[tuple[Proposal, WeightedDraws]]:
        """Two Student-t around the normal, for many rows and a log-concave density."""
        is_simple = target.is_log_concave and target.has_design
        if is_simple and target.cost_per_draw >= MIN_ROWS:
            yield from self.student_t(target, generator, n_draws)

    def student_t(
        self, target: Target, generator: torch.Generator, n_draws: int
    ) -> Iterator[tuple[Proposal, WeightedDraws]]:
        """Proposals around the normal, and draws of each."""
        for df in (max(MANY, PER_PARAMETER * self.normal.size), FEW):
            proposal = self._proposal(df)
            yield proposal, draw_weighted(target, proposal, n_draws, generator)

    def _proposal(self, df: int) -> Proposal:
        return StudentT(self.normal, df)

    def starts(
        self, target: Target, n_chains: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Starts of chains in a normal three times as wide; see `dispersed_starts`."""
        return dispersed_starts(target, self.normal, generator, n_chains)

    def explore(self, setting: Setting, n_pilot: int) -> Explored:
        """Fit a Student-t, from chains if need be.

        Weights under a factorized q can be useless; chains still reach the posterior.
        """
        target, generator = setting.target, setting.generator
        deadline = setting.deadline
        proposal, pilot = adapt_proposal(
            target, self.normal, generator, n_pilot, deadline=deadline
        )
        normal = proposal.normal
        starts = dispersed_starts(target, normal, generator, N_CHAINS)
        jump = proposal if self.jumps(target) else None
        sampler = setting.chains(starts, normal, jump)
        for _ in range(MAX_RESCUES):
            is_late = time.monotonic() > deadline
            if is_late or not _is_lost(pilot) or _are_few(sampler.pilot):
                break
            near = chain_moments(sampler.pilot, proposal.normal)
            trial, draws = adapt_proposal(target, near, generator, deadline=deadline)
            if badness(draws) >= badness(pilot):
                break
            proposal, pilot = trial, draws
            sampler = setting.chains(sampler.pilot.theta[:, -1], trial.normal)
        return Explored(proposal, pilot, sampler)

    def jumps(self, target: Target) -> bool:
        """Whether chains are offered draws: they take long to leave heavy tails."""
        return is_heavy_tailed(target)

    def lighter(self, chains: Chains, more: Sequence[NormalForm] = ()) -> list[Density]:
        """Normals of all widths."""
        return [
            NormalForm(base.mean, width * base.scale)
            for base, width in product((self.normal, *more), WIDTHS)
        ]

    def above_nearly_constant(self, chains: Chains) -> Above:
        """Normal of the least variance: log-concave posteriors have no edge."""
        return closest(self.lighter(chains), chains, tail=lambda _: 0.0)


def is_heavy_tailed(target: Target) -> TypeGuard[SupervisedTarget]:
    """Whether a linear model of few parameters has a prior that is not log-concave."""
    is_small = target.has_design and target.layout.size <= MAX_PARAMS
    return is_small and not target.reference.is_log_concave


def _is_lost(pilot: WeightedDraws) -> bool:
    return pilot.ess < LOST_FRACTION * len(pilot.theta) or pilot.khat > LOST_KHAT


def _are_few(chains: Chains) -> bool:
    size = chains.theta.shape[-1]
    return chains.log_joint.numel() < DRAWS_PER_PARAMETER * size


def chain_moments(chains: Chains, fallback: NormalForm) -> NormalForm:
    """Normal with the moments of the draws; factorized if there are too few."""
    theta = chains.theta.flatten(0, 1)
    mean, centered = theta.mean(0), theta - theta.mean(0)
    if _are_few(chains):
        return NormalForm(mean, centered.std(0).clamp(min=1e-150))
    covariance = centered.T @ centered / (len(theta) - 1)
    factor, info = torch.linalg.cholesky_ex(covariance)
    return fallback if int(info) else NormalForm(mean, factor)


# Tolerance of fits at all scales: their errors differ from node to node, and distort
# the map. Beyond DENSE_LIMIT they take too much memory.
TOL = 1e-6
# Degrees of freedom that are tried where weights may be nearly constant.
DEGREES = (100, 20, 5)


def has_unknowns(target: Target) -> bool:
    """Whether a linear model has one unknown scale, beside which its prior is normal.

    Or a number of its likelihood, beside which it is log-concave.
    """
    if target.prior is None or not isinstance(target, SupervisedTarget):
        return False
    plain, numbers = numbers_of(target)
    has_scale = plain.has_design and plain.reference.n_unknown_scales == 1
    if _own(numbers) is None:
        return has_scale
    likelihood = plain.likelihood_spec
    if likelihood.is_location or not likelihood.is_log_concave:
        return False
    is_concave = has_scale or plain.prior.is_log_concave
    return is_concave and plain.has_design and plain.loss.is_log_loss


def _own(numbers: Sequence[Number]) -> UnknownNumber | None:
    """That of the likelihood.

    At its ends its score has the density of the prior, or less, as a dispersion has,
    but not the precision of noise.
    """
    return next((n.number for n in numbers if isinstance(n, LikelihoodNumber)), None)


def lift(target: Target, posterior: Posterior) -> LiftedTarget | None:
    """The target beside its unknowns; None where no fits at nodes are possible.

    With fewer rows than features it is that of the row space. Nodes of the fitted
    posterior are used if they are normals of full rank.
    """
    plain, numbers = numbers_of(target)
    small = reduced(plain)
    if small is not None:
        plain, numbers = small.target, _numbers_in(small.target, numbers)
    if plain.layout.size > DENSE_LIMIT:
        return None
    places = _places(posterior, plain.layout.size) if small is None else None
    if places is None:
        places = _fitted(plain, numbers)
    if places is None:
        return None
    return LiftedTarget(plain, _grid(plain, numbers, places), _own(numbers), small)


def _numbers_in(
    target: SupervisedTarget, numbers: Sequence[Number]
) -> tuple[Number, ...]:
    """The numbers of a model in the row space."""
    return tuple(Scale(target) if isinstance(n, Scale) else n for n in numbers)


#: Numbers, the normal given them, and the log integrand, up to a constant.
Place = tuple[list[float], NormalForm, float]


def _grid(
    target: SupervisedTarget, numbers: Sequence[Number], places: Sequence[Place]
) -> NodeGrid:
    """Nodes of a scale, of a number, or both, with the slopes in each."""
    slopes = []
    for z, normal, _ in places:
        known = bound_at(target, numbers, z)
        slopes.append(slopes_of(target, numbers, z, known, normal, 1.0))
    like = places[0][1].mean.new_tensor
    axes = [
        like(sorted(set(axis))) for axis in zip(*(z for z, *_ in places), strict=True)
    ]
    shape = [len(axis) for axis in axes]
    tables = [like(column).reshape(shape) for column in zip(*slopes, strict=True)]
    normals = [normal for _, normal, _ in places]
    values = like([value for *_, value in places]).reshape(shape)
    if len(numbers) == 2:
        return NodeGrid(normals, values, axes[0], tables[0], axes[1], tables[1])
    if isinstance(numbers[0], Scale):
        return NodeGrid(normals, values[:, None], axes[0], tables[0][:, None])
    return NodeGrid(normals, values[None], None, None, axes[0], tables[0][None])


def _places(posterior: Posterior, size: int) -> list[Place] | None:
    """Those of the fitted mixture, if it is of full rank."""
    if not isinstance(posterior, MixtureOverScales) or len(posterior.nodes) < 2:
        return None
    normals = [leading(normal, size) for normal in posterior.normals()]
    if normals[0].scale.ndim == 1:
        return None
    parts = posterior.places().tolist(), normals, posterior.log_weights.tolist()
    return list(zip(*parts, strict=True))


def _fitted(target: SupervisedTarget, numbers: Sequence[Number]) -> list[Place] | None:
    """Those of full rank that are fitted here; None if the solver cannot."""
    start = FullRankNormal().build(target.layout).to(target.hyper.device)
    problem = Problem(target, ELBO(), KLDivergence(), start, None)
    known = bound_at(target, numbers, [number.start for number in numbers])
    if NaturalGradient.missing(replace(problem, target=known)):
        return None
    nodes = Nodes(problem, SolverOptions(tol=TOL), (target, numbers))
    if nodes.run().interrupted:
        raise KeyboardInterrupt
    fits = sorted(nodes.fits.values(), key=lambda fit: fit.z)
    return [(list(f.z), f.normal, f.value) for f in fits] if len(fits) > 1 else None


def unit(lifted: LiftedTarget) -> NormalForm:
    """The normal that the lifted posterior is near."""
    like, size = lifted.log_widths, lifted.layout.size
    return NormalForm(like.new_zeros(size), like.new_ones(size))


class NearLifted(OneMode):
    """Proposals around N(0, I); the lifted posterior is near, but not log-concave."""

    least_block = 64

    def jumps(self, target: Target) -> bool:
        """Always, so that chains move between scales."""
        return True

    def variance(self, pilot: WeightedDraws) -> float:
        """Relative variance alone: far out logs of weights fall without limit."""
        return relative_variance(pilot)

    def nearly_constant(
        self, target: Target, generator: torch.Generator, n_draws: int
    ) -> Iterator[tuple[Proposal, WeightedDraws]]:
        """Student-t, from nearly normal to heavy tails."""
        for df in (max(DEGREES[0], 10 * self.normal.size), *DEGREES[1:]):
            proposal = StudentT(self.normal, df)
            yield proposal, draw_weighted(target, proposal, n_draws, generator)

    def above_nearly_constant(self, chains: Chains) -> Above:
        """Normal of the least variance that has no tail."""
        return ProposalFamily.above_nearly_constant(self, chains)
